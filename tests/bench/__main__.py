"""A first look at speed: `make bench`.

Drains a backlog by claims of 100 and an ack each, 8 clients at once, from pgoutbox and from the
textbook outbox (textbook.sql) on one durable server in one run. Rounds alternate between the two,
so that what else the machine does weighs on both; the figure is the ratio of the medians.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from pgoutbox._postgres import Server, postgres_server, program_folders
from pgoutbox.migrate import migrate

CLIENTS, BATCH, ROUNDS = 8, 100, 3
BATCHES_PER_CLIENT = 125
EVENTS = CLIENTS * BATCH * BATCHES_PER_CLIENT
FLOOR = 1.8


@dataclass
class Outbox:
    """What is measured; `rates` are events per second, one for each round."""

    table: str
    waiting: str
    drain: str
    rates: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


OUTBOXES = {
    "pgoutbox": Outbox(
        "outbox_events",
        "select count(*) from outbox_ready",
        "select coalesce(min(lease), 0) as lease"
        " from outbox_claim('worker-' || :client_id, 100) \\gset\n"
        "select count(*) from outbox_ack(:lease);\n",
    ),
    "textbook": Outbox(
        "textbook.events",
        "select count(*) from textbook.events where status <> 'done'",
        "select coalesce(array_agg(id), '{}')::text as ids"
        " from textbook.claim('worker-' || :client_id, 100) \\gset\n"
        "select textbook.ack(:ids::bigint[]);\n",
    ),
}


def drain(server: Server, pgbench: Path, conn: psycopg.Connection[Any], outbox: Outbox) -> float:
    """Events per second while a backlog of EVENTS is drained to its end."""
    # A payload of 230 bytes, as a message that names a few things has.
    conn.execute(
        f"""
        insert into {outbox.table} (topic, payload, dedupe_key)
        select 'order.created',
               jsonb_build_object('order', g, 'pad', repeat('x', 200)),
               'k' || gen_random_uuid()
          from generate_series(1, {EVENTS}) as g
        """.encode()
    )
    conn.execute("vacuum analyze")
    conn.execute("checkpoint")
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(outbox.drain)
        script.flush()
        answer = subprocess.run(
            [
                *(pgbench, "--no-vacuum", "--protocol=prepared", f"--client={CLIENTS}", "--jobs=2"),
                *(f"--transactions={BATCHES_PER_CLIENT}", f"--file={script.name}", server.dsn),
            ],
            capture_output=True,
            text=True,
            check=True,
        )
    tps = re.search(r"tps = ([\d.]+)", answer.stdout)
    assert tps, answer.stdout
    # Had a claim found less than a full batch, the figure would be too good.
    assert conn.execute(outbox.waiting.encode()).fetchone() == (0,)
    return float(tps[1]) * BATCH


def main() -> int:
    with postgres_server(
        dsn=os.environ.get("OUTBOX_TEST_DSN"),
        ways=("local", "embedded"),
        settings={"shared_buffers": "512MB", "max_wal_size": "8GB"},
    ) as server:
        print(server.label)
        folders = [*([server.bindir] if server.bindir else []), *program_folders()]
        pgbench = next((f / "pgbench" for f in folders if (f / "pgbench").exists()), None)
        if pgbench is None:
            raise SystemExit("there is no pgbench: install Debian's package postgresql")
        migrate(server.dsn)
        with psycopg.connect(server.dsn, autocommit=True) as conn:
            conn.execute((Path(__file__).parent / "textbook.sql").read_bytes())
            for _ in range(ROUNDS):
                for outbox in OUTBOXES.values():
                    outbox.rates.append(drain(server, pgbench, conn, outbox))
    print(f"drain of {EVENTS:,} events, claim {BATCH} + ack, {CLIENTS} clients, {ROUNDS} rounds:")
    for name, outbox in OUTBOXES.items():
        rounds = ", ".join(f"{rate:,.0f}" for rate in outbox.rates)
        print(f"  {name:8} {outbox.rate:10,.0f} events/s  ({rounds})")
    ratio = OUTBOXES["pgoutbox"].rate / OUTBOXES["textbook"].rate
    print(f"  ratio    {ratio:10.2f}  (floor {FLOOR})")
    return 0 if ratio >= FLOOR else 1


if __name__ == "__main__":
    sys.exit(main())
