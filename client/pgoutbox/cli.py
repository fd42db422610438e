"""The command `pgoutbox`."""

from __future__ import annotations

import logging

import click

from . import __version__
from .migrate import MigrateError
from .migrate import migrate as apply_migrations

DATABASE = click.option(
    "--database",
    metavar="URL",
    envvar="DATABASE_URL",
    show_envvar=True,
    help="postgresql://user@host:port/database; what is left out is taken from PG* variables.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pgoutbox", message="%(prog)s %(version)s")
def main() -> None:
    """A transactional outbox and job queue inside PostgreSQL."""
    # Errors are told in one line: nothing that a library logs comes beside it.
    logging.getLogger().addHandler(logging.NullHandler())


@main.command()
@DATABASE
@click.option("--schema", metavar="NAME", help="Install there; made where it is absent.")
def migrate(database: str | None, schema: str | None) -> None:
    """Install the queue into a database, or bring it up to date."""
    if database is None:
        raise click.ClickException("no database: give --database or set DATABASE_URL")
    try:
        done = apply_migrations(database, schema)
    except MigrateError as error:
        raise click.ClickException(str(error)) from error
    said = f"applied {', '.join(done.applied)}" if done.applied else "up to date"
    click.echo(f"pgoutbox {__version__} in schema {done.schema}: {said}")
