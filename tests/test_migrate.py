"""`pgoutbox migrate`: where it installs, how often, and whose locks it respects."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pgoutbox
import psycopg
import pytest
from pgoutbox import Outbox
from pgoutbox import migrate as module
from pgoutbox.migrate import LOCK_KEY, Migrated, MigrateError, migrate
from psycopg import sql
from psycopg.conninfo import make_conninfo

ROOT = Path(__file__).parents[1]
NAMES = sorted(
    path.stem for path in (ROOT / "migrations").glob("*.sql") if ".rollback" not in path.name
)
ODD = """we"ird Schema, %s :x 'q' \\ 日本"""


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pgoutbox", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


Spawn = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts Python with these arguments, and ends it with the test."""
    with ExitStack() as stack:

        def spawn(*arguments: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield spawn


def eventually(true: Callable[[], Any], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def works(dsn: str, schema: str | None = None) -> bool:
    path = None if schema is None else sql.Identifier(schema).as_string()
    with psycopg.connect(dsn, autocommit=True) as conn:
        if path:
            conn.execute(f"set search_path to {path}".encode())
        outbox = Outbox(conn)
        outbox.enqueue("t", 1)
        outbox.ack(outbox.claim("w"))
        return outbox.version() == pgoutbox.__version__


def tables(dsn: str, schema: str) -> list[str]:
    with psycopg.connect(dsn) as conn:
        query = "select tablename from pg_tables where schemaname = %s"
        return [name for (name,) in conn.execute(query, [schema])]


# Where, and how often


def test_it_installs_once(empty_dsn: str) -> None:
    first = command("migrate", "--database", empty_dsn)
    assert (first.returncode, first.stderr) == (0, "")
    version = pgoutbox.__version__
    assert first.stdout == f"pgoutbox {version} in schema public: applied {', '.join(NAMES)}\n"
    assert works(empty_dsn)
    second = command("migrate", DATABASE_URL=empty_dsn)
    assert (second.returncode, second.stderr) == (0, "")
    assert second.stdout == f"pgoutbox {version} in schema public: up to date\n"


@pytest.mark.parametrize("form", ["postgres", "postgresql+psycopg", "postgresql+asyncpg", "words"])
def test_any_way_to_name_a_database(empty_dsn: str, form: str) -> None:
    address = empty_dsn.partition("://")[2]
    database = make_conninfo(empty_dsn) if form == "words" else f"{form}://{address}"
    assert migrate(database) == Migrated("public", NAMES)
    assert migrate(database) == Migrated("public", [])
    assert works(empty_dsn)


@pytest.mark.parametrize("schema", ["queue", ODD, "Select"])
def test_a_schema_that_is_asked_for_is_made(empty_dsn: str, schema: str) -> None:
    answer = command("migrate", "--database", empty_dsn, "--schema", schema)
    assert answer.returncode == 0, answer.stderr
    assert works(empty_dsn, schema)
    assert tables(empty_dsn, "public") == []
    assert "_yoyo_migration" in tables(empty_dsn, schema)
    url = f"{empty_dsn}?application_name=x&schema={quote(schema)}"
    assert migrate(url) == Migrated(schema, [])
    assert migrate(url, schema) == Migrated(schema, [])
    with pytest.raises(MigrateError, match="the URL says schema"):
        migrate(url, "other")


def test_without_one_it_is_the_search_paths_first(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn) as conn:
        conn.execute("create schema first")
    assert migrate(f"{empty_dsn}?options=-csearch_path%3Dfirst,public").schema == "first"
    assert tables(empty_dsn, "public") == []
    assert works(empty_dsn, "first")
    with pytest.raises(MigrateError, match=r"search_path \(absent\) leads to no schema"):
        migrate(f"{empty_dsn}?options=-csearch_path%3Dabsent")


def test_two_schemas_of_one_database(empty_dsn: str) -> None:
    assert migrate(empty_dsn, "one").applied == migrate(empty_dsn, "two").applied == NAMES
    assert works(empty_dsn, "one")
    assert works(empty_dsn, "two")


def test_three_at_once_apply_once(empty_dsn: str, spawn: Spawn) -> None:
    arguments = ("-m", "pgoutbox", "migrate", "--database", empty_dsn, "--schema", "s")
    runs = [spawn(*arguments) for _ in range(3)]
    said = [run.communicate() for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0], said
    assert sorted("up to date" in out for out, _ in said) == [False, True, True]
    assert works(empty_dsn, "s")


def test_it_polls_for_its_turn(empty_dsn: str, spawn: Spawn) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute("select pg_advisory_lock(%s)", [LOCK_KEY])
        run = spawn("-m", "pgoutbox", "migrate", "--database", empty_dsn)
        sessions = (
            "select wait_event_type from pg_stat_activity where pid <> pg_backend_pid()"
            " and datname = current_database() and backend_type = 'client backend'"
        )
        eventually(lambda: conn.execute(sessions).rowcount == 2)
        for _ in range(50):
            seen = conn.execute(sessions).fetchall()
            assert len(seen) == 2
            assert ("Lock",) not in seen
            time.sleep(0.01)
        assert run.poll() is None
        conn.execute("select pg_advisory_unlock(%s)", [LOCK_KEY])
        out, err = run.communicate(timeout=30)
    assert (run.returncode, err) == (0, "")
    assert "applied" in out


# Errors are one line and an exit code


@pytest.mark.parametrize(
    ("database", "said"),
    [
        ("postgresql://me:sesame@127.0.0.1:1/x", "Connection refused"),
        ("postgresql://me:ses/ame@127.0.0.1:1/x", "cannot be read"),
        ("postgresql://me:sesame@127.0.0.1:1/x?sesame=1", "cannot be read"),
        ("postgresql//me:sesame@127.0.0.1", "cannot be read"),
        ("mysql://me:sesame@127.0.0.1/x", "mysql:// is not PostgreSQL"),
        ("", "Connection refused"),
    ],
)
@pytest.mark.once
def test_an_error_is_one_line_without_the_password(database: str, said: str) -> None:
    answer = command("migrate", "--database", database, PGHOST="127.0.0.1", PGPORT="1")
    assert answer.returncode == 1
    assert answer.stdout == ""
    [line] = answer.stderr.splitlines()
    assert said in line
    assert "ses" not in line


@pytest.mark.once
def test_no_database_is_an_error() -> None:
    answer = command("migrate", DATABASE_URL="")
    assert answer.returncode == 1
    assert answer.stderr == "Error: no database: give --database or set DATABASE_URL\n"


def test_no_migrations_is_an_error(empty_dsn: str, tmp_path: Path) -> None:
    package = Path(pgoutbox.__file__).parent
    without = shutil.ignore_patterns("migrations", "demo", "__pycache__")
    shutil.copytree(package, tmp_path / "pgoutbox", ignore=without)
    answer = command("migrate", "--database", empty_dsn, PYTHONPATH=str(tmp_path))
    assert answer.returncode == 1
    assert answer.stderr == (
        "Error: package:pgoutbox:migrations holds no migrations:"
        " this installation is not complete\n"
    )
    assert tables(empty_dsn, "public") == []


def test_a_migration_that_fails_is_named(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn) as conn:
        conn.execute("create view outbox_events as select 1 as something")
    answer = command("migrate", "--database", empty_dsn)
    assert answer.returncode == 1
    [line] = answer.stderr.splitlines()
    assert line.startswith(f"Error: {NAMES[0]}: ")
    with psycopg.connect(empty_dsn) as conn:
        assert conn.execute("select * from yoyo_lock").fetchall() == []
        conn.execute("drop view outbox_events")
    assert migrate(empty_dsn).applied == NAMES


# Roles


@contextmanager
def role(dsn: str, *grants: str) -> Iterator[str]:
    """The URL of a new role with these rights alone."""
    url = urlsplit(dsn)
    database = url.path[1:]
    name = f"{database}_role"
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f'revoke all on database "{database}" from public'.encode())
        admin.execute(f"create role {name} login password 'role'".encode())
        admin.execute(f'grant connect on database "{database}" to {name}'.encode())
        for grant in grants:
            admin.execute(f"grant {grant} to {name}".encode())
    try:
        yield url._replace(netloc=f"{name}:role@{url.netloc.rpartition('@')[2]}").geturl()
    finally:
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(f"drop owned by {name} cascade".encode())
            admin.execute(f"drop role {name}".encode())


def test_it_needs_only_create_on_the_schema(empty_dsn: str) -> None:
    with role(empty_dsn, "usage, create on schema public") as dsn:
        assert migrate(dsn).applied == NAMES
        assert migrate(dsn, "public").applied == []
        assert works(dsn)


def test_without_create_it_says_which_grant_is_missing(empty_dsn: str) -> None:
    with role(empty_dsn, "usage on schema public") as dsn:
        name = urlsplit(dsn).username
        with pytest.raises(MigrateError, match=f'grant create on schema "public" to "{name}"'):
            migrate(dsn)
        with pytest.raises(MigrateError, match="permission denied for database"):
            migrate(dsn, "of_its_own")


# yoyo's lock


@contextmanager
def held_in_mid_migration(
    dsn: str, spawn: Spawn, *arguments: str
) -> Iterator[subprocess.Popen[str]]:
    """A process that waits within the first migration."""
    with psycopg.connect(dsn) as blocker, psycopg.connect(dsn, autocommit=True) as observer:
        blocker.execute("create table outbox_events (x integer)")
        process = spawn(*arguments)
        waiting = (
            "select from pg_stat_activity where wait_event_type = 'Lock'"
            " and datname = current_database()"
        )
        eventually(lambda: observer.execute(waiting).fetchall())
        yield process
        blocker.rollback()
    process.communicate()


def nobody_is_connected(dsn: str) -> bool:
    url = urlsplit(dsn)
    with psycopg.connect(url._replace(path="/postgres").geturl()) as conn:
        query = "select from pg_stat_activity where datname = %s"
        return conn.execute(query, [url.path[1:]]).rowcount == 0


def test_the_lock_of_a_killed_migrate_is_freed(
    empty_dsn: str, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("-m", "pgoutbox", "migrate", "--database", empty_dsn)
    with held_in_mid_migration(empty_dsn, spawn, *arguments) as process:
        process.kill()
    with psycopg.connect(empty_dsn) as conn:
        [(locked, pid)] = conn.execute("select locked, pid from yoyo_lock").fetchall()
        assert locked == 1
        assert pid < 0
        conn.commit()
        # Whoever else is connected.
        monkeypatch.setattr(module, "_may_live", lambda *_: True)
        started = time.monotonic()
        assert migrate(empty_dsn).applied == NAMES
        assert time.monotonic() - started < module.YOYO_LOCK_TIMEOUT / 2
        assert conn.execute("select * from yoyo_lock").fetchall() == []


def test_the_lock_of_a_killed_yoyo_is_freed(empty_dsn: str, spawn: Spawn) -> None:
    url = empty_dsn.replace("postgresql://", "postgresql+psycopg://")
    source = str(ROOT / "migrations")
    arguments = ("-m", "yoyo", "apply", "--batch", "--no-config-file", "--database", url, source)
    with held_in_mid_migration(empty_dsn, spawn, *arguments) as process:
        process.kill()
    with psycopg.connect(empty_dsn) as conn:
        assert conn.execute("select pid from yoyo_lock").fetchall() == [(process.pid,)]
    eventually(lambda: nobody_is_connected(empty_dsn))
    assert migrate(empty_dsn).applied == NAMES


@contextmanager
def yoyo_at_work(dsn: str, pid: int) -> Iterator[psycopg.Connection[Any]]:
    """A session that holds yoyo's lock, for the process with this pid."""
    with psycopg.connect(dsn, autocommit=True) as yoyo:
        yoyo.execute("create table yoyo_lock (locked int primary key, ctime timestamp, pid int)")
        yoyo.execute("insert into yoyo_lock values (1, '2030-01-01', %s)", [pid])
        yield yoyo


def test_the_lock_of_a_live_yoyo_is_respected(
    empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "YOYO_LOCK_TIMEOUT", 0.5)
    with yoyo_at_work(empty_dsn, os.getpid()) as yoyo:
        with pytest.raises(MigrateError, match=f"process {os.getpid()} holds yoyo's lock since"):
            migrate(empty_dsn)
        assert yoyo.execute("select pid from yoyo_lock").fetchall() == [(os.getpid(),)]
        assert "outbox_events" not in tables(empty_dsn, "public")


def test_a_dead_pid_proves_nothing_about_another_machine(
    empty_dsn: str, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "YOYO_LOCK_TIMEOUT", 0.5)
    dead = spawn("-c", "")
    dead.wait()
    with yoyo_at_work(empty_dsn, dead.pid) as yoyo:
        local = "select inet_client_addr() is null or inet_client_addr() << '127.0.0.0/8'"
        if yoyo.execute(local).fetchone() == (True,):
            assert migrate(empty_dsn).applied == NAMES
        else:
            with pytest.raises(MigrateError, match=f"process {dead.pid} holds yoyo's lock"):
                migrate(empty_dsn)


def test_a_live_yoyo_is_waited_for(empty_dsn: str) -> None:
    with yoyo_at_work(empty_dsn, os.getpid()) as yoyo:
        done: list[Migrated] = []
        thread = threading.Thread(target=lambda: done.append(migrate(empty_dsn)))
        thread.start()
        asking = (
            "select from pg_stat_activity where query like '%has_table_privilege%'"
            " and pid <> pg_backend_pid()"
        )
        eventually(lambda: yoyo.execute(asking).fetchall())
        assert not done
        yoyo.execute("delete from yoyo_lock")
        thread.join(30)
    assert done == [Migrated("public", NAMES)]


def test_an_interrupted_migrate_frees_its_locks(empty_dsn: str, spawn: Spawn) -> None:
    arguments = ("-m", "pgoutbox", "migrate", "--database", empty_dsn)
    with held_in_mid_migration(empty_dsn, spawn, *arguments) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
    assert process.returncode == 1
    assert (out, err.strip()) == ("", "Aborted!")
    with psycopg.connect(empty_dsn) as conn:
        assert conn.execute("select * from yoyo_lock").fetchall() == []
