"""A shop that sells while its workers fail and die, and then counts what became of each promise.

`python -m pgoutbox.demo` brings a PostgreSQL server, or uses the one that OUTBOX_DSN names in a
schema of its own; `--input FILE` sends a file's events instead.
"""
