"""What yoyo does with migrations/, and what it must be able to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pglast
import psycopg
import pytest
from conftest import Databases, yoyo
from tools.migrations import MIGRATIONS, checksum, migrations, released
from yoyo.migrations import read_sql_migration

SEARCH_PATH = "select set_config('search_path', format('%I, pg_temp', current_schema()), true);"

each_migration = pytest.mark.parametrize("migration", migrations(), ids=lambda path: path.stem)


@pytest.mark.once
@pytest.mark.parametrize("file", sorted(MIGRATIONS.glob("*.sql")), ids=lambda path: path.name)
def test_each_piece_that_yoyo_splits_off_is_one_statement(file: Path) -> None:
    _, _, pieces = read_sql_migration(str(file))
    assert pieces[0].strip() == SEARCH_PATH
    for piece in pieces:
        statements = [raw.stmt for raw in pglast.parse_sql(piece)]
        assert len(statements) <= 1, piece
        assert not any(isinstance(s, pglast.ast.TransactionStmt) for s in statements), piece


@pytest.mark.once
@each_migration
def test_each_migration_has_a_rollback(migration: Path) -> None:
    assert migration.with_suffix(".rollback.sql").exists()


@pytest.mark.once
def test_a_released_migration_never_changes() -> None:
    assert {name: checksum(MIGRATIONS / name) for name in released()} == released()


def test_a_rollback_of_all_leaves_nothing(empty_dsn: str, dump: Callable[[str], str]) -> None:
    before = dump(empty_dsn)
    yoyo("apply", empty_dsn)
    assert dump(empty_dsn) != before
    yoyo("rollback", empty_dsn, "--all")
    assert dump(empty_dsn) == before


def _times_applied(dsn: str) -> list[int]:
    with psycopg.connect(dsn) as conn:
        counts = conn.execute(
            "select count(*) from _yoyo_log where operation = 'apply' group by migration_id"
        )
        return [count for (count,) in counts]


def test_applied_twice_is_applied_once(empty_dsn: str) -> None:
    yoyo("apply", empty_dsn)
    yoyo("apply", empty_dsn)
    assert _times_applied(empty_dsn) == [1] * len(migrations())


def test_three_at_once_apply_once(empty_dsn: str) -> None:
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda _: yoyo("apply", empty_dsn), range(3)))
    assert _times_applied(empty_dsn) == [1] * len(migrations())


@each_migration
def test_a_migration_that_lost_its_mark_can_run_again(
    migration: Path, empty_dsn: str, dump: Callable[[str], str]
) -> None:
    # yoyo commits a migration and the mark that it is applied in two transactions.
    yoyo("apply", empty_dsn, "--revision", migration.stem)
    with psycopg.connect(empty_dsn) as conn:
        conn.execute("select outbox_enqueue('topic', '1')")
    before = dump(empty_dsn)
    with psycopg.connect(empty_dsn) as conn:
        conn.execute("delete from _yoyo_migration where migration_id = %s", [migration.stem])
    yoyo("apply", empty_dsn, "--revision", migration.stem)
    assert dump(empty_dsn) == before


@pytest.fixture
def installer_dsn(databases: Databases, empty_dsn: str) -> Iterator[str]:
    """The empty database for a role that may do nothing but use the schema and create in it."""
    url = urlsplit(empty_dsn)
    role = f"{url.path[1:]}_installer"
    with psycopg.connect(empty_dsn, autocommit=True) as admin:
        admin.execute(f"revoke all on database {url.path[1:]} from public")
        admin.execute(f"create role {role} login password 'installer'")
        admin.execute(f"grant connect on database {url.path[1:]} to {role}")
        admin.execute(f"grant usage, create on schema public to {role}")
        try:
            host = url.netloc.rpartition("@")[2]
            yield url._replace(netloc=f"{role}:installer@{host}").geturl()
        finally:
            admin.execute(f"drop owned by {role} cascade")
            admin.execute(f"drop role {role}")


def test_the_installer_needs_only_the_schema(installer_dsn: str) -> None:
    yoyo("apply", installer_dsn)
    yoyo("rollback", installer_dsn, "--all")
