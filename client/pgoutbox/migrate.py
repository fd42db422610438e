"""Install the queue into a database, or bring it up to date, through yoyo."""

from __future__ import annotations

import io
import os
import random
import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from yoyo import read_migrations
from yoyo.backends.core.postgresql import PostgresqlPsycopgBackend
from yoyo.connections import DatabaseURI
from yoyo.exceptions import BadMigration
from yoyo.migrations import default_migration_table

if TYPE_CHECKING:
    from typing_extensions import LiteralString

__all__ = ["MigrateError", "Migrated", "migrate"]

SOURCE = "package:pgoutbox:migrations"
OLDEST_VERSION = 15
LOCK_KEY = int.from_bytes(b"pgoutbox", "big")
LOCK_TIMEOUT = 600.0
YOYO_LOCK_TIMEOUT = 10.0


class MigrateError(Exception):
    """What stopped `migrate`, in one line."""


@dataclass(frozen=True, slots=True)
class Migrated:
    """The queue is in `schema`; `applied` names the migrations that were missing, in order."""

    schema: str
    applied: list[str]


def migrate(database: str, schema: str | None = None) -> Migrated:
    """Apply the migrations that `database` lacks, and answer which they were.

    `database` is a URL (postgresql://, postgres:// or postgresql+psycopg://, which may have yoyo's
    `?schema=`) or a libpq connection string. `schema` is made where it is absent; None: the first
    schema of the connection's search_path. One at a time, for up to 10 minutes; connect to the
    server itself, as a pooler in transaction mode keeps no search_path. MigrateError: it could
    not be done, and what was done until then stays, each migration being a transaction.
    """
    parameters, url_schema = _parse(database)
    if schema is not None and url_schema not in (None, schema):
        raise MigrateError(f"the URL says schema {url_schema}, and the option {schema}")
    migrations = read_migrations(SOURCE)
    if not migrations:
        raise MigrateError(f"{SOURCE} holds no migrations: this installation is not complete")
    try:
        with (
            psycopg.connect(**parameters) as lock,
            psycopg.connect(**parameters, autocommit=True) as admin,
        ):
            if admin.info.server_version < OLDEST_VERSION * 10_000:
                version = admin.info.parameter_status("server_version")
                raise MigrateError(f"PostgreSQL {OLDEST_VERSION} is needed, this is {version}")
            _take_turn(lock)
            schema = _prepare(admin, schema or url_schema)
            return Migrated(schema, _apply(admin, lock, parameters, schema, migrations))
    except psycopg.Error as error:
        raise MigrateError(_first_line(error)) from error


def _parse(database: str) -> tuple[dict[str, Any], str | None]:
    """libpq's parameters, and the schema of a URL. No message repeats what may be a password."""
    schema = None
    if url := re.match(r"([\w+.-]*)://", database):
        if not re.fullmatch(r"postgres(ql)?(\+\w+)?", url[1]):
            raise MigrateError(
                f"{url[1]}:// is not PostgreSQL: give postgresql://user@host/database"
            )
        address, _, query = database[url.end() :].partition("?")
        fields = query.split("&") if query else []
        for field in [field for field in fields if field.startswith("schema=")]:
            fields.remove(field)
            schema = unquote(field.removeprefix("schema="))
        database = f"postgresql://{address}?{'&'.join(fields)}".removesuffix("?")
    try:
        parameters = conninfo_to_dict(database)
        for port in str(parameters.get("port") or "0").split(","):
            int(port or 0)
    except (psycopg.Error, ValueError):
        raise MigrateError(
            "the database cannot be read: give postgresql://user@host:port/database?option=value,"
            " with special characters percent-encoded"
        ) from None
    return {name: value for name, value in parameters.items() if value is not None}, schema


def _take_turn(lock: psycopg.Connection[Any]) -> None:
    """Hold the lock of all runs of `migrate` in this database, in an open transaction.

    Never a waiting lock: CREATE INDEX CONCURRENTLY waits for those who wait, and they for it.
    """
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        if _value(lock, "select pg_try_advisory_xact_lock(%s)", [LOCK_KEY]):
            break
        lock.rollback()
        if time.monotonic() > deadline:
            raise MigrateError(f"another migrate is not through after {LOCK_TIMEOUT:.0f} seconds")
        time.sleep(random.uniform(0.1, 0.3))
    lock.execute(
        "select set_config(name, '0', true) from pg_settings"
        " where name in ('idle_in_transaction_session_timeout', 'transaction_timeout')"
    )


def _prepare(admin: psycopg.Connection[Any], schema: str | None) -> str:
    """Make the schema where it is absent, and look into no other. Answers its name."""
    if schema is None:
        schema = _value(admin, "select current_schema()")
        if schema is None:
            path = _value(admin, "select current_setting('search_path')")
            raise MigrateError(f"the search_path ({path}) leads to no schema: name one")
    if len(schema.encode()) > 63:
        raise MigrateError(f"the name of schema {schema} is longer than 63 bytes")
    query = "select oid, has_schema_privilege(oid, 'create') from pg_namespace where nspname = %s"
    found = admin.execute(query, [schema]).fetchone()
    name = sql.Identifier(schema)
    if found is None:
        admin.execute(sql.SQL("create schema {}").format(name))
    elif not found[1]:
        grant = sql.SQL("grant create on schema {} to {}").format(
            name, sql.Identifier(admin.info.user)
        )
        raise MigrateError(f"{admin.info.user} may not create in it: {grant.as_string(admin)}")
    admin.execute(sql.SQL("set search_path to {}").format(name))
    return schema


class _Backend(PostgresqlPsycopgBackend):  # type: ignore[misc]
    """yoyo's, for use under `_yoyo_lock`."""

    @contextmanager
    def lock(self, timeout: float = YOYO_LOCK_TIMEOUT) -> Iterator[None]:
        yield


def _apply(
    admin: psycopg.Connection[Any],
    lock: psycopg.Connection[Any],
    parameters: dict[str, Any],
    schema: str,
    migrations: Any,
) -> list[str]:
    # Given in parts, and no URL made of them: yoyo's own parser knows no socket and no two hosts.
    options = {name: value for name, value in parameters.items() if name != "dbname"}
    options["schema"] = sql.Identifier(schema).as_string(admin)
    database = parameters.get("dbname")
    uri = DatabaseURI("postgresql+psycopg", None, None, None, None, database, options)
    backend = _Backend(uri, default_migration_table)
    # yoyo writes what a migration selects to the standard output.
    with closing(backend.connection), redirect_stdout(io.StringIO()):
        backend.init_database()
        ours = [conn.info.backend_pid for conn in (admin, lock, backend.connection)]
        with _yoyo_lock(admin, ours):
            applied = []
            for migration in backend.to_apply(migrations):
                try:
                    backend.apply_one(migration)
                except (psycopg.Error, BadMigration) as error:
                    raise MigrateError(f"{migration.id}: {_first_line(error)}") from error
                applied.append(str(migration.id))
            return applied


@contextmanager
def _yoyo_lock(admin: psycopg.Connection[Any], ours: list[int]) -> Iterator[None]:
    """yoyo's lock row, which keeps `yoyo apply` out, with a pid that no process has.

    So a row that a killed `migrate` left can be told from all others, and whoever holds the lock
    of `_take_turn` knows that its owner is gone.
    """
    mark = -admin.info.backend_pid
    deadline = time.monotonic() + YOYO_LOCK_TIMEOUT
    insert = (
        "insert into yoyo_lock (locked, ctime, pid)"
        " values (1, clock_timestamp() at time zone 'utc', %s) on conflict do nothing"
    )
    while admin.execute(insert, [mark]).rowcount == 0:
        row = admin.execute("select pid, ctime from yoyo_lock").fetchone()
        if row is None:
            continue
        if row[0] < 0 or not _may_live(admin, row[0], ours):
            delete = "delete from yoyo_lock where pid = %s and ctime is not distinct from %s"
            admin.execute(delete, row)
        elif time.monotonic() > deadline:
            raise MigrateError(
                f"process {row[0]} holds yoyo's lock since {row[1]:%Y-%m-%d %H:%M:%S} UTC, and"
                " may still be at work; if it is not, run: yoyo break-lock"
            )
        else:
            time.sleep(0.2)
    try:
        yield
    finally:
        admin.execute("delete from yoyo_lock where pid = %s", [mark])


def _may_live(admin: psycopg.Connection[Any], pid: int, ours: list[int]) -> bool:
    """Whether the process that took yoyo's lock may still run, on whatever machine it is.

    It has a session, of a role that may write the lock, for as long as it runs. If there is none,
    it is gone. If all there are came from this machine, as we did, this machine knows the pid.
    """
    local = "client_port = -1 or client_addr << '127.0.0.0/8' or client_addr = '::1'"
    sessions = admin.execute(
        f"""
        select coalesce({local}, false) as local, pid = %(own)s as own
          from pg_stat_activity
         where datname = current_database()
           and has_table_privilege(usesysid, 'yoyo_lock', 'insert')
           and (pid = %(own)s or pid <> all (%(ours)s))
        """.encode(),
        {"own": admin.info.backend_pid, "ours": ours},
    ).fetchall()
    others = [local for local, own in sessions if not own]
    if not others:
        return False
    if not all(local for local, _ in sessions):
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True


def _value(conn: psycopg.Connection[Any], query: LiteralString, values: Any = None) -> Any:
    row = conn.execute(query, values).fetchone()
    return row[0] if row else None


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
