"""Ten thousand events at a time: work that grows with the square of their number does not end in time.

Linear work takes a tenth of the bound. The planner is as badly informed as a queue informs it:
statistics say that the tables are empty, or there are none, and nobody analyzes.
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
    ids,
    make_due,
    reap,
    redrive,
    release,
)
from conftest import Connect, Databases
from psycopg.types.json import Jsonb

N = 10_000
BOUND = "5s"
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
                "select oid::regclass::text from pg_class"
                " where relkind = 'r' and relname like 'outbox\\_%'"
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


NEW, OLD, NEVER = "analyzed empty, new session", "analyzed empty, old session", "never analyzed"


@pytest.fixture(params=[NEW, OLD])
def state(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def dsn(
    state: str, databases: Databases, never_analyzed: str, analyzed_empty: str
) -> Iterator[str]:
    template = never_analyzed if state == NEVER else analyzed_empty
    with databases.database(template) as dsn:
        yield dsn


@pytest.fixture
def conn(state: str, connect: Connect) -> Connection:
    """A session none of whose statements may take longer than the bound.

    An old session has made its plans while the tables were empty.
    """
    conn = connect(autocommit=True)
    if state == OLD:
        use_everything(conn)
    conn.execute(f"set statement_timeout = '{BOUND}'")
    return conn


def answers(conn: Connection, call: str, *arguments: Any) -> int:
    """How many rows a call answers: to fetch them would take longer than the call."""
    (rows,) = conn.execute(f"select count(*) from {call}", arguments).fetchone() or (0,)
    return int(rows)


def ready(conn: Connection, n: int = N, **columns: Any) -> None:
    """Enqueue so many events."""
    made = Jsonb([{"topic": "t"} | event for event in events(n, **columns)])
    assert answers(conn, "outbox_enqueue_many(%s)", made) == n


def insert(conn: Connection, n: int, topic: str, available_at: str | None = None) -> None:
    """Enqueue through the bulk door."""
    conn.execute(
        "insert into outbox_events (topic, payload, available_at)"
        " select %s, '1', %s from generate_series(1, %s)",
        [topic, available_at, n],
    )


def claimed(conn: Connection, n: int = N) -> int:
    """The lease of the events that one claim gets, so many."""
    lease, rows = conn.execute(
        "select min(lease), count(*) from outbox_claim('test', %s)", [n]
    ).fetchone() or (0, 0)
    assert rows == n
    return int(lease)


def cancelled(conn: Connection, table: str) -> int:
    """How many events a cancel of all in the table removes."""
    return answers(conn, f"outbox_cancel(array(select id from {table} order by random()))")


def fastest(function: Callable[[], Any]) -> float:
    """How many seconds the fastest of a few calls takes."""
    times = []
    for _ in range(5):
        begun = time.monotonic()
        function()
        times.append(time.monotonic() - begun)
    return min(times)


@pytest.mark.parametrize(
    "columns",
    [
        {"topic": own_key, "ordering_key": "k", "available_at": FAR},
        {"ordering_key": own_key, "dedupe_key": own_key},
        {"ordering_key": own_key},
    ],
    ids=["own topics, keyed, scheduled", "own keys, twice", "own keys"],
)
def test_enqueue_many(columns: dict[str, Any], conn: Connection) -> None:
    ready(conn, **columns)
    # Once more: duplicates, or behind those that are there.
    ready(conn, **columns)


def test_enqueue_many_of_new_topics(conn: Connection) -> None:
    insert(conn, 5 * N, "t")
    ready(conn, topic=own_key)


@pytest.mark.parametrize(("state", "on_duplicate"), [(OLD, "replace"), (NEW, "requeue")])
def test_enqueue_many_of_duplicates(on_duplicate: str, conn: Connection) -> None:
    """A quarter of the events, since each is a call of its own."""
    keys = {"dedupe_key": own_key, "ordering_key": own_key}
    ready(conn, N // 4, **keys)
    fail(conn, claimed(conn, N // 4))
    rows = enqueue_many(conn, events(N // 4, **keys, on_duplicate=on_duplicate))
    assert all(row.changed for row in rows)


def test_enqueue_many_that_would_requeue(conn: Connection) -> None:
    """Its keys are looked for among many of the topic, though none is there."""
    ready(conn, dedupe_key=own_key)
    ready(conn, dedupe_key=lambda i: f"another {i}", on_duplicate="requeue")


def live(conn: Connection, followed: bool = False, on_dead: str = "skip", **keys: Any) -> None:
    """Events are enqueued and end each way but one; followed: by another of the same key."""
    configure(conn, backoff_base=ZERO, backoff_cap=ZERO, on_dead=on_dead)
    ready(conn, **keys)
    lease = claimed(conn)
    if followed:
        ready(conn, **keys)
    assert answers(conn, "outbox_extend(%s, lease_for => '1 hour')", lease) == N
    assert answers(conn, "outbox_release(%s)", lease) == N
    assert answers(conn, "outbox_fail(%s)", claimed(conn)) == N
    assert answers(conn, "outbox_fail(%s, dead => true)", claimed(conn)) == N
    assert answers(conn, "outbox_redrive(topic => 't', n => %s)", N) == N
    claimed(conn)
    expire(conn)
    configure(conn, max_attempts=1)
    row = reap(conn, N)
    assert (row.expired, row.dead) == (N, N)
    if followed or on_dead == "block":
        assert cancelled(conn, "outbox_dead") == N
    if followed:
        assert cancelled(conn, "outbox_ready") == N
    assert count(conn, "outbox_turns") == 0


@pytest.mark.parametrize(
    ("state", "events"),
    [
        (NEW, {}),
        (OLD, {"ordering_key": own_key, "followed": True}),
        (NEW, {"ordering_key": own_key, "followed": True, "on_dead": "block"}),
        (NEVER, {"ordering_key": own_key}),
    ],
    ids=["unkeyed", "keyed, with successors", "keyed, standing", "keyed, never analyzed"],
)
def test_each_way_to_end_an_attempt(events: dict[str, Any], conn: Connection) -> None:
    live(conn, **events)


@pytest.mark.parametrize("followed", [False, True], ids=["last of their keys", "with successors"])
def test_ack(followed: bool, conn: Connection) -> None:
    ready(conn, ordering_key=own_key)
    lease = claimed(conn)
    if followed:
        ready(conn, ordering_key=own_key)
    assert answers(conn, "outbox_ack(%s)", lease) == N
    assert count(conn, "outbox_turns") == count(conn, "outbox_ready") == (N if followed else 0)


def test_ack_by_ids_of_what_is_not_kept(conn: Connection) -> None:
    configure(conn, retention=ZERO)
    ready(conn, ordering_key=own_key)
    ids = "array(select id from outbox_leases order by random())"
    assert answers(conn, f"outbox_ack(%s, {ids})", claimed(conn)) == N
    assert count(conn, "outbox_events") == 0


def test_a_cancel_of_blocked_events(conn: Connection) -> None:
    ready(conn, N, ordering_key=own_key)
    ready(conn, N, ordering_key=own_key)
    assert cancelled(conn, "outbox_blocked") == N


def test_a_claim_of_due_events(conn: Connection) -> None:
    ready(conn, available_at=FAR)
    make_due(conn)
    claimed(conn)


def test_a_claim_over_suspects_whose_attempts_are_spent(conn: Connection) -> None:
    configure(conn, backoff_base=ZERO, backoff_cap=ZERO)
    ready(conn)
    claimed(conn)
    expire(conn)
    assert reap(conn, N).expired == N
    configure(conn, max_attempts=1)
    enqueue(conn, payload="fresh")
    assert [row.payload for row in claim(conn) + claim(conn)] == ["fresh"]
    assert count(conn, "outbox_dead") == N


def test_an_idle_claim_beside_due_events_of_a_paused_topic(conn: Connection) -> None:
    # Suspects as well, once: a claim then looks for more of them.
    use_everything(conn)
    alone = fastest(lambda: claim(conn, N))
    insert(conn, 10 * N, "paused", FAR)
    make_due(conn)
    conn.execute("select outbox_pause('paused')")
    enqueue(conn)
    assert len(claim(conn, N)) == 1
    assert claim(conn, N) == []
    assert fastest(lambda: claim(conn, N)) < 5 * alone + 0.002


def test_next_due_over_many_lanes(conn: Connection) -> None:
    ready(conn, 1000, topic=own_key)
    claimed(conn, 1000)
    ready(conn, available_at=FAR, topic=lambda i: f"k{i % 1000}")
    assert fastest(lambda: conn.execute("select outbox_next_due()")) < 0.1


def test_reap_of_due_and_of_done_events_beside_others_in_flight(conn: Connection) -> None:
    for _ in range(2):
        ready(conn, topic="in flight")
        claimed(conn)
    ready(conn)
    assert answers(conn, "outbox_ack(%s)", claimed(conn)) == N
    ready(conn, available_at=FAR)
    make_due(conn)
    insert(conn, 5 * N, "ready")
    for topic in "t", "in flight", "ready":
        configure(conn, topic, retention=ZERO)
    row = reap(conn, N)
    assert (row.promoted, row.pruned) == (N, N)


def test_reap_finds_done_events_behind_others(conn: Connection) -> None:
    """Each kind of event that is not done would fill the share of a call."""
    share = 20

    def made(n: int = share, **columns: Any) -> list[int]:
        return ids(enqueue_many(conn, events(n, **columns)))

    kinds = {
        "in flight": made(),
        "dead": made(),
        "done": made(),
        "blocked": made(share + 1, ordering_key="k")[1:],
        "scheduled": made(available_at=FAR),
        "done as well": made(),
    }
    lease = claim(conn, N)[0].lease
    fail(conn, lease, ids=kinds["dead"], dead=True)
    ack(conn, lease, kinds["done"] + kinds["done as well"])
    kinds["ready"] = made()
    configure(conn, retention=ZERO)
    assert [reap(conn, share).pruned for _ in range(3)] == [share, share, 0]
    left = {id for (id,) in conn.execute("select id from outbox_events").fetchall()}
    for kind, events_of_it in kinds.items():
        assert left & {*events_of_it} == (set() if "done" in kind else {*events_of_it}), kind
