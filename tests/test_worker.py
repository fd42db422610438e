"""The worker: what it holds, how handlers end, lost leases, lost connections, and stopping."""

from __future__ import annotations

import logging
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from pgoutbox import Delivery, Outbox
from pgoutbox import worker as module
from pgoutbox._postgres import Cluster
from pgoutbox.migrate import migrate
from pgoutbox.worker import Discard, Retry, Worker
from psycopg.conninfo import make_conninfo

Conn = psycopg.Connection[Any]
Handler = Callable[[Delivery], object]
Work = Callable[..., Worker]

SECOND = timedelta(seconds=1)


def eventually(true: Callable[[], Any], seconds: float = 30) -> Any:
    """The first true answer."""
    deadline = time.monotonic() + seconds
    while not (answer := true()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return answer


@pytest.fixture
def outbox(conn: Conn) -> Outbox:
    return Outbox(conn)


@contextmanager
def working(dsn: str, handler: Handler, **options: Any) -> Iterator[Worker]:
    """A worker that runs in a thread; what its run raises is raised at the end."""
    worker = Worker(dsn, handler, **({"poll_interval": 0.05} | options))
    failures: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(40)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def statuses(conn: Conn) -> list[tuple[int, str]]:
    return conn.execute("select id, status from outbox_event_status order by id").fetchall()


def counts(conn: Conn) -> dict[str, int]:
    return Counter(status for _, status in statuses(conn))


def all_are(conn: Conn, status: str) -> bool:
    return counts(conn).keys() == {status}


class Gate:
    """A handler that waits until it is opened, and notes what came in and what went out."""

    def __init__(self) -> None:
        self.entered: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self.left: list[int] = []
        self.open = threading.Event()

    def __call__(self, delivery: Delivery) -> None:
        self.entered.put(delivery)
        assert self.open.wait(60)
        self.left.append(delivery.id)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def watch(conn: Conn, dsn: str) -> Callable[..., str]:
    """Puts functions before the queue's own, which note each call; answers a dsn that meets them.

    `first` is what one of them does before it calls the queue's own.
    """
    conn.execute("create schema watched")
    conn.execute("create table watched.calls (called text, at timestamptz, ids bigint[])")

    def watch(called: str, parameters: str, answer: str, first: str = "", ids: str = "null") -> str:
        names = ", ".join(word.split()[0] for word in parameters.split(", "))
        conn.execute(
            f"""
            create function watched.{called} ({parameters}) returns {answer} language plpgsql as $$
            #variable_conflict use_column
            begin
                insert into watched.calls values ('{called}', clock_timestamp(), {ids});
                {first}
                return query select * from public.{called}({names});
            end $$
            """.encode()
        )
        return make_conninfo(dsn, options="-csearch_path=watched,public")

    return watch


EXTEND = (
    "outbox_extend",
    "lease bigint, ids bigint[], lease_for interval",
    "table (id bigint, lease_expires_at timestamptz)",
)
ACK = ("outbox_ack", "lease bigint, ids bigint[]", "setof bigint")
CLAIM = (
    "outbox_claim",
    "worker text, n integer, topics text[], lease_for interval",
    "setof outbox_delivery",
)
REAP = (
    "outbox_reap",
    "n integer",
    "table (expired integer, dead integer, promoted integer, pruned integer)",
)


def calls(conn: Conn, called: str) -> int:
    query = "select from watched.calls where called = %s"
    return conn.execute(query, [called]).rowcount


# Claims


def test_each_event_is_handled_once_and_acknowledged(outbox: Outbox, conn: Conn, dsn: str) -> None:
    outbox.enqueue_many({"topic": "t", "payload": i} for i in range(200))
    handled: list[Delivery] = []
    with working(dsn, handled.append, concurrency=4):
        eventually(lambda: all_are(conn, "done"))
    assert sorted(d.payload for d in handled) == list(range(200))
    assert {type(d) for d in handled} == {Delivery}


@pytest.mark.parametrize(("options", "most"), [({}, 2), ({"batch": 5}, 5)])
def test_it_holds_no_more_than_it_has_room_for(
    outbox: Outbox, conn: Conn, dsn: str, gate: Gate, options: dict[str, int], most: int
) -> None:
    outbox.enqueue_many({"topic": "t", "payload": i} for i in range(8))
    with working(dsn, gate, concurrency=2, **options):
        for _ in range(2):
            gate.entered.get(timeout=10)
        eventually(lambda: counts(conn).get("processing") == most)
        with pytest.raises(queue.Empty):
            gate.entered.get(timeout=0.2)
        assert counts(conn) == {"processing": most, "pending": 8 - most}
        gate.open.set()
        eventually(lambda: all_are(conn, "done"))


def test_it_claims_only_its_topics_for_its_time_in_its_name(
    outbox: Outbox, conn: Conn, dsn: str, gate: Gate
) -> None:
    for topic in "abc":
        outbox.enqueue(topic, None)
    options = {"topics": ("a", "c"), "name": "me", "lease_for": timedelta(hours=3)}
    with working(dsn, gate, concurrency=3, **options):
        got = [gate.entered.get(timeout=10) for _ in range(2)]
        assert sorted(d.topic for d in got) == ["a", "c"]
        row = conn.execute(
            "select count(*), min(lease_expires_at - locked_at) from outbox_event_status"
            " where locked_by = 'me'"
        ).fetchone()
        assert row is not None
        assert row[0] == 2
        assert row[1] > timedelta(hours=2)
        gate.open.set()
    assert outbox.claim("w", 3)[0].topic == "b"


def test_events_of_an_ordering_key_follow_at_once(outbox: Outbox, conn: Conn, dsn: str) -> None:
    outbox.enqueue_many({"topic": "t", "payload": i, "ordering_key": "k"} for i in range(50))
    order: list[int] = []
    with working(dsn, lambda d: order.append(d.payload), concurrency=3, poll_interval=30.0):
        eventually(lambda: all_are(conn, "done"))
    assert order == list(range(50))


def test_what_is_not_due_yet_is_waited_for(outbox: Outbox, conn: Conn, dsn: str) -> None:
    row = conn.execute(
        "select outbox_enqueue('t', '1', available_at => clock_timestamp() + interval '0.7 s')"
    ).fetchone()
    assert row
    handled: list[float] = []

    def handle(delivery: Delivery) -> None:
        late = "select extract(epoch from clock_timestamp() - available_at) from outbox_events"
        handled.append(float(conn.execute(late).fetchall()[0][0]))

    with working(dsn, handle, poll_interval=60.0):
        eventually(lambda: handled)
    assert 0 <= handled[0] < 1


def test_an_idle_worker_does_not_spin(
    outbox: Outbox, connect: Callable[..., Conn], conn: Conn, watch: Callable[..., str]
) -> None:
    dsn = watch(*CLAIM)
    outbox.enqueue("t", 1)
    other = connect()
    assert len(Outbox(other).claim("uncommitted")) == 1
    # The event is due, and no claim gets it.
    assert outbox.next_due() is not None
    with working(dsn, print, poll_interval=60.0):
        eventually(lambda: calls(conn, "outbox_claim"))
        time.sleep(1.0)
        assert calls(conn, "outbox_claim") < 12
        other.rollback()
        eventually(lambda: all_are(conn, "done"))


def test_it_reaps_now_and_then(
    conn: Conn, watch: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REAP_EVERY", 0.2)
    dsn = watch(*REAP)
    with working(dsn, print):
        eventually(lambda: calls(conn, "outbox_reap") >= 2)


def test_it_works_on_when_it_may_not_reap(
    outbox: Outbox, conn: Conn, watch: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REAP_EVERY", 0.01)
    dsn = watch(*REAP, first="raise insufficient_privilege;")
    with working(dsn, print):
        for i in range(20):
            outbox.enqueue("t", i)
            eventually(lambda: all_are(conn, "done"))


# How handlers end


def last_error(conn: Conn) -> Any:
    return conn.execute("select last_error from outbox_event_status").fetchall()[0][0]


@pytest.mark.parametrize("after", [timedelta(minutes=7), 420, 420.0])
def test_retry_waits_as_it_says(
    outbox: Outbox, conn: Conn, dsn: str, after: timedelta | float
) -> None:
    outbox.enqueue("t", 1)

    def handle(delivery: Delivery) -> None:
        raise Retry(after) from ConnectionError("no answer")

    with working(dsn, handle):
        eventually(lambda: all_are(conn, "retry"))
    row = conn.execute(
        "select attempts, available_at - clock_timestamp() from outbox_event_status"
    ).fetchone()
    assert row is not None
    assert row[0] == 1
    assert timedelta(minutes=6) < row[1] <= timedelta(minutes=7)
    assert "ConnectionError: no answer" in last_error(conn)


def test_retry_waits_as_the_topic_says(outbox: Outbox, conn: Conn, dsn: str) -> None:
    outbox.configure("t", backoff_base=timedelta(), backoff_cap=timedelta(), max_attempts=3)
    outbox.enqueue("t", 1)
    attempts: list[int] = []

    def handle(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        raise Retry

    with working(dsn, handle):
        eventually(lambda: all_are(conn, "dead"))
    assert attempts == [1, 2, 3]


def test_discard_is_for_good(outbox: Outbox, conn: Conn, dsn: str) -> None:
    outbox.enqueue("t", 1)

    def handle(delivery: Delivery) -> None:
        raise Discard("no such customer")

    with working(dsn, handle):
        eventually(lambda: all_are(conn, "dead"))
    query = "select reason, last_error, attempts from outbox_dead_letters"
    assert conn.execute(query).fetchall() == [("discarded", "no such customer", 1)]


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("bad \0 value \ud800"), "ValueError: bad \ufffd value ?"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (Unspeakable(), "Unspeakable"),
        (ValueError("x" * 9000 + " the end"), "x the end"),
    ],
)
def test_anything_else_is_a_failure_with_its_traceback(
    outbox: Outbox, conn: Conn, dsn: str, error: BaseException, said: str
) -> None:
    outbox.enqueue("t", 1)

    def handle(delivery: Delivery) -> None:
        deeper()

    def deeper() -> None:
        raise error

    with working(dsn, handle):
        eventually(lambda: all_are(conn, "retry"))
    text = last_error(conn)
    assert said in text
    assert len(text) <= 8000
    if len(text) < 8000:
        assert text.startswith("Traceback")
        assert "in deeper" in text
        assert "pgoutbox/worker.py" not in text


def test_retry_out_of_bounds_is_a_failure(outbox: Outbox, conn: Conn, dsn: str) -> None:
    outbox.enqueue("t", 1)

    def handle(delivery: Delivery) -> None:
        raise Retry(after=-1)

    with working(dsn, handle):
        eventually(lambda: all_are(conn, "retry"))
    assert "give 0 to 365 days" in last_error(conn)


def test_a_coroutine_is_never_taken_for_success(outbox: Outbox, conn: Conn, dsn: str) -> None:
    async def handle(delivery: Delivery) -> None: ...

    with pytest.raises(TypeError, match="coroutine"):
        Worker(dsn, handle)
    outbox.enqueue("t", 1)
    with working(dsn, lambda delivery: handle(delivery)):
        eventually(lambda: all_are(conn, "retry"))
    assert "awaitable" in last_error(conn)


def test_what_cannot_be_decoded_fails_alone(outbox: Outbox, conn: Conn, dsn: str) -> None:
    conn.execute("select outbox_enqueue('t', repeat('9', 5000)::jsonb)")
    outbox.enqueue("t", "good")
    handled: list[object] = []
    with working(dsn, lambda d: handled.append(d.payload), concurrency=2):
        eventually(lambda: [status for _, status in statuses(conn)] == ["retry", "done"])
    assert handled == ["good"]
    query = "select last_error from outbox_event_status where status = 'retry'"
    assert "cannot be decoded" in str(conn.execute(query).fetchone())


# Leases


def test_a_heartbeat_keeps_the_lease_of_a_long_handler(
    outbox: Outbox, conn: Conn, watch: Callable[..., str], gate: Gate
) -> None:
    dsn = watch(*EXTEND)
    outbox.enqueue_many({"topic": "t", "payload": i} for i in range(3))
    started = time.monotonic()
    # Two wait for the one thread: they are kept as well.
    with working(dsn, gate, batch=3, lease_for=SECOND * 1.5):
        gate.entered.get(timeout=10)
        while time.monotonic() - started < 4:
            assert outbox.reap().expired == 0
            assert outbox.claim("thief") == []
        assert 4 <= calls(conn, "outbox_extend") <= 10
        gate.open.set()
        eventually(lambda: all_are(conn, "done"))
    assert sorted(gate.left) == [1, 2, 3]


def test_a_heartbeat_stops_before_the_ack(
    outbox: Outbox, conn: Conn, watch: Callable[..., str], gate: Gate
) -> None:
    watch(*EXTEND, ids="ids")
    dsn = watch(*ACK, first="perform pg_sleep(1);", ids="ids")
    outbox.enqueue_many({"topic": "t", "payload": i} for i in range(2))
    with working(dsn, gate, concurrency=2, lease_for=SECOND * 0.3):
        for _ in range(2):
            gate.entered.get(timeout=10)
        eventually(lambda: calls(conn, "outbox_extend") >= 2)
        gate.open.set()
        eventually(lambda: all_are(conn, "done"))
    late = conn.execute(
        "select e.ids from watched.calls as e, watched.calls as a"
        " where e.called = 'outbox_extend' and a.called = 'outbox_ack' and e.at > a.at"
        " and e.ids && a.ids"
    ).fetchall()
    assert late == []


def test_a_lost_lease_is_noticed_and_not_acknowledged(
    outbox: Outbox, conn: Conn, dsn: str, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    outbox.enqueue_many({"topic": "t", "payload": i} for i in range(2))
    with working(dsn, gate, batch=2, lease_for=SECOND * 0.3):
        # One runs and one waits when both go to another.
        first = gate.entered.get(timeout=10)
        assert len(outbox.release(first.lease)) == 2
        stolen = outbox.claim("thief", 2)
        assert len(stolen) == 2
        eventually(lambda: caplog.text.count("its lease is lost") == 2)
        gate.open.set()
        eventually(lambda: caplog.text.count("was lost before it ended") == 2)
        assert gate.entered.empty()
        assert all_are(conn, "processing")
        outbox.ack(stolen)
    assert gate.left == [first.id]
    assert caplog.text.count("its lease is lost") == 2


def test_a_killed_workers_events_are_delivered_again(
    outbox: Outbox, conn: Conn, dsn: str, start: Start
) -> None:
    outbox.configure("t", backoff_base=timedelta(), backoff_cap=timedelta())
    outbox.enqueue_many({"topic": "t", "payload": i} for i in range(3))
    process = start(dsn, "hang", concurrency=3, lease_for=timedelta(seconds=1))
    running(process, 3)
    process.kill()
    process.communicate()
    attempts: list[int] = []
    with working(dsn, lambda d: attempts.append(d.attempt)):
        eventually(lambda: all_are(conn, "done"))
    assert attempts == [2, 2, 2]


# Lost connections

TERMINATE = (
    "select pg_terminate_backend(pid) from pg_stat_activity"
    " where application_name = 'pgoutbox worker' and datname = current_database()"
)
CONNECTED = TERMINATE.replace("pg_terminate_backend(pid)", "pid")


@pytest.mark.parametrize("busy", [False, True])
def test_a_terminated_backend_delays_little(
    outbox: Outbox, conn: Conn, dsn: str, gate: Gate, busy: bool
) -> None:
    if busy:
        outbox.enqueue("t", "long")
    with working(dsn, gate, concurrency=2, lease_for=SECOND * 0.6):
        if busy:
            gate.entered.get(timeout=10)
        # The heartbeat has a connection of its own once there was something to extend.
        eventually(lambda: len(conn.execute(CONNECTED).fetchall()) == 1 + busy)
        conn.execute(TERMINATE)
        outbox.enqueue("t", "next")
        assert gate.entered.get(timeout=5).payload == "next"
        gate.open.set()
        eventually(lambda: all_are(conn, "done"))
    assert len(gate.left) == 1 + busy


def test_an_ack_that_breaks_the_connection_is_repeated(
    outbox: Outbox, conn: Conn, watch: Callable[..., str]
) -> None:
    conn.execute("create sequence acks")
    watch(*EXTEND)
    dsn = watch(
        *ACK,
        first="if nextval('public.acks') < 6 then"
        " perform pg_terminate_backend(pg_backend_pid()); end if;",
    )
    outbox.enqueue("t", 1)
    handled: list[int] = []
    with working(dsn, lambda d: handled.append(d.attempt), lease_for=SECOND * 0.6):
        eventually(lambda: all_are(conn, "done"))
    assert handled == [1]
    assert conn.execute("select last_value from acks").fetchone() == (6,)
    # Its lease was kept until then.
    assert calls(conn, "outbox_extend") >= 1


def test_it_survives_a_restart_of_the_server(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    migrate(cluster.dsn)
    gate = Gate()
    with working(cluster.dsn, gate):
        with psycopg.connect(cluster.dsn) as conn:
            Outbox(conn).enqueue("t", "before")
        gate.entered.get(timeout=10)
        cluster.stop()
        gate.open.set()
        eventually(lambda: caplog.text.count("has no connection") >= 4)
        cluster.start()
        with psycopg.connect(cluster.dsn, autocommit=True) as conn:
            Outbox(conn).enqueue("t", "after")
            assert gate.entered.get(timeout=10).payload == "after"
            eventually(lambda: all_are(conn, "done"))
    assert len(gate.left) == 2


def test_what_makes_work_impossible_is_raised(
    outbox: Outbox, conn: Conn, dsn: str, empty_dsn: str, gate: Gate
) -> None:
    with pytest.raises(psycopg.errors.UndefinedFunction):
        Worker(empty_dsn, print).run()
    with pytest.raises(psycopg.OperationalError):
        Worker("postgresql://127.0.0.1:1/x", print).run()
    outbox.enqueue("t", 1)
    with pytest.raises(psycopg.errors.UndefinedFunction), working(dsn, gate, concurrency=2):
        gate.entered.get(timeout=10)
        conn.execute("alter function outbox_claim rename to outbox_claim_no_more")
        time.sleep(0.2)
        # What runs may end all the same.
        gate.open.set()
    assert all_are(conn, "done")


# Stopping

PROGRAM = r"""
import logging, os, sys, time
from datetime import timedelta
from pgoutbox.worker import Worker

logging.basicConfig(level="INFO")

def handle(delivery):
    os.write(1, b"in\n")
    while os.path.exists(delivery.payload) or sys.argv[2] == "hang":
        time.sleep(0.01)

Worker(sys.argv[1], handle, **eval(sys.argv[3], {"datetime": __import__("datetime")})).run()
"""


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a worker in a process; its handlers wait for their payload's file to vanish."""
    with ExitStack() as stack:

        def start(dsn: str, mode: str, **options: Any) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, dsn, mode, repr(options | {"poll_interval": 0.05})],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


def running(process: subprocess.Popen[str], n: int) -> None:
    """Return once n handlers of the process run."""
    assert process.stdout
    for _ in range(n):
        assert process.stdout.readline() == "in\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_handlers_end(
    outbox: Outbox, conn: Conn, dsn: str, tmp_path: Any, number: signal.Signals, start: Start
) -> None:
    go = tmp_path / "wait"
    go.touch()
    outbox.enqueue_many({"topic": "t", "payload": str(go)} for _ in range(30))
    process = start(dsn, "wait", concurrency=20, drain_timeout=20.0)
    running(process, 20)
    process.send_signal(number)
    outbox.enqueue("t", "no such file")
    go.unlink()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert counts(conn) == {"done": 20, "pending": 11}


def test_what_does_not_end_in_time_is_given_back(
    outbox: Outbox, conn: Conn, dsn: str, start: Start
) -> None:
    outbox.enqueue_many({"topic": "t", "payload": "x"} for _ in range(25))
    process = start(dsn, "hang", concurrency=20, batch=23, drain_timeout=4.0)
    running(process, 20)
    assert counts(conn) == {"processing": 23, "pending": 2}
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    # What waits for a thread goes back at once.
    eventually(lambda: counts(conn) == {"processing": 20, "pending": 5})
    _, err = process.communicate(timeout=10)
    assert time.monotonic() - begun < 4
    assert process.returncode == 0, err
    attempts = "select distinct status, attempts from outbox_event_status"
    assert conn.execute(attempts).fetchall() == [("pending", 0)]


def test_a_second_signal_does_not_wait(outbox: Outbox, conn: Conn, dsn: str, start: Start) -> None:
    outbox.enqueue_many({"topic": "t", "payload": "x"} for _ in range(20))
    process = start(dsn, "hang", concurrency=20, drain_timeout=60.0)
    running(process, 20)
    process.send_signal(signal.SIGINT)
    outbox.enqueue("t", "after the stop")
    begun = time.monotonic()
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert time.monotonic() - begun < 5
    assert process.returncode == 0, err
    assert all_are(conn, "pending")


def test_a_stop_ends_in_time_without_a_server(cluster: Cluster, start: Start) -> None:
    migrate(cluster.dsn)
    with psycopg.connect(cluster.dsn, autocommit=True) as conn:
        Outbox(conn).enqueue("t", "x")
        process = start(cluster.dsn, "hang", drain_timeout=4.0)
        running(process, 1)
    cluster.stop()
    begun = time.monotonic()
    process.terminate()
    _, err = process.communicate(timeout=10)
    assert time.monotonic() - begun < 4
    assert process.returncode == 0, err
    assert "Traceback" not in err


def test_stop_before_run_and_run_twice(dsn: str) -> None:
    worker = Worker(dsn, print)
    worker.stop()
    worker.run()
    with pytest.raises(RuntimeError, match="has run already"):
        worker.run()


def test_run_puts_signal_handlers_back(dsn: str) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    worker = Worker(dsn, print)
    during: list[Any] = []

    def look() -> None:
        eventually(lambda: signal.getsignal(signal.SIGTERM) != before[0])
        during.append(signal.getsignal(signal.SIGTERM))
        worker.stop()

    thread = threading.Thread(target=look)
    thread.start()
    worker.run()
    thread.join()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert during != before[:1]


def test_no_thread_of_an_idle_worker_stays(dsn: str) -> None:
    with working(dsn, print, concurrency=7):
        eventually(lambda: sum("pgoutbox" in t.name for t in threading.enumerate()) == 9)
    eventually(lambda: not [t for t in threading.enumerate() if "pgoutbox" in t.name])


def test_it_configures_no_logging(dsn: str) -> None:
    root = list(logging.getLogger().handlers)
    with working(dsn, print):
        pass
    assert logging.getLogger().handlers == root
    assert logging.getLogger("pgoutbox").handlers == []


@pytest.mark.once
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"topics": "t"}, TypeError),
        ({"lease_for": 30}, TypeError),
        ({"handler": None}, TypeError),
        ({"conninfo": None}, TypeError),
        ({"concurrency": 0}, ValueError),
        ({"concurrency": 5, "batch": 4}, ValueError),
        ({"batch": 10_001}, ValueError),
        ({"poll_interval": 0.0}, ValueError),
        ({"poll_interval": float("nan")}, ValueError),
        ({"drain_timeout": -1.0}, ValueError),
    ],
)
def test_what_makes_no_sense_is_refused(options: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options)) if len(options) == 1 else "batch"):
        Worker(**({"conninfo": "", "handler": print} | options))
