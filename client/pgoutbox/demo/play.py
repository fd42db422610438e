"""The run: a server, a schema, the processes, and what happens to them."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import namedtuple_row
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from pgoutbox import Outbox
from pgoutbox._postgres import postgres_server
from pgoutbox.migrate import migrate

from . import report, shop

PRODUCERS = [f"producer-{number}" for number in range(1, 4)]
WORKERS = [f"worker-{number}" for number in range(1, 5)]
STALLED_AFTER = 15.0  # seconds without a delivery; all that is played takes less


class Failed(Exception):
    """The demo could not be played to its end."""


class BadInput(Exception):
    """The file cannot be sent, and nothing of it was."""


class Staff:
    """The demo's processes. They end with it, however it ends, and `schema` goes with the last."""

    def __init__(self, dsn: str, schema: str) -> None:
        self._dsn, self._schema = dsn, schema
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by close)
        self.start(shop.clean_up, schema)

    def start(self, role: Any, name: str, **job: Any) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", shop.__name__],
            stdin=subprocess.PIPE,
            stdout=self._errors,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # else Ctrl-C would reach them before it is their turn
        )
        self._processes[name] = process
        dsn = make_conninfo(self._dsn, application_name=self.session(name))
        job |= {"role": role.__name__, "name": name, "conninfo": dsn}
        assert process.stdin
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()

    def session(self, name: str) -> str:
        """The application_name of a process, which no other demo has."""
        return f"{self._schema} {name}"

    def send(self, name: str, number: signal.Signals) -> None:
        self._processes[name].send_signal(number)

    def kill(self, name: str) -> None:
        self._processes[name].kill()
        self._end(name)

    def at_work(self, names: Sequence[str]) -> bool:
        """Whether any of `names` has not ended; raises Failed where any process has failed."""
        for name, process in self._processes.items():
            if process.poll():
                self._errors.seek(0)
                raise Failed(
                    f"{name} failed ({process.returncode}):\n{self._errors.read()[-3000:]}"
                )
        return any(self._processes[name].poll() is None for name in names)

    def close(self) -> None:
        for name in [name for name in self._processes if name != self._schema]:
            self.kill(name)
        if self._end(self._schema):
            raise Failed(f"the schema {self._schema} could not be dropped")
        self._errors.close()

    def _end(self, name: str) -> int:
        process = self._processes.pop(name)
        assert process.stdin
        process.stdin.close()
        return process.wait()


class Display:
    """Tells what happens. How far it is stands below in a terminal, else in a line at times."""

    def __init__(self, console: Console, goal: float, unit: str) -> None:
        self._console, self._goal, self._unit = console, goal, unit
        self._began = self._told = time.monotonic()
        live = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(console=console, transient=True) if live else None

    def tell(self, what: str) -> None:
        elapsed = time.monotonic() - self._began
        self._console.print(f"[dim]{elapsed:5.1f} s[/]  {escape(what)}", soft_wrap=not self._live)

    def show(self, now: Any) -> None:
        counts = (
            f"committed {now.committed:,}, delivered {now.delivered:,}, ready {now.ready:,}, "
            f"in flight {now.in_flight:,}, waiting {now.waiting:,}"
        )
        if self._live:
            elapsed = time.monotonic() - self._began
            done = min(elapsed if self._unit == "s" else now.delivered, self._goal)
            bar = Table.grid(padding=(0, 1))
            bar.add_row(
                ProgressBar(self._goal, done, width=40),
                f"{done:,.0f} of {self._goal:,.0f} {self._unit}",
            )
            self._live.update(Group("", bar, counts, now.workers or ""))
            self._live.start()
        elif time.monotonic() - self._told > 2:
            self._told = time.monotonic()
            self.tell(counts)

    def close(self) -> None:
        if self._live:
            self._live.stop()


NOW = """
    with done as (select event, worker from deliveries where ended_at is not null and not failed)
    select
        (select count(*) from orders) + (select count(*) from sent where created) as committed,
        (select count(distinct event) from done) as delivered,
        (
            select string_agg(format('%s: %s', worker, events), ', ' order by worker)
            from (select worker, count(*) as events from done group by worker) as w
        ) as workers,
        coalesce(sum(ready), 0) as ready,
        coalesce(sum(processing + expired), 0) as in_flight,
        coalesce(sum(retry + scheduled + blocked), 0) as waiting
    from outbox_stats
"""


class Play:
    """What happens while the producers send and the workers deliver."""

    def __init__(self, conn: psycopg.Connection[Any], staff: Staff, display: Display) -> None:
        self._conn, self._staff, self._display = conn, staff, display
        self._workers = WORKERS.copy()
        self._hired, self._held = len(WORKERS), 0

    def run(self, producer: Any, jobs: Sequence[dict[str, Any]], kill_after: float | None) -> None:
        """Play until all is delivered, or nothing moves; `kill_after`: the shop with its drama."""
        for name in self._workers:
            self._staff.start(shop.deliver, name, ships=kill_after is not None)
        while self._sessions(self._workers) < len(self._workers):
            self._staff.at_work(self._workers)
            time.sleep(0.05)
        self._display.tell(
            f"{len(PRODUCERS)} producers: {'line' if kill_after is None else 'order'} and event "
            f"in one transaction; {len(WORKERS)} workers deliver"
        )
        for name, job in zip(PRODUCERS, jobs, strict=True):
            self._staff.start(producer, name, **job)
        began = moved = time.monotonic()
        delivered, producing = 0, True
        while producing or (self._left() and time.monotonic() - moved < STALLED_AFTER):
            time.sleep(0.05)
            now = self._one(NOW)
            self._display.show(now)
            if producing or now.delivered > delivered:
                delivered, moved = now.delivered, time.monotonic()
            if producing and not self._staff.at_work(PRODUCERS):
                producing = False
                self._display.tell(
                    f"the producers have ended, {now.committed - delivered} events left"
                )
            if kill_after is not None:
                if time.monotonic() - began > kill_after and not self._held:
                    self._kill_in_mid_batch()
                self._redrive()
        for name in self._workers:
            self._staff.send(name, signal.SIGTERM)
        while self._staff.at_work(self._workers):
            time.sleep(0.02)
        self._display.tell("the workers have stopped")

    def _kill_in_mid_batch(self) -> None:
        """SIGKILL a worker when one is at an event of its batch and has others to go.

        Not with a retry among them, lest the poison event dies of a lost lease.
        """
        busy = self._conn.execute(
            "select locked_by from outbox_event_status where status = 'processing' "
            "group by locked_by having count(*) > 2 and max(attempts) = 1 and locked_by in "
            "(select worker from deliveries where ended_at is null) order by count(*) desc limit 1"
        ).fetchone()
        if busy is None:
            return
        self._staff.kill(busy[0])
        # What it sent last may take effect until its server process has noticed.
        while self._sessions(busy):
            time.sleep(0.02)
        self._held += self._conn.execute(
            "insert into held select id, attempts, locked_by, lease_expires_at "
            "from outbox_event_status where locked_by = %s and status = 'processing'",
            busy,
        ).rowcount
        self._workers.remove(busy[0])
        self._hired += 1
        self._workers.append(f"worker-{self._hired}")
        self._staff.start(shop.deliver, self._workers[-1], ships=True)
        self._display.tell(f"{busy[0]} is killed with SIGKILL while it holds {self._held} events")
        self._display.tell(f"{self._workers[-1]} takes its place")

    def _redrive(self) -> None:
        """What an operator does about dead letters: mend what the error says, and redrive."""
        dead = self._conn.execute(
            "insert into dead select id, attempts, "
            r"regexp_replace(rtrim(coalesce(last_error, ''), E'\n'), '.*\n', '') "
            "from outbox_dead_letters "
            "on conflict do nothing returning event, attempts, reason"
        ).fetchall()
        for event, attempts, reason in dead:
            self._display.tell(f"event {event} is dead after {attempts} attempts: {reason}")
            mended = self._conn.execute(
                "update orders set address = '1 Main Street' where address is null and id::text = "
                "(select dedupe_key from outbox_events where id = %s)",
                [event],
            )
            if mended.rowcount and Outbox(self._conn).redrive([event]):
                self._conn.execute("update dead set redriven = true where event = %s", [event])
                self._display.tell(f"its order has an address now: event {event} is redriven")

    def _left(self) -> bool:
        [figure] = report.figures(self._conn, {"left": report.LEFT})
        return not figure.kept

    def _sessions(self, names: Sequence[str]) -> int:
        """How many of these processes are connected."""
        sessions = [self._staff.session(name) for name in names]
        return self._conn.execute(
            "select distinct application_name from pg_stat_activity "
            "where application_name = any (%s)",
            [sessions],
        ).rowcount

    def _one(self, query: str, *arguments: Any) -> Any:
        with self._conn.cursor(row_factory=namedtuple_row) as cursor:
            return cursor.execute(query.encode(), arguments or None).fetchone()


def play(
    console: Console, seconds: float, lines: Sequence[tuple[int, str]] | None
) -> list[report.Figure]:
    """Play the shop for `seconds`, or send the numbered `lines`; answers what was found."""
    schema = f"pgoutbox_demo_{secrets.token_hex(4)}"
    with ExitStack() as stack:
        settings = {"track_commit_timestamp": "on"}
        named = os.environ.get("OUTBOX_DSN") or None
        server = stack.enter_context(postgres_server(dsn=named, settings=settings))
        console.print(server.label)
        if named:
            console.print(f"schema {schema}, which is dropped again at the end")
        options = f"{conninfo_to_dict(server.dsn).get('options') or ''} -csearch_path={schema}"
        dsn = make_conninfo(server.dsn, options=options.strip())
        staff = stack.enter_context(closing(Staff(dsn, schema)))
        migrate(server.dsn, schema)
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        conn.execute(shop.TABLES)
        conn.execute(report.VIEWS)
        goal, unit = (seconds, "s") if lines is None else (len(lines), "events")
        display = stack.enter_context(closing(Display(console, goal, unit)))
        show = Play(conn, staff, display)
        if lines is None:
            Outbox(conn).configure(
                "order.placed",
                max_attempts=4,
                lease_for=timedelta(seconds=4),
                backoff_base=timedelta(seconds=0.4),
                backoff_cap=timedelta(seconds=2),
            )
            show.run(shop.produce, [{"seconds": seconds}] * len(PRODUCERS), seconds / 4)
        else:
            load(conn, lines)
            parts = [{"part": part, "parts": len(PRODUCERS)} for part in range(len(PRODUCERS))]
            show.run(shop.send, parts, None)
        return report.figures(conn, report.SHOP if lines is None else report.FILE)


def load(conn: psycopg.Connection[Any], lines: Sequence[tuple[int, str]]) -> None:
    """Keep the lines for the producers; raises BadInput for one that the queue would refuse."""
    with conn.transaction(force_rollback=True):
        for number, text in lines:
            try:
                conn.execute("select outbox_enqueue_many(jsonb_build_array(%s::jsonb))", [text])
            except psycopg.DataError as error:
                fault = str(error.diag.message_primary).removeprefix("event 1").lstrip(": ")
                raise BadInput(f"line {number}: {fault}") from error
    with conn.cursor() as cursor, cursor.copy("copy lines from stdin") as copy:
        for line in lines:
            copy.write_row(line)
