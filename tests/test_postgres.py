"""The servers that the demo and the tests bring up, and that nothing is left of them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from pgoutbox import _postgres
from pgoutbox._postgres import (
    WAYS,
    Cluster,
    Server,
    ServerNotFound,
    postgres_server,
    program_folders,
)

pytestmark = pytest.mark.once

# Starts a server, tells about it, forks a child that outlives it, and waits to be killed.
PARENT = """
import os, sys, time
from pgoutbox._postgres import postgres_server
with postgres_server(ways=["local", "embedded"]) as server:
    if os.fork() == 0:
        time.sleep(20)
        os._exit(0)
    print(server.folder, server.process.pid, flush=True)
    time.sleep(60)
"""


@pytest.fixture(params=["local", "embedded"])
def way(request: pytest.FixtureRequest) -> str:
    if request.param == "local" and not Path("/usr/lib/postgresql").exists():
        pytest.skip("no PostgreSQL of Debian's on this machine")
    return str(request.param)


def _setting(server: Server, name: str) -> str:
    with psycopg.connect(server.dsn) as conn:
        row = conn.execute("select current_setting(%s)", [name]).fetchone()
        assert row
        return str(row[0])


def _eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_server_lives_as_long_as_its_context(way: str) -> None:
    with postgres_server(ways=[way], settings={"max_connections": "7"}) as server:
        assert isinstance(server, Cluster)
        assert server.bindir
        assert server.label.startswith("PostgreSQL ")
        assert _setting(server, "max_connections") == "7"
        assert _setting(server, "listen_addresses") == "127.0.0.1"
        assert _setting(server, "fsync") == "on"
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(server.dsn)
    assert not server.folder.exists()


def test_a_server_may_do_without_its_disk() -> None:
    with postgres_server(ways=["local", "embedded"], durable=False) as server:
        assert isinstance(server, Cluster)
        assert _setting(server, "fsync") == "off"
        data = (server.folder / "data").resolve()
        assert data.exists()
    assert not data.exists()


def test_a_crashed_server_comes_back_at_the_same_place_with_its_data(cluster: Cluster) -> None:
    with psycopg.connect(cluster.dsn, autocommit=True) as conn:
        conn.execute("create table kept as select 1 as one")
        cluster.stop(immediate=True)
        with pytest.raises(psycopg.OperationalError):
            conn.execute("select")
    cluster.start()
    with psycopg.connect(cluster.dsn) as conn:
        assert conn.execute("select one from kept").fetchall() == [(1,)]


def test_a_port_that_is_taken_meanwhile_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    find = _postgres._free_port
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1]])
        monkeypatch.setattr(_postgres, "_free_port", lambda: next(ports, None) or find())
        with postgres_server() as server:
            assert _setting(server, "port") not in ("", str(taken.getsockname()[1]))


def test_a_server_that_cannot_start_shows_its_log() -> None:
    with (
        pytest.raises(RuntimeError, match="no_such_setting"),
        postgres_server(settings={"no_such_setting": "1"}),
    ):
        pass


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        try:
            yield parent
        finally:
            # The session holds the parent and its forked child, and neither server nor watchdog.
            with suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)


def _told(parent: subprocess.Popen[str]) -> tuple[Path, Path]:
    """The server's folder and its entry in /proc."""
    assert parent.stdout
    folder, pid = parent.stdout.readline().split()
    return Path(folder), Path("/proc", pid)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what still runs")
def test_a_killed_process_leaves_neither_server_nor_folder(parent: subprocess.Popen[str]) -> None:
    folder, process = _told(parent)
    assert folder.exists()
    assert process.exists()
    parent.kill()
    assert _eventually(lambda: not folder.exists())
    assert _eventually(lambda: not process.exists() or "Z" in (process / "stat").read_text())


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what still runs")
def test_what_a_killed_watchdog_leaves_is_removed_at_the_next_start(
    parent: subprocess.Popen[str],
) -> None:
    folder, process = _told(parent)
    watchdog = next(
        int(entry.parent.name)
        for entry in Path("/proc").glob("[0-9]*/cmdline")
        if str(folder).encode() in entry.read_bytes().split(b"\0")
        and b"_postgres.py" in entry.read_bytes()
    )
    os.kill(watchdog, signal.SIGKILL)
    os.killpg(parent.pid, signal.SIGKILL)
    parent.wait()
    assert process.exists()
    os.utime(folder / "lock", (0, 0))
    with postgres_server(ways=["local", "embedded"]):
        assert not folder.exists()
    assert _eventually(lambda: not process.exists() or "Z" in (process / "stat").read_text())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's servers run as somebody else")
def test_programs_that_nobody_can_reach_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded = program_folders()[-1]
    package = embedded.parent.parent
    tmp_path.chmod(0o700)
    shutil.copytree(package, tmp_path / package.name)
    for libraries in package.parent.glob(f"{package.name}.libs"):
        shutil.copytree(libraries, tmp_path / libraries.name)
    hidden = tmp_path / package.name / embedded.relative_to(package)
    monkeypatch.setattr(_postgres, "_embedded_folder", lambda: hidden)
    with postgres_server(ways=["embedded"]) as server:
        assert isinstance(server, Cluster)
        assert server.bindir
        assert server.folder in server.bindir.parents
        assert _setting(server, "fsync") == "on"


def test_a_named_server_is_taken_as_it_is(server: Server) -> None:
    with postgres_server(dsn=server.dsn, ways=[]) as named:
        assert named.dsn == server.dsn
        assert named.bindir is None
    with psycopg.connect(server.dsn):
        pass


def test_where_no_way_is_open_the_error_names_all_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_postgres, "_embedded_folder", lambda: None)
    with pytest.raises(ServerNotFound) as error, postgres_server(ways=["embedded"]):
        pass
    for remedy in WAYS.values():
        assert remedy in str(error.value)
