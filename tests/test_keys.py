"""Races around ordering keys, batches and replaces that a review of the SQL found."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from concurrency import (
    Connection,
    ack,
    call,
    cancel,
    claim,
    configure,
    count,
    empty,
    enqueue,
    enqueue_many,
    expire,
    extend,
    fail,
    ids,
    make_due,
    reap,
    release,
    status,
)
from conftest import Connect, Databases
from psycopg import IsolationLevel
from psycopg.errors import SerializationFailure, UniqueViolation

ZERO = timedelta(0)

# A call that waits for a lock for so long raises 55P03, and the test fails.
PATIENCE = "-c lock_timeout=250ms"

Open = Callable[..., Connection]
Later = Callable[..., "Future[Any]"]
WaitForLock = Callable[[int], None]


@pytest.fixture(scope="module")
def database(databases: Databases, template: str) -> Iterator[str]:
    with databases.database(template) as dsn:
        yield dsn


@pytest.fixture
def dsn(database: str) -> Iterator[str]:
    """One database for the whole file, emptied after each test: to make one takes longer."""
    yield database
    with psycopg.connect(database, autocommit=True, options="-c lock_timeout=10s") as conn:
        empty(conn)


@pytest.fixture
def impatient(connect: Connect) -> Connection:
    """A connection in autocommit mode whose calls may not wait for a lock."""
    return connect(autocommit=True, options=PATIENCE)


@pytest.fixture
def later() -> Iterator[Later]:
    """Runs a function with a connection as its first argument in a thread of its own."""
    connections: list[Connection] = []
    with ThreadPoolExecutor(8) as threads:

        def later(function: Callable[..., Any], conn: Connection, *rest: Any, **named: Any) -> Any:
            connections.append(conn)
            return threads.submit(function, conn, *rest, **named)

        yield later
        for connection in connections:
            with suppress(psycopg.Error):
                connection.cancel_safe()


@pytest.fixture
def waiting(later: Later, wait_for_lock: WaitForLock) -> Later:
    """As later, and returns once the call waits for a lock."""

    def waiting(function: Callable[..., Any], conn: Connection, *rest: Any, **named: Any) -> Any:
        future = later(function, conn, *rest, **named)
        wait_for_lock(conn.info.backend_pid)
        return future

    return waiting


@pytest.fixture
def looking(later: Later, conn: Connection) -> Later:
    """As later, and returns once the call sleeps between two looks for a row on its way."""

    def looking(function: Callable[..., Any], caller: Connection, *rest: Any, **named: Any) -> Any:
        future = later(function, caller, *rest, **named)
        deadline = time.monotonic() + 10
        while True:
            seen = conn.execute(
                "select wait_event from pg_stat_activity where pid = %s",
                [caller.info.backend_pid],
            ).fetchone()
            if seen == ("PgSleep",):
                return future
            assert not future.done(), f"did not look again: {future.result()}"
            assert time.monotonic() < deadline, f"does not look again: {seen}"

    return looking


def at_once(*functions: Callable[[], Any]) -> list[Any]:
    """What the functions answer that are called at the same moment, each in its own thread."""
    barrier = threading.Barrier(len(functions))

    def run(function: Callable[[], Any]) -> Any:
        barrier.wait(30)
        return function()

    with ThreadPoolExecutor(len(functions)) as threads:
        return list(threads.map(run, functions))


def keyed(conn: Connection, events: int) -> list[int]:
    return ids(enqueue_many(conn, [{"payload": i, "ordering_key": "k"} for i in range(events)]))


def check_no_key_left(conn: Connection) -> None:
    tables = ("outbox_blocked", "outbox_keys", "outbox_turns", "outbox_handovers")
    assert {table: count(conn, table) for table in tables if count(conn, table)} == {}


# A producer that stays open holds up nobody who visibly waits ----------------------------------


Producer = Callable[[], int]
EndProducer = Callable[[], Any]


@pytest.fixture(params=["commits", "rolls back"])
def commit(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "commits")


@pytest.fixture(params=["open", "prepared"])
def producer(
    request: pytest.FixtureRequest, connect: Connect, conn: Connection, commit: bool
) -> tuple[Producer, EndProducer]:
    """Enqueues an event with the key in a transaction that is open or orphaned; ends it."""
    opened = connect(autocommit=True)
    verb = "commit" if commit else "rollback"

    def produce() -> int:
        opened.execute("begin")
        made = int(enqueue(opened, ordering_key="k").id)
        if request.param == "prepared":
            opened.execute("prepare transaction 'orphan'")
        return made

    def end() -> None:
        if request.param == "prepared":
            conn.execute(f"{verb} prepared 'orphan'")
        else:
            opened.execute(verb)

    return produce, end


@pytest.fixture(
    params=["ack", "cancel", "dead", "dead, its attempts spent", "dead, its lease lost"]
)
def end_head(request: pytest.FixtureRequest) -> Callable[[Connection, Connection], None]:
    """Ends the head of the key, the one event that can be delivered, with the second connection."""

    def end_head(conn: Connection, impatient: Connection) -> None:
        (head,) = conn.execute("select head from outbox_turns").fetchone() or (0,)
        if request.param == "cancel":
            assert cancel(impatient, [head]) == [head]
            return
        if "spent" in request.param or "lost" in request.param:
            configure(conn, max_attempts=1)
        (row,) = claim(conn, 9)
        assert row.id == head
        if request.param == "ack":
            assert ack(impatient, row.lease) == [head]
        elif "lost" in request.param:
            expire(conn)
            assert reap(impatient).dead == 1
        else:
            assert fail(impatient, row.lease, dead=request.param == "dead") == [head]

    return end_head


EndHead = Callable[[Connection, Connection], None]


def test_successors_move_up_beside_an_open_producer(
    producer: tuple[Producer, EndProducer],
    end_head: EndHead,
    commit: bool,
    conn: Connection,
    impatient: Connection,
) -> None:
    produce, end_producer = producer
    made = keyed(conn, 3)
    last = produce()
    for follower in made[1:]:
        end_head(conn, impatient)
        # At once, for a claim that is the first to come.
        (row,) = claim(impatient, 9)
        assert row.id == follower
        release(impatient, row.lease)
    end_producer()
    (row,) = claim(impatient, 9)
    assert row.id == made[-1]
    assert ack(impatient, row.lease) == made[-1:]
    rows = claim(impatient, 9)
    assert ids(rows) == ([last] if commit else [])
    for row in rows:
        ack(impatient, row.lease)
    claim(impatient)
    check_no_key_left(conn)


def test_a_successor_moves_up_within_the_transaction_of_the_ack(
    conn: Connection, connect: Connect
) -> None:
    made = keyed(conn, 3)
    (row,) = claim(conn)
    producer, worker = connect(), connect(options=PATIENCE)
    keyed(producer, 1)
    assert ack(worker, row.lease) == made[:1]
    (row,) = claim(worker, 9)
    assert row.id == made[1]
    assert ack(worker, row.lease) == made[1:2]
    worker.rollback()
    # Nothing of it has happened.
    assert [status(conn, id) for id in made] == ["processing", "blocked", "blocked"]
    expire(conn)
    producer.rollback()


def test_a_duplicate_that_is_ignored_holds_up_nobody(
    conn: Connection, connect: Connect, impatient: Connection
) -> None:
    made = [enqueue(conn, ordering_key="k", dedupe_key=f"d{i}").id for i in range(2)]
    (row,) = claim(conn)
    producer = connect()
    assert not enqueue(producer, ordering_key="k", dedupe_key="d0").created
    assert ack(impatient, row.lease) == made[:1]
    assert ids(claim(impatient)) == made[1:]


@pytest.mark.parametrize("finder", ["claim", "reap", "busy claim"])
def test_the_last_head_ends_beside_an_open_producer(
    finder: str,
    producer: tuple[Producer, EndProducer],
    end_head: EndHead,
    commit: bool,
    conn: Connection,
    impatient: Connection,
) -> None:
    produce, end_producer = producer
    configure(conn, on_dead="skip")
    keyed(conn, 1)
    made = produce()
    end_head(conn, impatient)
    assert claim(impatient) == []
    reap(impatient)
    assert next_due(impatient) == (None, None)
    end_producer()
    assert next_due(impatient) == ((True, True) if commit else (None, None))
    if finder == "reap":
        reap(impatient)
    if finder == "busy claim":
        # A claim that finds work passes on what has been left for five seconds.
        enqueue_many(conn, [{"topic": "busy", "payload": i, "priority": 1} for i in range(100)])
        conn.execute("update outbox_handovers set noted_at = noted_at - interval '5 seconds'")
        assert claim(impatient)[0].topic == "busy"
        assert count(conn, "outbox_handovers") == 0
    rows = claim(impatient, topics=["t"])
    assert ids(rows) == ([made] if commit else [])
    for row in rows:
        assert ack(impatient, row.lease) == [made]
    claim(impatient, topics=["t"])
    check_no_key_left(conn)


def next_due(conn: Connection) -> tuple[bool | None, bool | None]:
    """Whether outbox_next_due names a time, and whether this has come."""
    row = conn.execute(
        "select due > 'epoch', due <= clock_timestamp() from outbox_next_due() as due"
    ).fetchone()
    assert row
    return row[0], row[1]


# Deadlocks --------------------------------------------------------------------------------------


def test_batches_with_new_keys_while_an_ack_empties_one_do_not_deadlock(
    conn: Connection, connect: Connect, impatient: Connection, waiting: Later
) -> None:
    def batch(keys: str) -> list[dict[str, Any]]:
        return [{"payload": key, "ordering_key": key} for key in keys]

    enqueue_many(conn, batch("a"))
    (row,) = claim(conn)
    holder = connect()
    enqueue_many(holder, batch("c"))
    one = waiting(enqueue_many, connect(autocommit=True), batch("abc"))
    assert ack(impatient, row.lease) == [row.id]
    two = waiting(enqueue_many, connect(autocommit=True), batch("ab"))
    holder.commit()
    assert [len(one.result()), len(two.result())] == [3, 2]


@pytest.mark.parametrize("by_ids", [False, True], ids=["whole", "by ids"])
def test_an_ack_of_a_large_lease_and_heartbeats_do_not_deadlock(
    by_ids: bool, conn: Connection, connect: Connect
) -> None:
    worker, heart = connect(autocommit=True), connect(autocommit=True)
    n = 2000
    for round in range(6):
        # Their rows lie in the opposite order of their ids.
        enqueue_many(conn, [{"payload": i, "dedupe_key": f"{round} {n - i:05}"} for i in range(n)])
        rows = claim(conn, n)
        if round == 0:
            conn.execute("analyze outbox_leases")
        lease, every = rows[0].lease, ids(rows) if by_ids else None
        acked, extended, *_ = at_once(
            lambda: ack(worker, lease, every),
            lambda: len(extend(heart, lease, lease_for=timedelta(hours=round + 1))),
        )
        assert len(acked) == n
        assert extended in (0, n)


@pytest.mark.parametrize("on_duplicate", ["replace", "requeue"])
def test_batches_of_duplicates_in_opposite_orders_do_not_deadlock(
    on_duplicate: str, conn: Connection, connect: Connect, waiting: Later
) -> None:
    def batch(keys: list[str]) -> list[dict[str, Any]]:
        return [{"payload": 2, "dedupe_key": k, "on_duplicate": on_duplicate} for k in keys]

    keys = [f"k{i:03}" for i in range(200)]
    enqueue_many(conn, batch(keys))
    if on_duplicate == "requeue":
        for row in claim(conn, 200)[:1]:
            ack(conn, row.lease)
    holder = connect()
    holder.execute("select from outbox_events where dedupe_key = 'k000' for update")
    # The first would have what the second needs, and wait for the one that both need.
    one = waiting(enqueue_many, connect(autocommit=True), batch(["k001", "k000", "k001"]))
    two = waiting(enqueue_many, connect(autocommit=True), batch(["k000", "k001"]))
    holder.rollback()
    assert [len(one.result()), len(two.result())] == [3, 2]

    def repeat(caller: Connection, keys: list[str]) -> None:
        for _ in range(8):
            assert len(enqueue_many(caller, batch(keys))) == 200

    at_once(
        lambda: repeat(connect(autocommit=True), keys),
        lambda: repeat(connect(autocommit=True), keys[::-1]),
    )


@pytest.mark.parametrize("how", ["enqueue", "enqueue_many"])
def test_requeues_that_name_each_others_ordering_key_do_not_deadlock(
    how: str, conn: Connection, connect: Connect
) -> None:
    enqueue(conn, dedupe_key="d1", ordering_key="Y")
    enqueue(conn, dedupe_key="d2", ordering_key="X")

    def requeue(caller: Connection, dedupe_key: str, ordering_key: str) -> None:
        keys = {"dedupe_key": dedupe_key, "ordering_key": ordering_key}
        for _ in range(300):
            if how == "enqueue":
                row = enqueue(caller, **keys, on_duplicate="requeue")
            else:
                (row,) = enqueue_many(caller, [{"payload": 1, "on_duplicate": "requeue"} | keys])
            assert not row.created

    one, two = connect(autocommit=True), connect(autocommit=True)
    at_once(lambda: requeue(one, "d1", "X"), lambda: requeue(two, "d2", "Y"))


# A replace of what is on its way ----------------------------------------------------------------


def replace(conn: Connection, **named: Any) -> Any:
    return enqueue(conn, payload="new", dedupe_key="d", on_duplicate="replace", **named)


@pytest.mark.parametrize("mover", ["reap", "ack", "cancel"])
def test_a_replace_finds_an_event_that_is_being_moved(
    mover: str, commit: bool, conn: Connection, connect: Connect, looking: Later
) -> None:
    """Promoted by a reaper, or let in behind its predecessor: in a transaction that is open."""
    opened = connect()
    if mover == "reap":
        made = enqueue(conn, payload="old", dedupe_key="d", available_at="2100-01-01T00:00:00Z").id
        make_due(conn)
        assert reap(opened).promoted == 1
    else:
        first = enqueue(conn, ordering_key="k").id
        made = enqueue(conn, payload="old", dedupe_key="d", ordering_key="k").id
        if mover == "ack":
            (predecessor,) = claim(conn)
            assert ack(opened, predecessor.lease) == [first]
        else:
            assert cancel(opened, [first]) == [first]
    replaced = looking(replace, connect(autocommit=True))
    (opened.commit if commit else opened.rollback)()
    row = replaced.result()
    assert (row.id, row.created, row.changed) == (made, False, True)
    if not commit and mover == "ack":
        assert ack(conn, predecessor.lease) == [predecessor.id]
    if not commit and mover == "cancel":
        assert cancel(conn, [first]) == [first]
    assert [(row.id, row.payload) for row in claim(conn, 9)] == [(made, "new")]


@pytest.mark.parametrize("keyed", [False, True], ids=["unkeyed", "keyed"])
def test_for_a_replace_a_claim_that_stays_open_is_in_flight(
    keyed: bool, conn: Connection, connect: Connect, commit: bool
) -> None:
    made = enqueue(conn, payload="old", dedupe_key="d", ordering_key="k" if keyed else None).id
    worker = connect()
    (held,) = claim(worker)
    begun = time.monotonic()
    row = replace(conn)
    took = time.monotonic() - begun
    assert (row.id, row.created, row.changed) == (made, False, False)
    assert 0.5 < took < 5
    (worker.commit if commit else worker.rollback)()
    if commit:
        assert (held.id, held.payload) == (made, "old")
        assert not replace(conn).changed
    else:
        assert [(row.id, row.payload) for row in claim(conn)] == [(made, "old")]


@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
@pytest.mark.parametrize("place", ["ready", "due"])
def test_a_claim_with_a_snapshot_from_before_a_replace_raises_40001(
    place: str, level: str, conn: Connection, connect: Connect
) -> None:
    when = {"available_at": "2100-01-01T00:00:00Z"} if place == "due" else {}
    enqueue(conn, payload="old", dedupe_key="d", **when)
    make_due(conn)
    worker = connect()
    worker.isolation_level = IsolationLevel[level]
    worker.execute("select from outbox_events")
    assert replace(conn).changed
    with pytest.raises(SerializationFailure):
        claim(worker)
    worker.rollback()
    (row,) = claim(worker)
    assert row.payload == "new"


# Suspects take turns ----------------------------------------------------------------------------


def suspects_and_others(conn: Connection, topic: str, events: int) -> None:
    """So many events of the topic that have lost a lease, and as many that have not."""
    configure(conn, topic, backoff_base=ZERO, backoff_cap=ZERO)
    batch = [{"topic": topic, "payload": i} for i in range(events)]
    enqueue_many(conn, batch)
    claim(conn, events, topics=[topic])
    expire(conn)
    assert reap(conn).expired == events
    enqueue_many(conn, batch)


def test_suspects_and_others_come_for_each_of_two_workers(
    conn: Connection, connect: Connect
) -> None:
    workers = {topic: connect(autocommit=True) for topic in "ab"}
    for topic in workers:
        suspects_and_others(conn, topic, 12)
    seen: dict[str, list[bool]] = {topic: [] for topic in workers}
    for _ in range(10):
        for topic, worker in workers.items():
            (row,) = claim(worker, topics=[topic])
            seen[topic].append(row.attempt > 1)
            ack(worker, row.lease)
    for topic in workers:
        assert set(seen[topic]) == {True, False}, seen


def test_one_worker_alternates_between_suspects_and_others(
    conn: Connection, connect: Connect
) -> None:
    suspects_and_others(conn, "t", 12)
    worker = connect(autocommit=True)
    seen = []
    for _ in range(12):
        rows = claim(worker)
        seen.append(rows[0].attempt > 1)
        ack(worker, rows[0].lease)
    assert seen == [seen[0], not seen[0]] * 6


# Odd values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["enqueue", "enqueue_many"])
@pytest.mark.parametrize(
    "columns",
    [{}, {"ordering_key": "k"}, {"dedupe_key": "new"}, {"ordering_key": "k", "dedupe_key": "new"}],
    ids=["plain", "ordering key", "dedupe key", "both"],
)
def test_an_id_sequence_that_is_behind_is_an_error_with_its_remedy(
    columns: dict[str, str], how: str, conn: Connection
) -> None:
    """As after a restore of the data without the sequences."""
    made = ids(enqueue_many(conn, [{"payload": i} for i in range(100)]))
    conn.execute("select setval('outbox_events_id_seq', %s)", [made[0]])
    conn.execute("set statement_timeout = '5s'")
    event = {"payload": "new"} | columns
    with pytest.raises(UniqueViolation) as caught:
        if how == "enqueue":
            enqueue(conn, **event)
        else:
            enqueue_many(conn, [event])
    hint = caught.value.diag.message_hint
    assert hint is not None and "setval" in hint
    conn.execute(hint.removeprefix("Run: "))
    (row,) = enqueue_many(conn, [event])
    assert row.created and row.id > made[-1]


@pytest.mark.parametrize("function", ["ack", "fail", "extend", "release", "cancel", "redrive"])
def test_ids_of_several_dimensions_are_ids(function: str, conn: Connection) -> None:
    made = ids(enqueue_many(conn, [{"payload": i} for i in range(4)]))
    lease = claim(conn, 4)[0].lease if function != "cancel" else 0
    if function == "redrive":
        fail(conn, lease, dead=True)
    first = [] if function in ("cancel", "redrive") else [lease]
    square: list[Any] = [made[:2], made[2:]]
    with pytest.raises(psycopg.errors.NullValueNotAllowed, match="null"):
        call(conn, f"outbox_{function}", *first, [[made[0], made[1]], [made[2], None]])
    assert sorted(row[0] for row in call(conn, f"outbox_{function}", *first, square)) == made
