"""Every code block of the README is run, in its order, in one database."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from conftest import ROOT, Databases
from pgoutbox import Outbox
from pgoutbox.worker import Worker
from psycopg import sql

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
LEASE = "4466180620288"  # as the README shows it


def blocks(language: str) -> list[str]:
    return [text for name, text in BLOCKS if name == language]


@pytest.fixture
def roles(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """Roles are the server's, not the database's: those that the README makes are dropped."""
    yield
    for role in re.findall(r"create role (\w+)", README):
        conn.execute(sql.SQL("drop owned by {}").format(sql.Identifier(role)))
        conn.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))


def test_the_readme_has_no_block_that_is_not_run() -> None:
    assert {name for name, _ in BLOCKS} == {"sh", "sql", "python", "text"}


@pytest.mark.usefixtures("roles")
def test_sql_and_python(
    dsn: str, conn: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", dsn)
    shown = next(text for text in blocks("text") if LEASE in text)
    lease = LEASE
    worker: Worker | None = None
    for language, text in BLOCKS:
        if language == "sql":
            cursor = conn.execute(text.replace(LEASE, lease).encode())
            if "from outbox_claim('worker-1', 10)" in text:
                row = cursor.fetchone()
                assert row is not None
                assert cursor.description is not None
                assert [column.name for column in cursor.description] == (
                    shown.splitlines()[0].replace("|", " ").split()
                )
                lease = str(row[0])
        elif language == "python":
            names: dict[str, object] = {}
            exec(compile(text, "README.md", "exec"), names)
            if isinstance(found := names.get("worker"), Worker):
                worker = found
    # The event of the claim was failed, so its ack answers nothing: both ways are shown.
    assert worker is not None
    statuses = "select dedupe_key, status from outbox_event_status where topic = 'order.created'"
    assert dict(conn.execute(statuses.encode())) == {"order-1": "retry", "order-2": "pending"}
    conn.execute("update outbox_scheduled set available_at = clock_timestamp()")
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        while Outbox(conn).next_due(["order.created"]) is not None:
            time.sleep(0.01)
    finally:
        worker.stop()
        thread.join()
    assert dict(conn.execute(statuses.encode())) == {"order-1": "done", "order-2": "done"}


@pytest.mark.once
def test_shell(databases: Databases) -> None:
    for line in "".join(blocks("sh")).splitlines():
        command = line.split("#")[0].strip() if not line.startswith("yoyo") else line
        with databases.database() as dsn:
            if command.startswith("make "):
                # They are what runs this test; what they are made of is tested by itself.
                subprocess.run([*command.split(), "--dry-run"], cwd=ROOT, check=True)
            elif command == "pip install pgoutbox":
                assert 'name = "pgoutbox"' in (ROOT / "pyproject.toml").read_text()
            elif command:
                environment = os.environ | {
                    "DATABASE_URL": dsn,
                    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                }
                subprocess.run(["sh", "-ec", command], cwd=ROOT, env=environment, check=True)
                schema = re.search(r"--schema (\w+)", command)
                search_path = f"?options=-csearch_path%3D{schema[1]}" if schema else ""
                with psycopg.connect(dsn + search_path) as conn:
                    assert Outbox(conn).version()


def test_every_function_of_the_kit_is_in_the_readme(conn: psycopg.Connection[Any]) -> None:
    """What a role may be granted is told: the comment of all else begins with Internal."""
    told = set(re.findall(r"\boutbox_\w+", README))
    named = conn.execute(
        "select distinct proname from pg_proc where pronamespace = 'public'::regnamespace"
        " and proname like 'outbox%' and obj_description(oid, 'pg_proc') not like 'Internal.%'"
    ).fetchall()
    assert {name for (name,) in named} <= told


def test_links_to_files_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not urlsplit(target).scheme:
            assert (ROOT / target).exists(), target
