"""What the processes of the demo do.

`python -m pgoutbox.demo.shop` reads its job, a line of JSON, from its standard input; the end of
that input is the end of the demo.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time

import psycopg
from psycopg.types.json import set_json_loads

from pgoutbox import Delivery, Outbox
from pgoutbox.worker import Retry, Worker

TABLES = """
    create table orders (
        id bigint generated always as identity primary key,
        address text
    );
    create table producers (name text primary key, committed integer, rolled_back integer);
    create table lines (line integer primary key, event jsonb not null);
    create table sent (line integer primary key, event bigint not null, created boolean not null);
    create table deliveries (
        number bigint generated always as identity primary key,
        event bigint not null,
        lease bigint not null,
        attempt integer not null,
        worker text not null,
        payload jsonb not null,
        delivered_at timestamptz not null default clock_timestamp(),
        ended_at timestamptz,
        failed boolean not null default false
    );
    create index on deliveries (event);
    create table dead (
        event bigint primary key,
        attempts integer not null,
        reason text not null,
        redriven boolean not null default false
    );
    create table held (event bigint, attempt integer, worker text, lease_expires_at timestamptz);
"""


def produce(conninfo: str, name: str, seconds: float) -> None:
    """Place orders, each with its event in one transaction; what is declined never happened."""
    committed = rolled_back = 0
    end = time.monotonic() + seconds
    with psycopg.connect(conninfo, autocommit=True) as conn:
        while time.monotonic() < end:
            poison = name == "producer-1" and committed == 25
            declined = not poison and random.random() < 0.05
            address = None if poison else f"{random.randrange(1, 200)} Main Street"
            with conn.transaction(force_rollback=declined):
                order = conn.execute(
                    "insert into orders (address) values (%s) returning id", [address]
                ).fetchone()
                assert order
                Outbox(conn).enqueue("order.placed", {"order": order[0]}, dedupe_key=str(order[0]))
            rolled_back += declined
            committed += not declined
            if random.random() < 0.05:  # customers come in waves
                time.sleep(random.uniform(0.1, 0.4))
        conn.execute("insert into producers values (%s, %s, %s)", [name, committed, rolled_back])


def send(conninfo: str, name: str, part: int, parts: int) -> None:
    """Enqueue this producer's part of the file's lines, each in its own transaction.

    The lines of one ordering key belong to one producer: only so does their order mean anything.
    """
    with psycopg.connect(conninfo, autocommit=True) as conn:
        lines = conn.execute(
            "select line from lines where abs(mod(hashtext(coalesce("
            "event ->> 'topic' || ' ' || (event ->> 'ordering_key'), line::text)), %s)) = %s "
            "order by line",
            [parts, part],
        ).fetchall()
        for line in lines:
            # In SQL, for the payload to arrive as it stands in the file, whatever its numbers.
            conn.execute(
                "insert into sent select l.line, e.id, e.created from lines as l "
                "cross join outbox_enqueue_many(jsonb_build_array(l.event)) as e "
                "where l.line = %s",
                line,
            )


class Handler:
    """Records each delivery before and after the work, so that the promises can be checked."""

    def __init__(self, conninfo: str, name: str, ships: bool) -> None:
        self._conninfo, self._name, self._ships = conninfo, name, ships
        self._local = threading.local()

    def __call__(self, delivery: Delivery) -> None:
        conn = self._connection()
        number = conn.execute(
            "insert into deliveries (event, lease, attempt, worker, payload) "
            "values (%s, %s, %s, %s, %s) returning number",
            [delivery.id, delivery.lease, delivery.attempt, self._name, delivery.payload],
        ).fetchone()
        failed = True
        try:
            if self._ships:
                self._ship(conn, json.loads(delivery.payload)["order"], delivery.attempt)
            failed = False
        finally:
            conn.execute(
                "update deliveries set ended_at = clock_timestamp(), failed = %s where number = %s",
                [failed, *(number or ())],
            )

    def _ship(self, conn: psycopg.Connection, order: int, attempt: int) -> None:
        row = conn.execute("select address from orders where id = %s", [order]).fetchone()
        assert row, f"order {order} does not exist"
        time.sleep(random.uniform(0.002, 0.008))
        if order % 29 == 0 and attempt == 1:
            raise ConnectionError("the carrier's server answered 503")
        if order % 31 == 0 and attempt == 1:
            raise Retry(after=1.0)
        if row[0] is None:
            raise ValueError("no address")

    def _connection(self) -> psycopg.Connection:
        if not hasattr(self._local, "conn"):
            self._local.conn = psycopg.connect(self._conninfo, autocommit=True)
        return self._local.conn  # type: ignore[no-any-return]


def deliver(conninfo: str, name: str, ships: bool) -> None:
    """Deliver events until SIGTERM."""
    # A payload is recorded as the text that came: decoding it would round its numbers.
    set_json_loads(lambda text: text if isinstance(text, str) else bytes(text).decode())
    handler = Handler(conninfo, name, ships)
    Worker(conninfo, handler, name=name, concurrency=2, batch=10, poll_interval=0.05).run()


def clean_up(conninfo: str, name: str) -> None:
    """Drop the schema `name` once the demo has ended, in whichever way."""
    while os.read(0, 1):
        pass
    for attempt in range(5):
        try:
            with psycopg.connect(conninfo) as conn:
                conn.execute(f'drop schema if exists "{name}" cascade')
            return
        except psycopg.errors.DeadlockDetected:
            # The last statement of a killed process may still run.
            if attempt == 4:
                raise


def _end_with_the_demo() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    job = json.loads(sys.stdin.readline())
    role = {f.__name__: f for f in (produce, send, deliver, clean_up)}[job.pop("role")]
    if role is not clean_up:
        threading.Thread(target=_end_with_the_demo, daemon=True).start()
    role(**job)
