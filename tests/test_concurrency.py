"""What several transactions do to each other: who waits, who gets what, and what is left."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
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
    check,
    check_empty,
    claim,
    configure,
    count,
    drain,
    empty,
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
    status,
    value,
)
from conftest import Connect, Databases
from psycopg import IsolationLevel
from psycopg.errors import DeadlockDetected, SerializationFailure

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
def opened(connect: Connect) -> Open:
    """Opens a connection that is in a transaction with its first statement, and stays in it."""
    return lambda **options: connect(options=PATIENCE, **options)


@pytest.fixture
def later() -> Iterator[Later]:
    """Runs a function with a connection as its first argument in a thread of its own."""
    connections: list[Connection] = []
    with ThreadPoolExecutor(64) as threads:

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


def at_once(*functions: Callable[[], Any]) -> list[Any]:
    """What the functions answer that are called at the same moment, each in its own thread."""
    barrier = threading.Barrier(len(functions))

    def run(function: Callable[[], Any]) -> Any:
        barrier.wait(30)
        return function()

    with ThreadPoolExecutor(len(functions)) as threads:
        return list(threads.map(run, functions))


def fill(conn: Connection, events: int, topic: str = "t") -> list[int]:
    return ids(enqueue_many(conn, [{"topic": topic, "payload": i} for i in range(events)]))


def lose(conn: Connection, lease: int) -> None:
    """The lease expires, is taken back, and its events are ready again."""
    expire(conn, lease)
    reap(conn)
    make_due(conn)


# Claims ---------------------------------------------------------------------------------------


def _make_ready(conn: Connection, opened: Open) -> list[int]:
    return fill(conn, 6)


def _make_scheduled(conn: Connection, opened: Open) -> list[int]:
    soon = [{"payload": i, "available_at": "2100-01-01T00:00:00Z"} for i in range(6)]
    made = ids(enqueue_many(conn, soon))
    make_due(conn)
    return made


def _make_expired(conn: Connection, opened: Open) -> list[int]:
    configure(conn, backoff_base=ZERO)
    made = fill(conn, 6)
    claim(conn, 6)
    expire(conn)
    return made


def _make_long_expired(conn: Connection, opened: Open) -> list[int]:
    made = _make_expired(conn, opened)
    expire(conn, seconds=60)
    return made


def _make_suspect(conn: Connection, opened: Open) -> list[int]:
    made = _make_expired(conn, opened)
    reap(conn)
    return made


def _make_handed_over(conn: Connection, opened: Open) -> list[int]:
    events = [{"payload": i, "ordering_key": f"k{i % 6}"} for i in range(12)]
    made = ids(enqueue_many(conn, events))
    rows = claim(conn, 6)
    canceller = opened()
    cancel(canceller, made)
    ack(conn, rows[0].lease)
    canceller.rollback()
    assert count(conn, "outbox_handovers") == 6
    return made[6:]


KINDS = {
    "ready": _make_ready,
    "due": _make_scheduled,
    "expired": _make_expired,
    "long expired": _make_long_expired,
    "suspect": _make_suspect,
    "handed over": _make_handed_over,
}
each_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def take_all(conn: Connection) -> list[int]:
    """The ids that claims get until one answers nothing twice."""
    taken: list[int] = []
    for _ in range(2):
        while rows := claim(conn, 10):
            taken += ids(rows)
    return sorted(taken)


@each_kind
@pytest.mark.parametrize("n", [1, 2])
def test_an_open_claim_hides_nothing_that_it_did_not_take(
    make: Callable[[Connection, Open], list[int]],
    n: int,
    conn: Connection,
    impatient: Connection,
    opened: Open,
) -> None:
    made = make(conn, opened)
    first = opened()
    taken = ids(claim(first, n))
    rest = take_all(impatient)
    assert sorted(taken + rest) == made
    assert len(taken) in (1, n)
    first.commit()
    assert count(conn, "outbox_leases") == len(made)
    check(conn)


@each_kind
def test_an_open_claim_that_found_nothing_for_itself_hides_nothing(
    make: Callable[[Connection, Open], list[int]],
    conn: Connection,
    impatient: Connection,
    opened: Open,
) -> None:
    made = make(conn, opened)
    first = opened()
    assert claim(first, 5, topics=["another"]) == []
    assert take_all(impatient) == made
    first.commit()
    check(conn)


@each_kind
def test_an_open_claim_beside_other_events_hides_none_of_these(
    make: Callable[[Connection, Open], list[int]],
    conn: Connection,
    impatient: Connection,
    opened: Open,
) -> None:
    made = make(conn, opened)
    enqueue(conn, "another", priority=10)
    first = opened()
    assert len(claim(first, topics=["another"])) == 1
    assert take_all(impatient) == made
    first.commit()
    check(conn)


def test_many_open_claims_share_the_events_among_them(conn: Connection, opened: Open) -> None:
    made = fill(conn, 40)
    claims = [(each, claim(each, 5)) for each in (opened() for _ in range(10))]
    assert [len(rows) for _, rows in claims] == [5] * 8 + [0] * 2
    assert sorted(id for _, rows in claims for id in ids(rows)) == made
    assert len({row.lease for _, rows in claims for row in rows}) == 8


def test_an_aborted_claim_gives_its_events_back_uncounted(
    conn: Connection, impatient: Connection, opened: Open
) -> None:
    made = fill(conn, 3)
    first = opened()
    assert ids(claim(first, 3)) == made
    assert claim(impatient, 3) == []
    first.rollback()
    again = claim(impatient, 3)
    assert ids(again) == made
    assert {row.attempt for row in again} == {1}


def test_a_claim_whose_backend_dies_gives_its_events_back_uncounted(
    conn: Connection, opened: Open
) -> None:
    made = fill(conn, 3)
    first = opened()
    claim(first, 3)
    conn.execute("select pg_terminate_backend(%s, 5000)", [first.info.backend_pid])
    again = claim(conn, 3)
    assert ids(again) == made
    assert {row.attempt for row in again} == {1}


def test_two_claims_in_one_transaction_are_two_leases(conn: Connection, opened: Open) -> None:
    made = fill(conn, 6)
    first = opened()
    one, two = claim(first, 3), claim(first, 3)
    assert ids(one + two) == made
    assert one[0].lease != two[0].lease
    assert ack(first, one[0].lease) == made[:3]
    first.commit()
    assert ack(conn, two[0].lease) == made[3:]
    check_empty(conn)


def test_a_claim_rolled_back_to_a_savepoint_gives_back_what_it_took(
    conn: Connection, impatient: Connection, opened: Open
) -> None:
    made = fill(conn, 6)
    first = opened()
    kept = claim(first, 2)
    first.execute("savepoint s")
    lost = claim(first, 2)
    assert ids(claim(impatient, 1)) == [made[4]]
    first.execute("rollback to savepoint s")
    assert ids(lost) == made[2:4]
    assert ids(claim(impatient, 2)) == made[2:4]
    assert ids(claim(first, 9)) == [made[5]]
    first.commit()
    assert ack(conn, lost[0].lease) == []
    assert ack(conn, kept[0].lease) == made[:2]
    check(conn)


def test_claim_work_and_ack_in_one_transaction_happen_or_do_not(
    conn: Connection, opened: Open
) -> None:
    (made,) = fill(conn, 1)
    conn.execute("create table effects (id bigint)")
    worker = opened()
    for end in worker.rollback, worker.commit:
        (row,) = claim(worker)
        assert row.attempt == 1
        worker.execute("insert into effects values (%s)", [row.id])
        assert ack(worker, row.lease) == [made]
        end()
    assert count(conn, "effects") == 1
    assert status(conn, made) == "done"


def test_a_suspect_in_an_open_claim_keeps_nobody_from_the_others(
    conn: Connection, impatient: Connection, opened: Open
) -> None:
    suspects = _make_suspect(conn, opened)
    others = fill(conn, 5)
    first, second = opened(), opened()
    held, held_too = claim(first, 5), claim(second, 5)
    for rows in held, held_too:
        assert len(rows) == (1 if rows[0].id in suspects else 5)
    rest = take_all(impatient)
    assert sorted(ids(held + held_too) + rest) == sorted(suspects + others)


@pytest.mark.parametrize(
    "settings",
    [
        {"plan_cache_mode": "force_generic_plan"},
        {"plan_cache_mode": "force_custom_plan"},
        dict.fromkeys(("enable_hashjoin", "enable_mergejoin", "enable_material"), "off"),
        dict.fromkeys(
            ("enable_hashjoin", "enable_mergejoin", "enable_memoize", "enable_sort"), "off"
        ),
        dict.fromkeys(("enable_nestloop", "enable_indexscan", "enable_bitmapscan"), "off"),
        dict.fromkeys(("enable_seqscan", "enable_bitmapscan", "enable_tidscan"), "off"),
        {"enable_tidscan": "off", "enable_indexscan": "off"},
    ],
    ids=lambda settings: " ".join(settings),
)
@pytest.mark.parametrize("analysed", ["empty", "full"])
def test_a_claim_takes_what_it_asked_for_whatever_the_plan(
    settings: dict[str, str], analysed: str, conn: Connection, connect: Connect
) -> None:
    if analysed == "empty":
        enqueue(conn, "a")
        drain(conn)
        conn.execute("vacuum analyze")
    for topic in "ab":
        fill(conn, 200, topic)
        events = [{"topic": topic, "payload": i, "ordering_key": f"k{i}"} for i in range(50)]
        enqueue_many(conn, [event | {"priority": 1} for event in events])
        enqueue_many(conn, [event | {"available_at": "2100-01-01T00:00:00Z"} for event in events])
    if analysed == "full":
        conn.execute("vacuum analyze")
    make_due(conn)

    planned = connect(autocommit=True)
    for name, setting in settings.items():
        planned.execute(f"set {name} = {setting}")
    taken: list[int] = []
    for n in [1, 5, 7, 30, 1, 99] * 2:
        before = count(conn, "outbox_ready"), count(conn, "outbox_scheduled")
        rows = claim(planned, n)
        after = count(conn, "outbox_ready"), count(conn, "outbox_scheduled")
        assert (len(rows), sum(before) - sum(after)) == (n, n)
        taken += ids(rows)
        assert count(conn, "outbox_leases") == len(taken)
        if n == 7:
            assert ack(planned, rows[0].lease, ids(rows)[:3]) == sorted(ids(rows)[:3])
            assert fail(planned, rows[0].lease, ids=ids(rows)[3:5]) == sorted(ids(rows)[3:5])
            assert release(planned, rows[0].lease) == sorted(ids(rows)[5:])
            taken = taken[:-7]
    assert len(set(taken)) == len(taken)
    check(conn)
    planned.execute("select outbox_reap()")
    drain(planned)
    check_empty(conn)


def test_sixteen_workers_ack_ten_thousand_events_once_each(
    conn: Connection, connect: Connect
) -> None:
    with conn.cursor().copy("copy outbox_events (topic, payload) from stdin") as copy:
        for i in range(10_000):
            copy.write_row((f"t{i % 3}", str(i)))
    acked: list[int] = []

    def work(worker: Connection, size: int) -> None:
        while rows := claim(worker, size):
            assert ack(worker, rows[0].lease) == sorted(ids(rows))
            acked.extend(row.payload for row in rows)

    workers = [connect(autocommit=True) for _ in range(16)]
    # Bounded through the clients' own patience, not through an assertion on the clock.
    at_once(*(lambda w=w, i=i: work(w, 1 + 5 * (i % 4)) for i, w in enumerate(workers)))
    assert sorted(acked) == list(range(10_000))
    check_empty(conn)


# Fencing --------------------------------------------------------------------------------------

ENDS: dict[str, Callable[[Connection, int], list[int]]] = {
    "ack": ack,
    "ack ids": lambda conn, lease: ack(conn, lease, list(range(1, 100))),
    "fail": fail,
    "fail dead": lambda conn, lease: fail(conn, lease, dead=True),
    "extend": extend,
    "release": release,
}
each_end = pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)


@each_end
@pytest.mark.parametrize("redelivered", [False, True], ids=["reaped", "redelivered"])
def test_a_lost_lease_can_do_nothing(
    end: Callable[[Connection, int], list[int]], redelivered: bool, conn: Connection
) -> None:
    (made,) = fill(conn, 1)
    (old,) = claim(conn)
    lose(conn, old.lease)
    new = claim(conn)[0] if redelivered else None
    tables = ("outbox_ready", "outbox_scheduled", "outbox_leases", "outbox_dead", "outbox_events")
    before = [conn.execute(f"select * from {table}").fetchall() for table in tables]
    assert end(conn, old.lease) == []
    assert [conn.execute(f"select * from {table}").fetchall() for table in tables] == before
    if new:
        assert new.attempt == 2
        assert ack(conn, new.lease) == [made]


@each_end
def test_an_ended_lease_can_do_nothing(
    end: Callable[[Connection, int], list[int]], conn: Connection
) -> None:
    fill(conn, 1)
    configure(conn, backoff_base=ZERO)
    for first in ack, release, fail:
        if first is ack:
            (row,) = claim(conn)
            assert len(ack(conn, row.lease)) == 1
            assert end(conn, row.lease) == []
            fill(conn, 1)
        else:
            (row,) = claim(conn)
            assert len(first(conn, row.lease)) == 1
            assert end(conn, row.lease) == []
    assert len(drain(conn)) == 1


@each_end
@pytest.mark.parametrize("commit", [True, False], ids=["commits", "rolls back"])
def test_the_reaper_passes_over_a_lease_that_is_being_answered(
    end: Callable[[Connection, int], list[int]],
    commit: bool,
    conn: Connection,
    impatient: Connection,
    opened: Open,
) -> None:
    (made,) = fill(conn, 1)
    (row,) = claim(conn)
    expire(conn)
    worker = opened()
    assert end(worker, row.lease) == [made]
    assert reap(impatient).expired == 0
    assert claim(impatient) == []
    if commit:
        worker.commit()
        assert reap(conn).expired == 0
    else:
        worker.rollback()
        assert reap(conn).expired == 1
        assert end(conn, row.lease) == []
    check(conn)


@each_end
@pytest.mark.parametrize("commit", [True, False], ids=["commits", "rolls back"])
def test_a_lease_that_is_being_reaped_is_lost_if_the_reaper_commits(
    end: Callable[[Connection, int], list[int]],
    commit: bool,
    conn: Connection,
    connect: Connect,
    opened: Open,
    waiting: Later,
) -> None:
    (made,) = fill(conn, 1)
    (row,) = claim(conn)
    expire(conn)
    reaper = opened()
    assert reap(reaper).expired == 1
    answer = waiting(end, connect(autocommit=True), row.lease)
    if commit:
        reaper.commit()
        assert answer.result() == []
        assert status(conn, made) == "retry"
    else:
        reaper.rollback()
        assert answer.result() == [made]
    check(conn)


def test_a_heartbeat_and_the_reaper_never_both_have_a_lease(
    conn: Connection, connect: Connect
) -> None:
    """The reaper looks at the expiry again once it has the row: what a heartbeat moved is left."""
    configure(conn, backoff_base=ZERO, max_attempts=1000)
    worker, reaper = connect(autocommit=True), connect(autocommit=True)
    fill(conn, 1)
    extended = 0
    for _ in range(400):
        (row,) = claim(conn)
        expire(conn)
        held, reaped = at_once(lambda: extend(worker, row.lease), lambda: reap(reaper))
        assert (len(held), reaped.expired) in ((1, 0), (0, 1))
        assert ack(conn, row.lease) == held
        extended += len(held)
        if held:
            fill(conn, 1)
    assert 0 < extended < 400


@pytest.mark.parametrize("end", [extend, fail, release], ids=["extend", "fail", "release"])
@pytest.mark.parametrize("analysed", ["never", "empty", "full"])
def test_answers_for_one_lease_do_not_deadlock(
    end: Callable[[Connection, int], list[int]],
    analysed: str,
    conn: Connection,
    connect: Connect,
    opened: Open,
    waiting: Later,
) -> None:
    acker, other, holder = connect(autocommit=True), connect(autocommit=True), opened()
    conn.execute("alter table outbox_leases set (autovacuum_enabled = off)")
    if analysed == "full":
        for _ in range(30):
            fill(conn, 100)
            claim(conn, 100)
    if analysed != "never":
        conn.execute("vacuum analyze outbox_leases")
    for place in range(4):
        # The lease's rows do not lie in the order of their ids: what was extended comes last.
        made = fill(conn, 4, f"topic {place}")
        rows = claim(conn, 4, topics=[f"topic {place}"])
        extend(conn, rows[0].lease, ids=made[:1], lease_for=timedelta(hours=1))
        holder.execute("select from outbox_leases where id = %s for update", [made[place]])
        answers = [waiting(ack, acker, rows[0].lease), waiting(end, other, rows[0].lease)]
        holder.rollback()
        # Each event was answered for by one of the two, or was only extended before its ack.
        acked, others = (answer.result() for answer in answers)
        assert sorted({*acked, *others}) == made
        if end is not extend:
            assert sorted(acked + others) == made


def test_of_racing_answers_for_one_lease_each_event_gets_one(
    conn: Connection, connect: Connect
) -> None:
    configure(conn, backoff_base=ZERO, max_attempts=1000)
    workers = [connect(autocommit=True) for _ in range(5)]
    for _ in range(60):
        made = fill(conn, 20)
        lease = claim(conn, 20)[0].lease
        acked, some, failed, released, extended = at_once(
            lambda: ack(workers[0], lease, made[5:]),
            lambda: ack(workers[1], lease, made[::-1][5:]),
            lambda: fail(workers[2], lease, ids=made[3:-3]),
            lambda: release(workers[3], lease, made[2:-2]),
            lambda: extend(workers[4], lease),
        )
        ended = Counter(acked + some + failed + released)
        assert ended.keys() == set(made) and set(ended.values()) == {1}
        assert set(extended) <= set(made)
        check(conn)
        assert sorted(ids(drain(conn))) == sorted(failed + released)


# Dedupe ---------------------------------------------------------------------------------------


def _by_function(conn: Connection) -> tuple[int | None, bool]:
    row = enqueue(conn, payload=1, dedupe_key="d")
    return row.id, row.created


def _by_array(conn: Connection) -> tuple[int | None, bool]:
    first, row = enqueue_many(conn, [{"payload": 0}, {"payload": 1, "dedupe_key": "d"}])
    assert first.created
    return row.id, row.created


def _by_insert(conn: Connection) -> tuple[int | None, bool]:
    row = conn.execute(
        "insert into outbox_events (topic, payload, dedupe_key) values ('t', '1', 'd')"
        " on conflict (topic, dedupe_key) where dedupe_key is not null do nothing returning id"
    ).fetchone()
    return (row[0], True) if row else (None, False)


DOORS = {"enqueue": _by_function, "enqueue_many": _by_array, "insert": _by_insert}


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
@pytest.mark.parametrize("commit", [True, False], ids=["commits", "rolls back"])
def test_of_concurrent_first_enqueues_one_creates(
    door: Callable[[Connection], tuple[int | None, bool]],
    commit: bool,
    conn: Connection,
    connect: Connect,
    opened: Open,
    waiting: Later,
) -> None:
    first = opened()
    first_id, created = door(first)
    assert created
    others = [waiting(door, connect(autocommit=True)) for _ in range(7)]
    (first.commit if commit else first.rollback)()
    answers = [other.result() for other in others]
    assert [created for _, created in answers].count(True) == (0 if commit else 1)
    the_id = value(conn, "select id from outbox_events where dedupe_key = 'd'")
    assert {id for id, _ in answers} <= {the_id, None}
    assert door is _by_insert or None not in {id for id, _ in answers}
    assert not commit or the_id == first_id
    assert [row.dedupe_key for row in drain(conn)].count("d") == 1
    check_empty(conn)


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_of_racing_first_enqueues_one_creates(
    door: Callable[[Connection], tuple[int | None, bool]], conn: Connection, connect: Connect
) -> None:
    producers = [connect() for _ in range(6)]

    def produce(producer: Connection, commits: bool) -> tuple[int | None, bool] | None:
        answer = door(producer)
        (producer.commit if commits else producer.rollback)()
        return answer if commits else None

    for _ in range(20):
        # The first three roll back, whichever of them comes first.
        calls = (lambda p=p, i=i: produce(p, i > 2) for i, p in enumerate(producers))
        answers = [answer for answer in at_once(*calls) if answer]
        assert [created for _, created in answers].count(True) == 1
        rows = [row for row in drain(conn) if row.dedupe_key == "d"]
        assert len(rows) == 1
        assert {id for id, _ in answers} <= {rows[0].id, None}
        conn.execute("delete from outbox_events")


@pytest.mark.parametrize("key", ["dedupe_key", "ordering_key"])
@pytest.mark.parametrize("on_duplicate", ["ignore", "replace", "requeue"])
@pytest.mark.parametrize("new", [True, False], ids=["new", "known"])
def test_two_batches_with_the_keys_in_opposite_order_do_not_deadlock(
    key: str,
    on_duplicate: str,
    new: bool,
    conn: Connection,
    connect: Connect,
    opened: Open,
    waiting: Later,
) -> None:
    batch = [{"payload": k, key: k, "on_duplicate": on_duplicate} for k in ("a", "b")]
    if not new:
        enqueue_many(conn, batch)
        if on_duplicate == "requeue":
            drain(conn)
            enqueue_many(conn, batch)
    for key_held in range(2):
        holder = opened()
        enqueue_many(holder, [batch[key_held] | {"on_duplicate": "replace"}])
        answers = [
            waiting(enqueue_many, connect(autocommit=True), order)
            for order in (batch[::-1], batch, batch[::-1])
        ]
        holder.rollback()
        for answer in answers:
            assert len(answer.result()) == 2
        check(conn)
    drain(conn)
    check_empty(conn)


def test_batches_do_not_deadlock_while_keys_come_and_go(
    conn: Connection, connect: Connect, opened: Open, waiting: Later
) -> None:
    """An ack that empties a key removes its row, which an enqueue of several keys was waiting for."""
    batch = [{"payload": k, "ordering_key": k} for k in ("a", "b")]
    for _ in range(12):
        enqueue(conn, payload="b", ordering_key="b")
        (row,) = claim(conn)
        enqueue(conn, payload="a", ordering_key="a")
        producer, worker = opened(), opened()
        enqueue(producer, payload="a", ordering_key="a")
        one = waiting(enqueue_many, connect(autocommit=True), batch)
        assert ack(worker, row.lease) == [row.id]
        two = waiting(enqueue_many, connect(autocommit=True), batch)
        producer.commit()
        worker.commit()
        assert [len(one.result()), len(two.result())] == [2, 2]
        producer.close()
        worker.close()
        drain(conn)
        check_empty(conn)


def test_a_batch_storm_over_few_keys_does_not_deadlock(conn: Connection, connect: Connect) -> None:
    """Several ordering and dedupe keys a statement, in random order, beside workers."""
    rounds, sent = 40, Counter[str]()
    delivered: list[Any] = []
    ended = threading.Event()

    def produce(producer: Connection, seed: int) -> None:
        chance = random.Random(seed)
        for i in range(rounds):
            keys = chance.sample("abcdef", 4)
            rows = enqueue_many(
                producer,
                [
                    {
                        "payload": k,
                        "ordering_key": k,
                        "dedupe_key": f"{k}{i % 10}",
                        "on_duplicate": o,
                    }
                    for k, o in zip(keys, chance.choices(["ignore", "replace", "requeue"], k=4))
                ],
            )
            assert len(rows) == 4

    def work(worker: Connection) -> None:
        while not ended.is_set() or count(worker, "outbox_ready"):
            if rows := claim(worker, 3):
                delivered.extend(rows)
                ack(worker, rows[0].lease)

    def produce_all() -> None:
        try:
            at_once(*(lambda i=i: produce(connect(autocommit=True), i) for i in range(4)))
        finally:
            ended.set()

    at_once(produce_all, *(lambda: work(connect(autocommit=True)) for _ in range(3)))
    drain(conn)
    check_empty(conn)
    sent.update(row.id for row in delivered)
    assert sent


def test_an_insert_and_a_function_with_the_same_two_keys_end_well(
    conn: Connection, connect: Connect, opened: Open, waiting: Later
) -> None:
    """The function locks the ordering key first, the bulk door the dedupe key: one may get 40P01."""

    def insert(conn: Connection) -> None:
        conn.execute(
            "insert into outbox_events (topic, payload, ordering_key, dedupe_key)"
            " values ('t', '1', 'k', 'd') on conflict do nothing"
        )

    holder = opened()
    enqueue(holder, ordering_key="k")
    one = waiting(enqueue, connect(autocommit=True), ordering_key="k", dedupe_key="d")
    two = waiting(insert, connect(autocommit=True))
    holder.rollback()
    for answer in one, two:
        with suppress(DeadlockDetected):
            answer.result()
    check(conn)
    assert [row.dedupe_key for row in drain(conn)] == ["d"]
    check_empty(conn)


def _waiting_event(conn: Connection) -> int:
    return int(enqueue(conn, payload="old", dedupe_key="d").id)


def _scheduled_event(conn: Connection) -> int:
    id = _waiting_event(conn)
    conn.execute(
        "select outbox_enqueue('t', '\"old\"', 'd', available_at => now() + interval '1 day', on_duplicate => 'replace')"
    )
    make_due(conn)
    assert count(conn, "outbox_scheduled") == 1
    return id


def _retried_event(conn: Connection) -> int:
    id = _waiting_event(conn)
    fail(conn, claim(conn)[0].lease, retry_in=timedelta(days=1))
    make_due(conn)
    return id


def _keyed_event(conn: Connection) -> int:
    return int(enqueue(conn, payload="old", dedupe_key="d", ordering_key="k").id)


WAITING = {
    "ready": _waiting_event,
    "due": _scheduled_event,
    "retry": _retried_event,
    "keyed": _keyed_event,
}


@pytest.mark.parametrize("make", WAITING.values(), ids=WAITING)
@pytest.mark.parametrize("commit", [True, False], ids=["commits", "rolls back"])
def test_a_claim_passes_over_an_event_that_is_being_replaced(
    make: Callable[[Connection], int],
    commit: bool,
    conn: Connection,
    impatient: Connection,
    opened: Open,
) -> None:
    made = make(conn)
    producer = opened()
    row = enqueue(producer, payload="new", dedupe_key="d", on_duplicate="replace")
    assert (row.id, row.created, row.changed) == (made, False, True)
    assert claim(impatient) == []
    assert cancel(impatient, [made]) == []
    reap(impatient)
    assert claim(impatient) == []
    (producer.commit if commit else producer.rollback)()
    (row,) = claim(conn)
    assert (row.id, row.payload) == (made, "new" if commit else "old")


# A replace or requeue takes a second to be sure that the event is not only on its way elsewhere.
@pytest.mark.parametrize(
    ("make", "commit"),
    list(zip(WAITING.values(), [True, False, True, False], strict=True)),
    ids=["ready, commits", "due, rolls back", "retry, commits", "keyed, rolls back"],
)
def test_a_replace_changes_nothing_that_an_open_claim_holds(
    make: Callable[[Connection], int],
    commit: bool,
    conn: Connection,
    impatient: Connection,
    opened: Open,
) -> None:
    made = make(conn)
    worker = opened()
    (held,) = claim(worker)
    for on_duplicate in "ignore", "replace", "requeue":
        row = enqueue(impatient, payload="new", dedupe_key="d", on_duplicate=on_duplicate)
        assert (row.id, row.created, row.changed) == (made, False, False)
    (worker.commit if commit else worker.rollback)()
    if commit:
        assert ack(conn, held.lease) == [made]
    assert [row.payload for row in drain(conn)] == ([] if commit else ["old"])
    check(conn)


def test_a_replace_of_a_blocked_event_while_its_predecessor_is_acked(
    conn: Connection, impatient: Connection, opened: Open
) -> None:
    head = enqueue(conn, payload="head", ordering_key="k").id
    made = _keyed_event(conn)
    (row,) = claim(conn)
    assert row.id == head
    producer = opened()
    assert enqueue(producer, payload="new", dedupe_key="d", on_duplicate="replace").changed
    assert ack(impatient, row.lease) == [head]
    assert claim(impatient) == []
    producer.commit()
    assert [(row.id, row.payload) for row in drain(conn)] == [(made, "new")]
    check_empty(conn)


RACES = ["claim", "ack", "fail", "release", "prune", "cancel", "lose"]


@pytest.mark.parametrize("retention", [ZERO, timedelta(days=1)], ids=["kept not", "kept a day"])
@pytest.mark.parametrize("ordering_key", [None, "k"], ids=["unkeyed", "keyed"])
@pytest.mark.parametrize("on_duplicate", ["ignore", "replace", "requeue"])
@pytest.mark.parametrize("race", RACES)
def test_a_repeated_enqueue_races(
    race: str,
    on_duplicate: str,
    ordering_key: str | None,
    retention: timedelta,
    conn: Connection,
    connect: Connect,
) -> None:
    """Whatever the two come upon, their answers say what is delivered: never less, never more."""
    configure(conn, retention=retention, backoff_base=ZERO)
    worker, producer, holder = connect(autocommit=True), connect(autocommit=True), connect()
    worker.execute("set lock_timeout = '5s'")
    keys: dict[str, Any] = {"dedupe_key": "d", "ordering_key": ordering_key}
    for _ in range(8):
        conn.execute("delete from outbox_events")
        first = enqueue(conn, payload="old", **keys).id
        held = claim(conn) if race in ("ack", "fail", "release", "prune", "lose") else []
        acked = []
        if race == "prune":
            # Held so that the log's row stays although its topic keeps nothing.
            holder.execute("select from outbox_events for update")
            acked += ack(worker, held[0].lease)
            holder.rollback()
            conn.execute("update outbox_events set created_at = created_at - interval '2 days'")
        if race == "lose":
            expire(conn)

        def answer() -> Any:
            match race:
                case "claim":
                    return claim(worker)
                case "ack":
                    return ack(worker, held[0].lease)
                case "fail":
                    return fail(worker, held[0].lease)
                case "release":
                    return release(worker, held[0].lease)
                case "cancel":
                    return cancel(worker, [first])
                case _:
                    return reap(worker)

        answered, again = at_once(
            answer, lambda: enqueue(producer, payload="new", on_duplicate=on_duplicate, **keys)
        )
        check(conn)
        payloads = []
        if race == "ack":
            assert answered == [first]
            payloads += ["old"]
        if race == "prune":
            assert acked == [first]
            payloads += ["old"]
        if race == "claim":
            payloads += [row.payload for row in answered]
            for row in answered:
                assert ack(conn, row.lease) == [row.id]
        payloads += [row.payload for row in drain(conn)]
        cancelled = race == "cancel" and answered == [first]

        assert again.created == (again.id != first)
        if again.created:
            assert again.changed
            expected = ["new"] if cancelled else ["old", "new"]
        elif cancelled:
            # The repeat came first.
            expected = []
        elif on_duplicate == "replace" and again.changed:
            expected = ["new"]
        elif on_duplicate == "requeue" and again.changed and race in ("ack", "prune"):
            expected = ["old", "old"]
        else:
            expected = ["old"]
        assert payloads == expected, (again, answered)
        assert on_duplicate != "ignore" or again.changed == again.created
        check_empty(conn)


@pytest.mark.parametrize("retention", [ZERO, timedelta(days=1)], ids=["kept not", "kept a day"])
@pytest.mark.parametrize("ordering_key", [None, "k"], ids=["unkeyed", "keyed"])
def test_of_racing_requeues_of_a_done_event_one_is_in_effect(
    ordering_key: str | None, retention: timedelta, conn: Connection, connect: Connect
) -> None:
    configure(conn, retention=retention)
    producers = [connect(autocommit=True) for _ in range(4)]
    for _ in range(20):
        enqueue(conn, dedupe_key="d", ordering_key=ordering_key)
        (row,) = claim(conn)
        answers = at_once(
            lambda: ack(conn, row.lease),
            *(
                lambda p=p: enqueue(
                    p, dedupe_key="d", ordering_key=ordering_key, on_duplicate="requeue"
                )
                for p in producers
            ),
        )[1:]
        in_effect = [answer for answer in answers if answer.changed]
        assert len(in_effect) <= 1
        assert ids(drain(conn)) == ids(in_effect)
        check_empty(conn)
        conn.execute("delete from outbox_events")


# Producers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordering_key", [None, "k"], ids=["unkeyed", "keyed"])
@pytest.mark.parametrize("end", ["commit", "rollback", "prepared", "prepared rollback"])
def test_a_producer_that_commits_late_is_not_skipped(
    ordering_key: str | None, end: str, conn: Connection, connect: Connect, impatient: Connection
) -> None:
    fill(conn, 5)
    slow = connect(autocommit=True)
    slow.execute("begin")
    late = enqueue(slow, payload="late", ordering_key=ordering_key).id
    if end.startswith("prepared"):
        slow.execute("prepare transaction 'slow'")
    passed: list[int] = []
    for i in range(8):
        enqueue(impatient, payload=i, ordering_key=f"other{i}")
        fill(impatient, 20)
        while rows := claim(impatient, 9):
            passed += ack(impatient, rows[0].lease)
        reap(impatient)
    passed += ids(drain(impatient))
    assert len(passed) == len(set(passed)) == 5 + 8 * 21
    slow.execute(
        {
            "commit": "commit",
            "rollback": "rollback",
            "prepared": "commit prepared 'slow'",
            "prepared rollback": "rollback prepared 'slow'",
        }[end]
    )
    delivered = ids(claim(conn, 10))
    assert delivered == ([] if "rollback" in end else [late])
    check(conn)


@pytest.mark.parametrize("commit", [True, False], ids=["commits", "rolls back"])
def test_a_prepared_claim_holds_its_events_and_no_others(
    commit: bool, conn: Connection, impatient: Connection
) -> None:
    made = fill(conn, 5)
    conn.execute("begin")
    (lost,) = claim(conn)
    (row,) = claim(conn)
    assert ack(conn, row.lease) == [made[1]]
    conn.execute("prepare transaction 'claim'")
    assert ids(claim(impatient, 9)) == made[2:]
    reap(impatient)
    assert claim(impatient, 9) == []
    conn.execute(f"{'commit' if commit else 'rollback'} prepared 'claim'")
    if commit:
        assert claim(impatient, 9) == []
        assert ack(impatient, lost.lease) == made[:1]
    else:
        assert [(row.id, row.attempt) for row in claim(impatient, 9)] == [
            (made[0], 1),
            (made[1], 1),
        ]
    check(conn)


@pytest.mark.parametrize("known", [False, True], ids=["first use", "known topic"])
@pytest.mark.parametrize("commit", [True, False], ids=["commits", "rolls back"])
def test_producers_without_a_shared_key_never_wait(
    known: bool, commit: bool, conn: Connection, impatient: Connection, opened: Open
) -> None:
    if known:
        enqueue(conn)
    first, second = opened(), opened()
    for i, producer in enumerate([first, second]):
        enqueue(producer, priority=1)
        enqueue(producer, dedupe_key=f"d{i}", ordering_key=f"o{i}")
        enqueue_many(producer, [{"payload": 1}, {"payload": 2, "ordering_key": f"p{i}"}])
        producer.execute("insert into outbox_events (topic, payload) values ('t', '1')")
        enqueue(producer, ordering_key="shared with another topic only", topic=f"t{i}")
    enqueue(impatient)
    second.commit()
    (first.commit if commit else first.rollback)()
    assert len(drain(conn)) == (12 if commit else 6) + 1 + known
    check_empty(conn)


@pytest.mark.parametrize("many", [False, True], ids=["enqueue", "enqueue_many"])
@pytest.mark.parametrize("busy", [False, True], ids=["first use", "key in use"])
@pytest.mark.parametrize("commit", [True, False], ids=["commits", "rolls back"])
def test_producers_of_one_ordering_key_wait_so_that_id_order_is_commit_order(
    many: bool,
    busy: bool,
    commit: bool,
    conn: Connection,
    connect: Connect,
    opened: Open,
    waiting: Later,
) -> None:
    if busy:
        enqueue(conn, ordering_key="k")
    first = opened()
    enqueue(first, ordering_key="k")
    if many:
        second = waiting(
            lambda c: enqueue_many(c, [{"payload": 1, "ordering_key": k} for k in "xk"])[1],
            connect(autocommit=True),
        )
    else:
        second = waiting(enqueue, connect(autocommit=True), ordering_key="k")
    between = enqueue(conn).id
    (first.commit if commit else first.rollback)()
    assert second.result().id > between
    drained = [row.id for row in drain(conn) if row.ordering_key == "k"]
    assert drained == sorted(drained) and len(drained) == 1 + busy + commit
    check_empty(conn)


# Ordering keys --------------------------------------------------------------------------------


def keyed(conn: Connection, events: int, key: str = "k", **named: Any) -> list[int]:
    rows = enqueue_many(conn, [{"payload": i, "ordering_key": key} | named for i in range(events)])
    return ids(rows)


def test_one_of_a_key_is_in_flight(conn: Connection, impatient: Connection, opened: Open) -> None:
    a, b = keyed(conn, 3, "a"), keyed(conn, 3, "b")
    worker = opened()
    rows = claim(worker, 10)
    assert ids(rows) == [a[0], b[0]]
    assert claim(impatient, 10) == []
    worker.commit()
    assert claim(impatient, 10) == []
    assert ack(worker, rows[0].lease) == [a[0], b[0]]
    assert claim(impatient, 10) == []
    worker.rollback()
    assert claim(impatient, 10) == []
    assert ack(conn, rows[0].lease, [b[0]]) == [b[0]]
    assert ids(claim(impatient, 10)) == [b[1]]
    check(conn)


@pytest.mark.parametrize("next", [reap, claim], ids=["reap", "claim"])
@pytest.mark.parametrize("end", ["ack", "dead", "cancel", "cancel dead"])
@pytest.mark.parametrize("successor", [True, False], ids=["with successor", "last"])
@pytest.mark.parametrize("commit", [True, False], ids=["commits", "rolls back"])
def test_a_head_that_ends_does_not_wait_for_a_producer_of_its_key(
    next: Callable[[Connection], Any],
    end: str,
    successor: bool,
    commit: bool,
    conn: Connection,
    impatient: Connection,
    opened: Open,
) -> None:
    configure(conn, on_dead="block" if end == "cancel dead" else "skip")
    made = keyed(conn, 1 + successor)
    rows = claim(conn) if end != "cancel" else []
    if end == "cancel dead":
        fail(conn, rows[0].lease, dead=True)
    producer = opened()
    made.append(enqueue(producer, ordering_key="k").id)
    match end:
        case "ack":
            assert ack(impatient, rows[0].lease) == made[:1]
        case "dead":
            assert fail(impatient, rows[0].lease, dead=True) == made[:1]
        case _:
            assert cancel(impatient, made[:1]) == made[:1]
    check(conn)
    assert ids(claim(impatient)) == made[1:-1]
    reap(impatient)
    assert claim(impatient) == []
    (producer.commit if commit else producer.rollback)()
    rest = made[1:] if commit else made[1:-1]
    if next is reap:
        reap(impatient)
    assert ids(claim(impatient)) == ([] if successor else rest)
    check(conn)
    expire(conn)
    assert ids(drain(conn)) == rest
    check_empty_but_dead(conn)


def check_empty_but_dead(conn: Connection) -> None:
    cancel(conn, [id for (id,) in conn.execute("select id from outbox_dead").fetchall()])
    check_empty(conn)


@pytest.mark.parametrize("commit", [True, False], ids=["commits", "rolls back"])
@pytest.mark.parametrize("which", [1, 2], ids=["the next", "one behind"])
@pytest.mark.parametrize("end", ["ack", "cancel"])
def test_a_blocked_event_is_cancelled_while_the_head_ends(
    end: str, which: int, commit: bool, conn: Connection, impatient: Connection, opened: Open
) -> None:
    made = keyed(conn, 4)
    rows = claim(conn) if end == "ack" else []
    canceller = opened()
    assert cancel(canceller, [made[which]]) == [made[which]]
    if end == "ack":
        assert ack(impatient, rows[0].lease) == made[:1]
    else:
        assert cancel(impatient, made[:1]) == made[:1]
    reap(impatient)
    # The next one's place is open until the cancel has ended: to pass it would break the order.
    assert ids(claim(impatient)) == ([] if which == 1 else [made[1]])
    (canceller.commit if commit else canceller.rollback)()
    check(conn)
    expire(conn)
    rest = [id for id in made[1:] if not (commit and id == made[which])]
    assert ids(drain(conn)) == rest
    check_empty(conn)


@pytest.mark.parametrize("commit", [True, False], ids=["commits", "rolls back"])
def test_the_last_blocked_event_is_cancelled_while_the_head_ends_and_one_is_enqueued(
    commit: bool, conn: Connection, impatient: Connection, opened: Open
) -> None:
    made = keyed(conn, 2)
    (row,) = claim(conn)
    canceller = opened()
    assert cancel(canceller, made[1:]) == made[1:]
    assert ack(impatient, row.lease) == made[:1]
    made += keyed(impatient, 1)
    assert claim(impatient) == []
    (canceller.commit if commit else canceller.rollback)()
    assert ids(drain(conn)) == (made[2:] if commit else made[1:])
    check_empty(conn)


def test_a_dead_event_is_cancelled_while_its_key_comes_to_stand_on_it(
    conn: Connection, impatient: Connection, opened: Open
) -> None:
    configure(conn, on_dead="block")
    made = keyed(conn, 3, dedupe_key=None)
    first = enqueue(conn, payload="first", ordering_key="q", dedupe_key="first").id
    second = keyed(conn, 2, "q")
    while row := next((row for row in claim(conn, 9) if row.ordering_key == "q"), None):
        if row.id == first:
            assert ack(conn, row.lease, [first]) == [first]
            continue
        assert fail(conn, row.lease, ids=[row.id], dead=True) == second[:1]
        break
    # A lower id comes back, and is the head while the dead one still stands.
    assert enqueue(conn, ordering_key="q", dedupe_key="first", on_duplicate="requeue").changed
    (row,) = claim(conn)
    assert row.id == first

    canceller = opened()
    assert cancel(canceller, second[:1]) == second[:1]
    assert ack(impatient, row.lease) == [first]
    canceller.commit()
    check(conn)
    expire(conn)
    assert ids(drain(conn)) == [*made, second[1]] or sorted(ids(drain(conn))) == []
    assert status(conn, second[1]) == "done"
    check_empty(conn)


def test_a_head_that_is_redriven_before_its_turn_was_passed_on_keeps_it(
    conn: Connection, opened: Open
) -> None:
    made = keyed(conn, 2)
    (row,) = claim(conn)
    producer = opened()
    keyed(producer, 1)
    assert fail(conn, row.lease, dead=True) == made[:1]
    producer.rollback()
    assert redrive(conn, made[:1]) == made[:1]
    reap(conn)
    check(conn)
    assert ids(claim(conn, 9)) == made[:1]
    expire(conn)
    assert ids(drain(conn)) == made
    check_empty(conn)


def test_an_open_claim_does_not_keep_a_turn_that_it_could_not_pass_on(
    conn: Connection, impatient: Connection, opened: Open
) -> None:
    made = keyed(conn, 2)
    (row,) = claim(conn)
    canceller, idle = opened(), opened()
    assert cancel(canceller, made[1:]) == made[1:]
    assert ack(conn, row.lease) == made[:1]
    assert claim(idle) == []
    canceller.rollback()
    assert ids(claim(impatient)) == made[1:]
    idle.rollback()
    check(conn)


def test_the_last_of_a_key_leaves_nothing_behind(conn: Connection) -> None:
    for key in "ab":
        keyed(conn, 2, key)
    for _ in range(2):
        rows = claim(conn, 5)
        assert len(rows) == 2
        assert ack(conn, rows[0].lease) == sorted(ids(rows))
    check_empty(conn)


def test_the_last_of_a_key_is_acked_while_the_next_is_enqueued(
    conn: Connection, connect: Connect
) -> None:
    producer, worker = connect(autocommit=True), connect(autocommit=True)
    for _ in range(150):
        made = keyed(conn, 1)
        (row,) = claim(conn)
        acked, new = at_once(lambda: ack(worker, row.lease), lambda: keyed(producer, 1))
        assert acked == made
        check(conn)
        assert ids(drain(conn)) == new
        check_empty(conn)


@pytest.mark.parametrize("end", [fail, release, lose], ids=["fail", "release", "lose"])
def test_an_event_that_comes_back_while_the_head_is_in_flight_goes_before_its_retry(
    end: Callable[[Connection, int], Any], conn: Connection
) -> None:
    configure(conn, backoff_base=ZERO)
    made = keyed(conn, 3)
    (row,) = claim(conn)
    fail(conn, row.lease, dead=True)
    (row,) = claim(conn)
    assert redrive(conn, made[:1]) == made[:1]
    assert claim(conn) == []
    end(conn, row.lease)
    check(conn)
    assert ids(drain(conn)) == made
    check_empty(conn)


@pytest.mark.parametrize("how", ["redrive", "requeue"])
def test_an_event_that_comes_back_while_the_head_is_in_flight_is_next(
    how: str, conn: Connection, impatient: Connection, opened: Open
) -> None:
    made = [enqueue(conn, ordering_key="k", dedupe_key=f"d{i}").id for i in range(3)]
    (row,) = claim(conn)
    fail(conn, row.lease, dead=True) if how == "redrive" else ack(conn, row.lease)
    (row,) = claim(conn)
    comer = opened()
    if how == "redrive":
        assert redrive(comer, made[:1]) == made[:1]
    else:
        assert enqueue(comer, ordering_key="k", dedupe_key="d0", on_duplicate="requeue").changed
    assert ack(impatient, row.lease) == [made[1]]
    assert claim(impatient) == []
    comer.commit()
    assert ids(drain(conn)) == [made[0], made[2]]
    check_empty(conn)


def test_a_key_keeps_its_order_in_a_storm(conn: Connection, connect: Connect) -> None:
    """Producers that commit or roll back, workers that ack, fail, release and lose their leases, cancels and redrives."""
    configure(conn, backoff_base=ZERO, max_attempts=1000)
    keys = [f"k{i}" for i in range(6)]
    lock = threading.Lock()
    committed: set[int] = set()
    cancelled: set[int] = set()
    redriven: set[int] = set()
    acked: Counter[int] = Counter()
    in_flight: dict[str, int] = {}
    order: dict[str, list[int]] = defaultdict(list)
    faults: list[str] = []
    produced = threading.Event()

    def produce(seed: int) -> None:
        chance = random.Random(seed)
        producer = connect()
        for _ in range(60):
            chosen = chance.sample(keys, chance.choice([1, 1, 1, 2, 4]))
            if len(chosen) == 1:
                made = [enqueue(producer, ordering_key=chosen[0]).id]
            else:
                made = ids(
                    enqueue_many(producer, [{"payload": 1, "ordering_key": k} for k in chosen])
                )
            if chance.random() < 0.25:
                producer.rollback()
                continue
            # Noted before the commit: an event may be delivered before this thread goes on.
            with lock:
                committed.update(made)
            producer.commit()

    def work(seed: int) -> None:
        chance = random.Random(seed)
        worker = connect(autocommit=True)
        while True:
            if chance.random() < 0.2:
                reap(worker)
            if chance.random() < 0.1:
                with worker.transaction(force_rollback=True):
                    claim(worker, 3)
            rows = claim(worker, chance.choice([1, 2, 5]))
            if not rows:
                if produced.is_set() and not any(
                    map(count, [worker] * 3, ("outbox_ready", "outbox_scheduled", "outbox_blocked"))
                ):
                    return
                continue
            with lock:
                for row in rows:
                    if row.ordering_key in in_flight:
                        faults.append(f"{row.id} beside {in_flight[row.ordering_key]}")
                    in_flight[row.ordering_key] = row.id
                    if row.id not in order[row.ordering_key]:
                        if (
                            row.id not in redriven
                            and order[row.ordering_key]
                            and row.id < max(order[row.ordering_key])
                        ):
                            faults.append(f"{row.id} after {max(order[row.ordering_key])}")
                        order[row.ordering_key].append(row.id)
            # The key is free from the moment of the answer on, so it is noted before.
            with lock:
                for row in rows:
                    del in_flight[row.ordering_key]
            lease, held = rows[0].lease, sorted(ids(rows))
            match chance.choices(["ack", "fail", "dead", "release", "lose"], [8, 2, 1, 1, 1])[0]:
                case "ack":
                    assert ack(worker, lease) == held
                    with lock:
                        acked.update(held)
                case "fail":
                    assert fail(worker, lease) == held
                case "dead":
                    assert fail(worker, lease, dead=True) == held
                case "release":
                    assert release(worker, lease) == held
                case "lose":
                    expire(worker, lease)

    def operate() -> None:
        chance = random.Random(0)
        operator = connect()
        while not produced.is_set():
            with lock:
                some = chance.sample(sorted(committed), min(len(committed), 3))
            gone = cancel(operator, some)
            if chance.random() < 0.5:
                operator.rollback()
            else:
                operator.commit()
                with lock:
                    cancelled.update(gone)
            dead = [
                id for (id,) in operator.execute("select id from outbox_dead limit 5").fetchall()
            ]
            with lock:
                redriven.update(dead)
            redrive(operator, dead)
            (operator.commit if chance.random() < 0.7 else operator.rollback)()
            check(operator)
            operator.commit()
            time.sleep(0.002)

    def produce_all() -> None:
        try:
            at_once(*(lambda s=s: produce(s) for s in range(4)))
        finally:
            produced.set()

    at_once(produce_all, operate, *(lambda s=s: work(s) for s in range(5)))
    assert not faults, faults
    check(conn)
    dead = [id for (id,) in conn.execute("select id from outbox_dead").fetchall()]
    redrive(conn, dead)
    acked.update(ids(drain(conn)))
    assert set(acked.values()) <= {1}
    assert acked.keys() == committed - cancelled
    check_empty(conn)


# Those who never wait -------------------------------------------------------------------------


def _held(conn: Connection, opened: Open) -> list[Connection]:
    """Transactions that hold what there is of every kind."""
    configure(conn, retention=ZERO, backoff_base=ZERO)
    fill(conn, 8)
    keyed(conn, 4)
    enqueue(conn, payload="d", dedupe_key="d")
    enqueue(conn, payload="dead", priority=10)
    fail(conn, claim(conn)[0].lease, dead=True)
    claimer, acker, failer, extender, producer = (opened() for _ in range(5))
    rows = [claim(conn)[0] for _ in range(4)]
    expire(conn)
    claim(claimer, 2)
    ack(acker, rows[0].lease)
    fail(failer, rows[1].lease)
    extend(extender, rows[2].lease)
    extender.execute("select from outbox_leases where lease = %s for update", [rows[3].lease])
    keyed(producer, 1)
    enqueue(producer, payload="new", dedupe_key="d", on_duplicate="replace")
    extender.execute("select from outbox_dead for update")
    return [claimer, acker, failer, extender, producer]


@pytest.mark.parametrize("what", ["reap", "cancel", "pause", "claim", "resume", "next_due"])
def test_some_never_wait(what: str, conn: Connection, impatient: Connection, opened: Open) -> None:
    held = _held(conn, opened)
    everything = [id for (id,) in conn.execute("select id from outbox_events").fetchall()]
    match what:
        case "reap":
            for _ in range(3):
                reap(impatient)
        case "cancel":
            assert len(cancel(impatient, everything)) > 3
        case "claim":
            assert claim(impatient, 100)
        case _:
            arguments = [["t"]] if what == "next_due" else ["t"]
            call(impatient, f"outbox_{what}", *arguments)
    for each in held:
        each.rollback()
    call(conn, "outbox_resume", "t")
    check(conn)
    expire(conn)
    drain(conn)
    check_empty_but_dead(conn)


def test_reapers_share_the_work(conn: Connection, connect: Connect, opened: Open) -> None:
    configure(conn, "short", retention=ZERO)
    fill(conn, 30)
    claim(conn, 30)
    enqueue_many(conn, [{"payload": i, "available_at": "2100-01-01T00:00:00Z"} for i in range(30)])
    make_due(conn)
    expire(conn)
    held = fill(conn, 30, "short")
    with conn.transaction():
        # Acked while the log is held, so that it is the reapers who prune.
        holder = connect()
        holder.execute("select from outbox_events for update")
        ack(conn, claim(conn, 30, topics=["short"])[0].lease)
    holder.rollback()
    assert len(held) == 30
    reapers = [opened() for _ in range(4)]
    done = [reap(each, 10) for each in reapers]
    assert [row.expired for row in done] == [10, 10, 10, 0]
    assert [row.promoted for row in done] == [10, 10, 10, 0]
    for each in reapers:
        each.commit()
    assert sum(row.pruned for row in done) + reap(conn, 100).pruned == 30
    check(conn)
    reapers = [connect(autocommit=True) for _ in range(8)]
    assert len(at_once(*(lambda r=r: [reap(r, 3) for _ in range(20)] for r in reapers))) == 8
    assert len(drain(conn)) == 60
    check_empty(conn)


def test_a_pause_holds_for_claims_that_start_after_its_commit(
    conn: Connection, impatient: Connection, opened: Open
) -> None:
    made = fill(conn, 3)
    worker, operator = opened(), opened()
    assert ids(claim(worker)) == made[:1]
    call(operator, "outbox_pause", "t")
    assert ids(claim(impatient)) == made[1:2]
    operator.commit()
    assert claim(impatient) == []
    enqueue(impatient)
    worker.commit()


# Isolation ------------------------------------------------------------------------------------

STRICT = [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE]
each_strict = pytest.mark.parametrize("level", STRICT, ids=lambda level: level.name.lower())


@pytest.fixture
def snapshot(connect: Connect) -> Callable[[IsolationLevel], Connection]:
    """A connection whose transaction sees what is committed now, whatever is committed later."""

    def snapshot(level: IsolationLevel) -> Connection:
        conn = connect(options=PATIENCE)
        conn.isolation_level = level
        conn.execute("select from outbox_events")
        return conn

    return snapshot


Snapshot = Callable[[IsolationLevel], Connection]


def again(conn: Connection, function: Callable[[Connection], Any]) -> Any:
    """What the function answers in a transaction that is repeated as long as it fails with 40001."""
    while True:
        try:
            answer = function(conn)
            conn.commit()
            return answer
        except SerializationFailure:
            conn.rollback()


@each_strict
def test_a_strict_claim_does_not_deliver_what_a_replace_has_overwritten(
    level: IsolationLevel, conn: Connection, snapshot: Snapshot
) -> None:
    enqueue(conn, payload="old", dedupe_key="d")
    worker = snapshot(level)
    assert enqueue(conn, payload="new", dedupe_key="d", on_duplicate="replace").changed
    (row,) = again(worker, claim)
    assert row.payload == "new"


@each_strict
@pytest.mark.parametrize("how", ["enqueue", "redrive", "requeue"])
@pytest.mark.parametrize("what", ["ack", "dead", "handover"])
def test_a_strict_answer_does_not_overlook_what_entered_its_key(
    how: str, what: str, level: IsolationLevel, conn: Connection, opened: Open, snapshot: Snapshot
) -> None:
    first = enqueue(conn, ordering_key="k", dedupe_key="first").id
    (row,) = claim(conn)
    if how == "redrive":
        fail(conn, row.lease, dead=True)
    else:
        ack(conn, row.lease)
    enqueue(conn, ordering_key="k")
    (row,) = claim(conn)
    if what == "handover":
        producer = opened()
        enqueue(producer, ordering_key="k")
        ack(conn, row.lease)
        producer.rollback()
    strict = snapshot(level)
    match how:
        case "enqueue":
            entered = enqueue(conn, ordering_key="k").id
        case "redrive":
            (entered,) = redrive(conn, [first])
        case _:
            entered = enqueue(conn, ordering_key="k", dedupe_key="first", on_duplicate="requeue").id
    match what:
        case "ack":
            assert again(strict, lambda c: ack(c, row.lease)) == [row.id]
        case "dead":
            assert again(strict, lambda c: fail(c, row.lease, dead=True)) == [row.id]
        case _:
            again(strict, reap)
    check(conn)
    assert ids(claim(conn)) == [entered]
    check(conn)
    expire(conn)
    assert ids(drain(conn)) == [entered]
    check_empty_but_dead(conn)


@each_strict
def test_a_strict_ack_with_a_snapshot_older_than_its_lease_answers_lost(
    level: IsolationLevel, conn: Connection, snapshot: Snapshot
) -> None:
    (made,) = fill(conn, 1)
    strict = snapshot(level)
    (row,) = claim(conn)
    assert ack(strict, row.lease) == []
    strict.rollback()
    assert ack(strict, row.lease) == [made]


@each_strict
def test_strict_callers_lose_nothing_and_get_nothing_twice(
    level: IsolationLevel, conn: Connection, connect: Connect
) -> None:
    configure(conn, backoff_base=ZERO, max_attempts=1000)
    acked: list[int] = []
    made: list[int] = []
    lock = threading.Lock()
    produced = threading.Event()

    def strict() -> Connection:
        conn = connect()
        conn.isolation_level = level
        return conn

    def produce(seed: int) -> None:
        producer, chance = strict(), random.Random(seed)
        for i in range(25):
            named = chance.choice([{}, {"ordering_key": f"k{i % 3}"}, {"dedupe_key": f"d{i}"}])
            row = again(producer, lambda c: enqueue(c, payload=i, **named))
            with lock:
                made.extend([row.id] if row.created else [])

    def work(seed: int) -> None:
        worker, chance = strict(), random.Random(seed)
        while not produced.is_set() or count(worker, "outbox_ready"):
            worker.rollback()
            if not (rows := again(worker, lambda c: claim(c, 3))):
                again(worker, reap)
                continue
            match chance.choice(["ack", "ack", "fail", "release", "lose"]):
                case "ack":
                    held = again(worker, lambda c: ack(c, rows[0].lease))
                    assert held == sorted(ids(rows))
                    with lock:
                        acked.extend(held)
                case "fail":
                    assert again(worker, lambda c: fail(c, rows[0].lease)) == sorted(ids(rows))
                case "release":
                    assert again(worker, lambda c: release(c, rows[0].lease)) == sorted(ids(rows))
                case "lose":
                    again(worker, lambda c: expire(c, rows[0].lease))

    def produce_all() -> None:
        try:
            at_once(*(lambda s=s: produce(s) for s in range(3)))
        finally:
            produced.set()

    at_once(produce_all, *(lambda s=s: work(s) for s in range(4)))
    check(conn)
    acked += ids(drain(conn))
    assert Counter(acked) == Counter(made)
    check_empty(conn)
