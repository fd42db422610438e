"""Ten thousand events at a time: work that grows with the square of their number does not end in time.

The bound is ten times what linear work takes, or more. The planner is as badly informed as a queue
informs it: statistics say that the tables are empty, or there are none, and nobody analyzes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from concurrency import (
    Connection,
    ack,
    cancel,
    claim,
    configure,
    count,
    enqueue,
    enqueue_many,
    expire,
    extend,
    fail,
    make_due,
    reap,
    redrive,
    release,
)
from conftest import Connect, Databases

N = 10_000
SECONDS = 5
ZERO = timedelta(0)
FAR = "2100-01-01T00:00:00Z"


def events(n: int = N, **columns: Any) -> list[dict[str, Any]]:
    """So many events; a column that is a function is called with the event's number."""
    return [
        {"payload": i} | {name: c(i) if callable(c) else c for name, c in columns.items()}
        for i in range(n)
    ]


def own_key(i: int) -> str:
    return f"k{i}"


def use_everything(conn: Connection) -> None:
    """Go through every function with a few events; none is left."""
    configure(conn, retention=ZERO, backoff_base=ZERO, max_attempts=2)
    enqueue_many(conn, events(2, dedupe_key=own_key))
    enqueue_many(conn, events(2, dedupe_key=own_key, on_duplicate="replace", available_at=FAR))
    enqueue_many(conn, events(4, ordering_key=lambda i: f"k{i % 2}"))
    make_due(conn)
    reap(conn)
    for _ in range(2):
        lease = claim(conn, 100)[0].lease
        extend(conn, lease)
        release(conn, lease)
        fail(conn, claim(conn, 100)[0].lease)
    redrive(conn, [id for (id,) in conn.execute("select id from outbox_dead").fetchall()])
    while rows := claim(conn, 100):
        ack(conn, rows[0].lease)
    enqueue_many(conn, events(2, ordering_key="k"))
    enqueue(conn, max_attempts=1)
    claim(conn, 100)
    expire(conn)
    reap(conn)
    configure(conn, max_attempts=1)
    while rows := claim(conn, 100):
        ack(conn, rows[0].lease)
    enqueue(conn, ordering_key="k", max_attempts=5)
    enqueue(conn, ordering_key="k", max_attempts=5)
    conn.execute(
        "insert into outbox_handovers (topic, ordering_key, turn)"
        " select topic, ordering_key, turn from outbox_turns"
    )
    reap(conn)
    conn.execute("select outbox_next_due()")
    cancel(conn, [id for (id,) in conn.execute("select id from outbox_events").fetchall()])
    conn.execute("delete from outbox_topics")
    assert count(conn, "outbox_events") == count(conn, "outbox_turns") == 0


@pytest.fixture(scope="module")
def never_analyzed(databases: Databases, template: str) -> Iterator[str]:
    with databases.database(template) as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            tables = conn.execute(
                "select oid::regclass::text from pg_class where relkind = 'r' and relname like 'outbox\\_%'"
            ).fetchall()
            for (table,) in tables:
                conn.execute(f"alter table {table} set (autovacuum_enabled = off)")
        yield dsn


@pytest.fixture(scope="module")
def analyzed_empty(databases: Databases, never_analyzed: str) -> Iterator[str]:
    """As a queue is at night: each table has had rows, has none, and was analyzed then."""
    with databases.database(never_analyzed) as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            use_everything(conn)
            conn.execute("vacuum analyze")
        yield dsn


@pytest.fixture(params=["analyzed empty", "never analyzed"])
def dsn(
    request: pytest.FixtureRequest, databases: Databases, never_analyzed: str, analyzed_empty: str
) -> Iterator[str]:
    empty = request.param == "analyzed empty"
    with databases.database(analyzed_empty if empty else never_analyzed) as dsn:
        yield dsn


@pytest.fixture
def conn(connect: Connect, request: pytest.FixtureRequest) -> Connection:
    """A session that cannot run for longer than the bound; in an analyzed queue, its plans are old."""
    conn = connect(autocommit=True)
    if "analyzed empty" in request.node.callspec.params.values():
        use_everything(conn)
    conn.execute(f"set statement_timeout = '{SECONDS}s'")
    return conn


def ready(conn: Connection, **columns: Any) -> None:
    """N events that can be claimed."""
    assert len(enqueue_many(conn, events(**columns))) == N


def leased(conn: Connection, **columns: Any) -> int:
    """The lease of N events in flight."""
    ready(conn, **columns)
    rows = claim(conn, N)
    assert len(rows) == N
    return int(rows[0].lease)


def fastest(function: Callable[[], Any]) -> float:
    """How many seconds the fastest of a few calls takes."""
    times = []
    for _ in range(5):
        begun = time.monotonic()
        function()
        times.append(time.monotonic() - begun)
    return min(times)


# Enqueue and claim ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "columns",
    [
        {"ordering_key": own_key},
        {"ordering_key": own_key, "dedupe_key": own_key},
        {"ordering_key": "k"},
        {"topic": own_key},
        {"topic": own_key, "ordering_key": "k", "available_at": FAR},
    ],
    ids=["own keys", "own dedupe keys", "one key", "own topics", "own topics, keyed, scheduled"],
)
def test_enqueue_many(columns: dict[str, Any], conn: Connection) -> None:
    ready(conn, **columns)
    # Once more: duplicates, or behind those that are there.
    assert len(enqueue_many(conn, events(**columns))) == N


@pytest.mark.parametrize("keyed", [False, True], ids=["unkeyed", "keyed"])
@pytest.mark.parametrize("on_duplicate", ["ignore", "replace", "requeue"])
def test_enqueue_many_of_duplicates(on_duplicate: str, keyed: bool, conn: Connection) -> None:
    columns = {"dedupe_key": own_key} | ({"ordering_key": own_key} if keyed else {})
    lease = leased(conn, **columns)
    fail(conn, lease)
    rows = enqueue_many(conn, events(**columns, on_duplicate=on_duplicate))
    assert [row.changed for row in rows] == [on_duplicate != "ignore"] * N


@pytest.mark.parametrize("keyed", [False, True], ids=["unkeyed", "keyed"])
@pytest.mark.parametrize("due", [False, True], ids=["ready", "due"])
def test_claim(due: bool, keyed: bool, conn: Connection) -> None:
    columns = ({"ordering_key": own_key} if keyed else {}) | ({"available_at": FAR} if due else {})
    ready(conn, **columns)
    make_due(conn)
    assert len(claim(conn, N)) == N


def test_claim_over_suspects_whose_attempts_are_spent(conn: Connection) -> None:
    configure(conn, backoff_base=ZERO, backoff_cap=ZERO)
    leased(conn)
    expire(conn)
    assert reap(conn, N).expired == N
    configure(conn, max_attempts=1)
    enqueue(conn, payload="fresh")
    rows = claim(conn, N) or claim(conn, N)
    assert [row.payload for row in rows] == ["fresh"]
    assert claim(conn, N) == []
    assert count(conn, "outbox_dead") == N


def test_an_idle_claim_beside_due_events_of_a_paused_topic(conn: Connection) -> None:
    for _ in range(10):
        ready(conn, topic="paused", available_at=FAR)
    make_due(conn)
    conn.execute("select outbox_pause('paused')")
    enqueue(conn)
    assert len(claim(conn, N)) == 1
    assert claim(conn, N) == []
    assert fastest(lambda: claim(conn, N)) < 0.02


def test_next_due_over_many_lanes(conn: Connection) -> None:
    enqueue_many(conn, events(1000, topic=own_key))
    assert len(claim(conn, N)) == 1000
    enqueue_many(conn, events(1000, topic=own_key, available_at=FAR))
    ready(conn, available_at=FAR)
    assert fastest(lambda: conn.execute("select outbox_next_due()")) < 0.1


# The end of an attempt ------------------------------------------------------------------------


KEYS = pytest.mark.parametrize(
    "columns",
    [{}, {"ordering_key": own_key}, {"ordering_key": own_key, "followed": True}],
    ids=["unkeyed", "keyed", "keyed, with successors"],
)


def leased_as(conn: Connection, columns: dict[str, Any]) -> int:
    """As leased; with successors, one more event waits behind each."""
    columns = dict(columns)
    followed = columns.pop("followed", False)
    lease = leased(conn, **columns)
    if followed:
        ready(conn, **columns)
    return lease


@KEYS
@pytest.mark.parametrize("retention", [ZERO, timedelta(1)], ids=["kept not", "kept a day"])
def test_ack(retention: timedelta, columns: dict[str, Any], conn: Connection) -> None:
    configure(conn, retention=retention)
    assert len(ack(conn, leased_as(conn, columns))) == N
    assert count(conn, "outbox_ready") == (N if "followed" in columns else 0)
    assert count(conn, "outbox_turns") == (N if "followed" in columns else 0)


def test_ack_by_ids(conn: Connection) -> None:
    lease = leased(conn, ordering_key=own_key)
    ids = [
        id for (id,) in conn.execute("select id from outbox_leases order by random()").fetchall()
    ]
    assert len(ack(conn, lease, ids)) == N


@KEYS
@pytest.mark.parametrize("dead", [False, True], ids=["retry", "dead"])
def test_fail(dead: bool, columns: dict[str, Any], conn: Connection) -> None:
    assert len(fail(conn, leased_as(conn, columns), dead=dead)) == N
    assert count(conn, "outbox_dead" if dead else "outbox_scheduled") == N


@KEYS
def test_extend_and_release(columns: dict[str, Any], conn: Connection) -> None:
    lease = leased_as(conn, columns)
    assert len(extend(conn, lease, lease_for=timedelta(hours=1))) == N
    assert len(release(conn, lease)) == N


@KEYS
def test_cancel(columns: dict[str, Any], conn: Connection) -> None:
    lease = leased_as(conn, columns)
    release(conn, lease)
    ids = [id for (id,) in conn.execute("select id from outbox_ready").fetchall()]
    assert len(cancel(conn, ids)) == N
    assert count(conn, "outbox_turns") == (N if "followed" in columns else 0)


@KEYS
@pytest.mark.parametrize("on_dead", ["skip", "block"])
def test_redrive(on_dead: str, columns: dict[str, Any], conn: Connection) -> None:
    configure(conn, on_dead=on_dead)
    fail(conn, leased_as(conn, columns), dead=True)
    redriven = conn.execute("select outbox_redrive(topic => 't', n => %s)", [N]).fetchall()
    assert len(redriven) == N
    assert count(conn, "outbox_ready") == N


# Housekeeping ---------------------------------------------------------------------------------


@KEYS
@pytest.mark.parametrize("max_attempts", [1, 5], ids=["dead", "retry"])
def test_reap_of_expired_leases(
    max_attempts: int, columns: dict[str, Any], conn: Connection
) -> None:
    configure(conn, max_attempts=max_attempts)
    leased_as(conn, columns)
    expire(conn)
    row = reap(conn, N)
    assert (row.expired, row.dead) == (N, N if max_attempts == 1 else 0)


def test_reap_of_due_and_of_done_events(conn: Connection) -> None:
    for _ in range(2):
        leased(conn, topic="in flight")
    ack(conn, leased(conn))
    ready(conn, available_at=FAR)
    make_due(conn)
    configure(conn, "in flight", retention=ZERO)
    configure(conn, retention=ZERO)
    row = reap(conn, N)
    assert (row.promoted, row.pruned) == (N, N)
