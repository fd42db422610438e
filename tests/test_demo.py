"""The demo: what it finds when all is well, what it says when it is not, and what it leaves."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pgoutbox.demo import __main__ as demo
from pgoutbox.demo import play, report

# It takes long, and what it shows of the server is shown by the other tests.
pytestmark = pytest.mark.once

SHOP = ["--seconds", "3"]


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch, empty_dsn: str) -> Iterator[None]:
    """The demo plays in an empty database, and leaves it so."""
    monkeypatch.setenv("OUTBOX_DSN", empty_dsn)
    yield
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        deadline = time.monotonic() + 20
        while True:
            schemas = conn.execute(
                "select nspname from pg_namespace where nspname ~ 'demo'"
            ).fetchall()
            sessions = conn.execute(
                "select application_name from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            ).fetchall()
            if not schemas and not sessions:
                return
            assert time.monotonic() < deadline, (schemas, sessions)
            time.sleep(0.1)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, dict[str, str]]]:
    """Runs the demo in this process: its exit code, its output, and its table by name."""

    def run(*arguments: str) -> tuple[int, str, dict[str, str]]:
        code = demo.main(arguments)
        captured = capsys.readouterr()
        rows = re.findall(r"^ ([a-z][a-z0-9, -]*?)  +(\S.*?) *$", captured.out, re.MULTILINE)
        return code, captured.out + captured.err, dict(rows)

    return run


Tamper = Callable[[Sequence[tuple[str, str]]], list[str]]


@pytest.fixture
def tamper(monkeypatch: pytest.MonkeyPatch) -> Tamper:
    """Makes the demo report on tampered records, the last of which is what it prints.

    Each statement is to break the promise named before it; answers those that it did not break.
    """

    def tamper(statements: Sequence[tuple[str, str]]) -> list[str]:
        unbroken = [name for name, _ in statements]
        figures = report.figures

        def tampered(conn: psycopg.Connection[Any], queries: dict[str, str]) -> list[report.Figure]:
            found = figures(conn, queries)
            if len(queries) > 1:
                for name, statement in statements:
                    with conn.transaction(force_rollback=True):
                        conn.execute(statement.encode())
                        found = figures(conn, queries)
                    if name in [figure.name for figure in found if figure.kept is False]:
                        unbroken.remove(name)
            return found

        monkeypatch.setattr(report, "figures", tampered)
        return unbroken

    return tamper


def test_the_shop_keeps_every_promise(run: Any) -> None:
    code, output, table = run(*SHOP)
    assert code == 0, output
    orders = int(table["orders committed"].split()[0].replace(",", ""))
    assert orders > 25
    assert table["orders committed"].split()[1] == "kept"
    assert table["events delivered"].split()[0] == f"{orders:,}"
    for name in ("lost", "left in the queue", "delivered, not committed", "under two live leases"):
        assert table[name] == "0   kept"
    held = re.search(r"held (\d+) events", table["killed in mid-batch"])
    assert held
    assert int(held[1]) > 0
    assert table["re-delivered"].split()[0] == held[1]
    assert table["dead"] == "1   kept      ValueError: no address"
    assert table["redriven"].startswith("1   kept")
    assert {"throughput", "commit to delivery, p50", "commit to delivery, p99"} <= table.keys()
    assert "is dead after 4 attempts: ValueError: no address" in output
    assert "takes its place" in output


def test_each_promise_of_the_shop_can_break(run: Any, tamper: Tamper) -> None:
    again = (
        "insert into deliveries (event, lease, attempt, worker, payload, delivered_at, ended_at)"
        " select event, lease + 1, attempt + 1, worker, payload"
    )
    unbroken = tamper(
        [
            ("orders committed", "update producers set committed = committed + 1"),
            (
                "delivered, not committed",
                "delete from orders where id = (select max(id) from orders)",
            ),
            ("left in the queue", "select outbox_enqueue('order.placed', '{}')"),
            (
                "under two live leases",
                f"{again}, delivered_at + (ended_at - delivered_at) / 2, ended_at"
                " from deliveries where ended_at is not null limit 1",
            ),
            ("under two live leases", "update held set lease_expires_at = clock_timestamp()"),
            ("killed in mid-batch", "delete from held"),
            (
                "re-delivered",
                f"{again}, clock_timestamp(), clock_timestamp()"
                " from deliveries where event not in (select event from held) limit 1",
            ),
            ("dead", "update dead set attempts = 9"),
            ("redriven", "update dead set redriven = false"),
            ("lost", "delete from deliveries where event = (select max(event) from deliveries)"),
        ]
    )
    code, output, table = run(*SHOP)
    assert unbroken == []
    assert code == 1
    assert table["lost"].split()[:2] == ["1", "BROKEN"]
    assert re.search(r"^BROKEN: lost 1 such as order \d+$", output, re.MULTILINE)


def lines(*events: Any) -> str:
    return "\n".join(json.dumps(event, ensure_ascii=False) for event in events)


def test_a_file(run: Any, tamper: Tamper, tmp_path: Path) -> None:
    ahead = datetime.now(timezone.utc) + timedelta(seconds=2)
    events = [
        {
            "topic": "a",
            "payload": {"n": number, "text": '\u2028 \\ " ü'},
            "ordering_key": f"key {number % 3}",
            "priority": number % 5,
        }
        for number in range(60)
    ]
    events += [{"topic": topic, "payload": None, "dedupe_key": "once"} for topic in "bbbc"]
    events += [
        {
            "topic": "d",
            "payload": [True, 1, "", {}],
            "headers": {"h": [1]},
            "available_at": ahead.isoformat(),
            "max_attempts": 1,
        },
        {"topic": "e", "payload": 1, "ordering_key": "k", "available_at": "2999-01-31T12:00:00Z"},
        {"topic": "e", "payload": 2, "ordering_key": "k"},
        {"topic": "e", "payload": 3, "ordering_key": None, "available_at": "1999-01-31T12:00:00Z"},
    ]
    numbers = '{"topic": "numbers", "payload": [1e400, 0.1000000000000000000000000001, -0, 1E-9]}'
    file = tmp_path / "events.jsonl"
    file.write_text(lines(*events) + f"\n\n{numbers}")
    code, output, table = run("--input", str(file))
    assert code == 0, output
    assert table["lines in the file"] == "69"
    assert table["duplicates"].split()[0] == "2"
    assert table["not due yet"].split()[0] == "2"
    assert table["events delivered"].split()[0] == "65"
    for name in ("lost", "left in the queue", "under two live leases", "re-delivered"):
        assert table[name] == "0   kept"
    assert table["changed payloads"].split()[:2] == ["0", "kept"]
    assert table["out of order"] == "0   kept      in 3 ordering keys"

    unbroken = tamper(
        [
            ("lost", "delete from deliveries where event = (select max(event) from deliveries)"),
            (
                "out of order",
                "update deliveries set delivered_at = '2000-01-01'"
                " where event = (select max(id) from outbox_events where topic = 'a')",
            ),
            (
                "changed payloads",
                "update deliveries set payload = 'true'"
                " where number = (select max(number) from deliveries)",
            ),
        ]
    )
    code, output, table = run("--input", str(file))
    assert unbroken == []
    assert code == 1
    assert table["changed payloads"].split()[:2] == ["1", "BROKEN"]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "line 2: Expecting"),
        ("[]", "line 2: is not a JSON object"),
        ('{"topic": "t", "payload": 1, "colour": 2}', "line 2: has an unknown key 'colour'"),
        ('{"topic": "t", "payload": 1, "on_duplicate": "replace"}', "line 2: has an unknown key"),
        ('{"topic": "t"}', "line 2: has no payload"),
        ('{"payload": 1}', "line 2: has no topic"),
        ('{"topic": "", "payload": 1}', "line 2: topic"),
        ('{"topic": "t", "payload": "\\u0000"}', "line 2: "),
        ('{"topic": "t", "payload": NaN}', "line 2: "),
        ('{"topic": "t", "payload": "\xff"}', "line 2: "),
        ('{"topic": "t", "payload": 1, "priority": 11}', "line 2: priority"),
        ('{"topic": "t", "payload": 1, "available_at": "soon"}', 'line 2: has "soon"'),
    ],
)
def test_a_bad_line_is_named_before_anything_is_sent(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, fault: str
) -> None:
    def run_play(*_: object) -> None:
        pytest.fail("was sent")

    monkeypatch.setattr(play.Play, "run", run_play)
    file = tmp_path / "events.jsonl"
    file.write_bytes(b'{"topic": "t", "payload": 1}\n' + line.encode("latin-1") + b"\n")
    code, output, _ = run("--input", str(file))
    assert code == 2
    message = output.splitlines()[-1]
    assert message.startswith(f"{file}: {fault}"), output


@pytest.mark.parametrize(("content", "fault"), [(None, "No such file"), (b"\n", "has no events")])
def test_a_file_that_is_none(run: Any, tmp_path: Path, content: bytes | None, fault: str) -> None:
    file = tmp_path / "events.jsonl"
    if content is not None:
        file.write_bytes(content)
    code, output, _ = run("--input", str(file))
    assert (code, output.count("\n")) == (2, 1)
    assert output.startswith(f"{file}: {fault}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_demo_leaves_nothing(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "pgoutbox.demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout
    for line in process.stdout:
        if "in one transaction" in line:
            break
    time.sleep(1)  # in the middle of things, whichever
    os.killpg(process.pid, number)
    output = process.communicate()[0]
    expected = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}
    assert process.returncode == expected[number], output
    assert "Traceback" not in output


def test_a_server_of_its_own(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OUTBOX_DSN")
    file = tmp_path / "events.jsonl"
    file.write_text(lines({"topic": "t", "payload": 1}))
    code, output, table = run("--input", str(file))
    assert code == 0, output
    assert table["events delivered"].split()[0] == "1"
    port = re.search(r"^PostgreSQL .* 127\.0\.0\.1:(\d+)$", output, re.MULTILINE)
    assert port, output
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(f"postgresql://postgres@127.0.0.1:{port[1]}/postgres")


def test_a_server_that_cannot_be_used(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_DSN", "postgresql://nobody@127.0.0.1:1/nothing")
    code, output, _ = run()
    assert code == 1
    assert "Connection refused" in output
