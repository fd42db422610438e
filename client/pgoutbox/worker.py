"""A worker: claims events, calls a handler for each in threads, and says how each ended."""

from __future__ import annotations

import inspect
import logging
import math
import os
import queue
import random
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Literal

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ._outbox import Delivery, JsonLoader, LeaseLost, Outbox, Undecoded

__all__ = ["Discard", "Retry", "Worker"]

log = logging.getLogger("pgoutbox")

_LONGEST_ERROR = 8_000  # characters that outbox_fail keeps
_SHORTEST_SLEEP = 0.02
_LONGEST_BACKOFF = 4.0
_REAP_EVERY = 10.0
# A server that went away without a word must be noticed within a lease.
_NETWORK = {
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
_CLAIM = (
    f"select {', '.join(field.name for field in fields(Delivery))},"
    " extract(epoch from lease_expires_at - clock_timestamp())::float8"
    " from outbox_claim(worker => %s, n => %s, topics => %s::text[], lease_for => %s::interval)"
).encode()
_EXTEND = (
    "select id, extract(epoch from lease_expires_at - clock_timestamp())::float8"
    " from outbox_extend(lease => %s, ids => %s::bigint[], lease_for => %s::interval)"
)
_NEXT_DUE = (
    "select extract(epoch from"
    " least(outbox_next_due(topics => %s::text[]) - clock_timestamp(), %s::interval))::float8"
)
# What a new connection may cure: the server is away, restarts, is a standby now, was too busy.
_PASSING = (psycopg.OperationalError, psycopg.InternalError, psycopg.InterfaceError)


class Retry(Exception):
    """Raised by a handler: deliver this event again in `after`, or after the topic's backoff.

    `after` is a timedelta or seconds, 0 to 365 days, taken as it is. It counts as an attempt: the
    last one makes the event dead.
    """

    def __init__(self, after: timedelta | float | None = None) -> None:
        if after is not None and not isinstance(after, timedelta):
            after = timedelta(seconds=after)
        if after is not None and not timedelta() <= after <= timedelta(days=365):
            raise ValueError(f"after is {after}: give 0 to 365 days")
        self.after = after
        super().__init__(after)


class Discard(Exception):
    """Raised by a handler: this event is dead, whatever attempts it has left; `reason` is kept."""

    def __init__(self, reason: str) -> None:
        self.reason = str(reason)
        super().__init__(self.reason)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How an event is to be ended."""

    how: Literal["ack", "fail", "release"]
    error: str | None = None
    retry_in: timedelta | None = None
    dead: bool = False


@dataclass(slots=True, eq=False)
class _Held:
    """An event in the worker's hands, from its claim until it is ended.

    Its heartbeat runs until `ending` is set, just before the statement that ends it.
    """

    delivery: Delivery
    beat_at: float
    started: bool = False
    outcome: _Outcome | None = None
    ending: bool = False
    in_doubt: bool = False  # a statement that ended it may have been committed unheard
    lost: bool = False


class Worker:
    """Claims events and calls `handler` for each, in `concurrency` threads of this process.

    `handler` gets the `Delivery`, and how it ends decides:

    - it returns: the event is acknowledged;
    - it raises `Retry` or `Discard`: as these say;
    - it raises anything else, SystemExit included: a failed attempt, to be retried after the
      topic's backoff, with the end of the traceback (8,000 characters) as its `last_error`.

    Delivery is at least once: a handler must bear to see an event again. Every claim is committed
    before its work, and an event is under a lease from then on, extended at a third of its time
    from a second connection for as long as the handler runs; so `lease_for` is how soon another
    worker takes over from one that died, not how long a handler may take. When a lease is lost
    all the same (the process or the server stood still for too long), the handler is not
    interrupted, but how it ends is logged and does not count: the event is another's.

    `conninfo`: libpq's connection string or URL. A lost connection is made anew, with a backoff
    of up to 4 seconds, for as long as it takes; what ended meanwhile is acknowledged then. Only
    the first connection must succeed. `topics`: None for all. `batch`: how many events to hold at
    most, running and waiting for a thread; the default, `concurrency`, lets none wait; more is
    faster for short handlers, and after a crash more is delivered again. `lease_for`: None for
    the topic's own. `poll_interval`: seconds between looks at an idle queue, at most; events that
    are already there but not due are waited for to the point. `drain_timeout`: seconds that a
    stop may take. `name` (default: host and process id) is what `locked_by` shows.

    `run` blocks. SIGTERM and SIGINT (when it runs in the main thread) and `stop` end it
    gracefully: no more claims, running handlers may end, and what still runs when a third of
    the time (at most 2 seconds) is left is given back, not counted as an attempt. Then `run`
    returns, with such a handler's thread abandoned: end the process. A second signal gives back
    at once. `run` raises what makes work impossible, such as a missing function or privilege.

    It logs to the logger "pgoutbox" and configures nothing. About every ten seconds it reaps.
    """

    def __init__(
        self,
        conninfo: str,
        handler: Callable[[Delivery], object],
        *,
        topics: Sequence[str] | None = None,
        concurrency: int = 1,
        batch: int | None = None,
        lease_for: timedelta | None = None,
        poll_interval: float = 1.0,
        drain_timeout: float = 30.0,
        name: str | None = None,
    ) -> None:
        if not callable(handler):
            raise TypeError(f"handler is {handler!r}: give a function of one Delivery")
        if inspect.iscoroutinefunction(handler):
            raise TypeError("handler is a coroutine function, and would never be awaited")
        if isinstance(topics, str):
            raise TypeError(f"topics is one str, not several: {topics!r}")
        if not isinstance(conninfo, str):
            raise TypeError(f"conninfo is {conninfo!r}: give a connection string or URL")
        if lease_for is not None and not isinstance(lease_for, timedelta):
            raise TypeError(f"lease_for is {lease_for!r}: give a timedelta")
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}: give at least 1")
        if batch is not None and not concurrency <= batch <= 10_000:
            raise ValueError(f"batch is {batch}: give concurrency ({concurrency}) to 10,000")
        if not poll_interval > 0:
            raise ValueError(f"poll_interval is {poll_interval}: give seconds above 0")
        if not drain_timeout >= 0:
            raise ValueError(f"drain_timeout is {drain_timeout}: give seconds from 0")
        given = conninfo_to_dict(conninfo)
        self._conninfo = conninfo
        self._options: dict[str, Any] = {k: v for k, v in _NETWORK.items() if k not in given}
        self._options["fallback_application_name"] = "pgoutbox worker"
        self._handler = handler
        self._topics = None if topics is None else list(topics)
        self._concurrency = concurrency
        self._batch = batch or concurrency
        self._lease_for = lease_for
        self._poll_interval = poll_interval
        self._drain_timeout = drain_timeout
        self._name = name or f"{socket.gethostname()}:{os.getpid()}"

        # The only thing that signal handlers touch: its put may interrupt its get.
        self._inbox: queue.SimpleQueue[Literal["stop", "signal", "over"]] = queue.SimpleQueue()
        self._todo: queue.SimpleQueue[_Held | None] = queue.SimpleQueue()  # None: the end
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # for the coordinator
        self._beats = threading.Condition(self._lock)  # for the heartbeat
        # From here on guarded by the lock.
        self._held: set[_Held] = set()
        self._finished: list[_Held] = []
        self._release_at: float | None = None  # set: stopping
        self._deadline = 0.0
        self._beat_at = math.inf  # what the heartbeat waits for
        self._over = False
        self._failure: BaseException | None = None
        # From here on the coordinator's own.
        self._conn: psycopg.Connection[Any] | None = None
        self._refused = 0
        self._found_nothing = 0
        self._claim_at = 0.0
        self._reap_at = time.monotonic() + _REAP_EVERY * random.random()
        self._has_run = False

    def stop(self) -> None:
        """Begin a graceful stop and return at once; from any thread, any number of times."""
        self._inbox.put("stop")

    def run(self) -> None:
        """Work until stopped; once for each Worker."""
        if self._has_run:
            raise RuntimeError("this Worker has run already: make another")
        self._has_run = True
        log.info("worker %s starts", self._name)
        with self._signals():
            for loop in (self._coordinate, self._keep_leases, *[self._work] * self._concurrency):
                # A daemon: a handler that does not end must not keep the process.
                threading.Thread(target=loop, name=f"pgoutbox {loop.__name__}", daemon=True).start()
            self._watch()
        for _ in range(self._concurrency):
            self._todo.put(None)
        log.info("worker %s stopped", self._name)
        if self._failure is not None:
            raise self._failure

    # The thread of run()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = (signal.SIGTERM, signal.SIGINT)
        before = [signal.signal(s, lambda *_: self._inbox.put("signal")) for s in signals]
        try:
            yield
        finally:
            for number, handler in zip(signals, before, strict=True):
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _watch(self) -> None:
        """Return when all is over, or at the deadline whatever the other threads are stuck in."""
        deadline = None
        while True:
            try:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                news = self._inbox.get(timeout=left)
            except queue.Empty:
                log.error("worker %s gave up: its leases run out by themselves", self._name)
                return
            if news == "over":
                return
            if deadline is None:
                deadline = self._begin_stop(self._drain_timeout)
            elif news == "signal":
                deadline = self._begin_stop(0.0)

    def _begin_stop(self, timeout: float) -> float:
        with self._lock:
            now = time.monotonic()
            # What is left is for the giving back, and then for the end of the process.
            self._release_at = now + timeout - min(2.0, timeout / 3)
            self._deadline = now + max(0.8, timeout - min(0.5, timeout / 6))
            self._changed.notify()
            return self._deadline

    # The threads of the handlers

    def _work(self) -> None:
        while held := self._todo.get():
            with self._lock:
                if held.outcome is not None:
                    continue
                held.started = True
            outcome = self._handle(held.delivery)
            with self._lock:
                if held.outcome is None:
                    held.outcome = outcome
                    self._finish([held])
                else:
                    log.warning("%s: given back, and then its handler ended", _say(held.delivery))

    def _handle(self, delivery: Delivery) -> _Outcome:
        try:
            for value in (delivery.payload, delivery.headers):
                if isinstance(value, Undecoded):
                    raise ValueError(f"its JSON cannot be decoded: {value.reason}")
            answer = self._handler(delivery)
            if inspect.isawaitable(answer):
                if inspect.iscoroutine(answer):
                    answer.close()
                raise TypeError("the handler answered an awaitable, which is not awaited")
            return _Outcome("ack")
        except Retry as retry:
            log.info("%s is to be retried: %r", _say(delivery), retry)
            return _Outcome("fail", error=_traced(retry), retry_in=retry.after)
        except Discard as discard:
            log.info("%s is discarded: %s", _say(delivery), discard.reason)
            return _Outcome("fail", error=discard.reason, dead=True)
        except BaseException as error:
            log.warning("%s failed", _say(delivery), exc_info=error)
            return _Outcome("fail", error=_traced(error))

    # The coordinator's thread: the only one that claims and ends events

    def _coordinate(self) -> None:
        try:
            self._conn = self._connect()
            self._serve()
        except BaseException as error:
            self._failure = error
            with self._lock:
                stopping = self._release_at is not None
            if not stopping:
                self._inbox.put("stop")
                self._begin_stop(self._drain_timeout)
        try:
            self._drain()
        except BaseException as error:
            self._failure = self._failure or error
        finally:
            with self._lock:
                self._over = True
                self._beats.notify()
            if self._conn is not None:
                self._conn.close()
            self._inbox.put("over")

    def _serve(self) -> None:
        while True:
            with self._lock:
                room = self._batch - len(self._held)
                next_at = min(self._claim_at, self._reap_at) if room else self._reap_at
                wait = next_at - time.monotonic()
                if self._release_at is None and not self._finished and wait > 0:
                    self._changed.wait(wait)
                if self._release_at is not None:
                    return
            try:
                self._end_finished()
                # Only this thread adds to what is held, so there is no less room in the end.
                room = self._batch - len(self._held)
                if room and time.monotonic() >= self._claim_at:
                    self._claim(room)
                if time.monotonic() >= self._reap_at:
                    self._reap()
            except _PASSING as error:
                self._reconnect(error)

    def _drain(self) -> None:
        with self._lock:
            self._give_back(held for held in self._held if not held.started)
        while True:
            try:
                self._end_finished()
            except _PASSING as error:
                self._reconnect(error)
            with self._lock:
                now = time.monotonic()
                assert self._release_at is not None
                if not self._held or now >= self._deadline:
                    return
                if now >= self._release_at:
                    self._give_back(self._held)
                if not self._finished:
                    self._changed.wait(self._release_at - now)

    def _give_back(self, events: Iterable[_Held]) -> None:
        unfinished = [held for held in events if held.outcome is None]
        for held in unfinished:
            held.outcome = _Outcome("release")
        self._finish(unfinished)

    def _finish(self, events: Iterable[_Held]) -> None:
        self._finished.extend(events)
        self._changed.notify()

    def _end_finished(self) -> None:
        """End what handlers are through with; what is not ended stays finished."""
        with self._lock:
            left = dict.fromkeys(self._finished)
            self._finished.clear()
            for held in left:
                held.ending = True
        groups: dict[tuple[object, ...], list[_Held]] = {}
        for held in left:
            assert held.outcome is not None
            # One statement for all that a lease acks; each failure has a text of its own.
            alone = held.delivery.id if held.outcome.how == "fail" else None
            groups.setdefault((held.outcome.how, held.delivery.lease, alone), []).append(held)
        try:
            for group in groups.values():
                self._end(group)
                for held in group:
                    del left[held]
                with self._lock:
                    self._held.difference_update(group)
                # Room for more, and perhaps the next event of an ordering key.
                self._claim_at = 0.0
        finally:
            with self._lock:
                for held in left:
                    held.ending, held.in_doubt = False, True
                self._finished[:0] = left
                if left:
                    self._beats.notify()

    def _end(self, group: list[_Held]) -> None:
        outcome, lease = group[0].outcome, group[0].delivery.lease
        assert outcome is not None
        ids = [held.delivery.id for held in group]
        lost: Iterable[int] = ()
        try:
            if outcome.how == "ack":
                self._outbox.ack(lease, ids)
            elif outcome.how == "release":
                self._outbox.release(lease, ids)
            else:
                self._outbox.fail(
                    lease,
                    ids,
                    error=outcome.error,
                    retry_in=outcome.retry_in,
                    dead=outcome.dead,
                )
        except LeaseLost as error:
            lost = error.lost_ids
        for held in group:
            if held.delivery.id in lost and held.in_doubt:
                log.info("%s: ended before the connection broke, or lost", _say(held.delivery))
            elif held.delivery.id in lost:
                log.warning("%s: its lease was lost before it ended", _say(held.delivery))
        self._refused = 0

    def _claim(self, n: int) -> None:
        # Counted from before the claim: no heartbeat is late by the time that it took.
        asked = time.monotonic()
        with psycopg.Cursor(self._connection) as cursor:
            cursor.adapters.register_loader("jsonb", JsonLoader)
            cursor.execute(_CLAIM, [self._name, n, self._topics, self._lease_for])
            rows = cursor.fetchall()
        self._refused = 0
        if not rows:
            self._claim_at = time.monotonic() + self._idle_seconds()
            return
        self._found_nothing = 0
        claimed = [_Held(Delivery(*row), asked + seconds / 3) for *row, seconds in rows]
        with self._lock:
            self._held.update(claimed)
            if min(held.beat_at for held in claimed) < self._beat_at:
                self._beats.notify()
        for held in claimed:
            self._todo.put(held)

    def _idle_seconds(self) -> float:
        poll = self._poll_interval
        values = [self._topics, timedelta(seconds=poll)]
        seconds: float
        [(seconds,)] = self._connection.execute(_NEXT_DUE, values).fetchall()
        if seconds <= 0:
            # Ready, but in the hands of another claim or of one that is not committed.
            self._found_nothing += 1
            seconds = min(poll, _SHORTEST_SLEEP * 2.0 ** min(self._found_nothing, 10))
        else:
            self._found_nothing = 0
        if seconds >= poll:
            return poll * random.uniform(0.5, 1.0)
        # Never before it is due, and not all workers at once.
        return max(seconds, _SHORTEST_SLEEP) + random.uniform(0.0, _SHORTEST_SLEEP)

    def _reap(self) -> None:
        self._reap_at = time.monotonic() + _REAP_EVERY * random.uniform(0.5, 1.5)
        try:
            self._outbox.reap()
        except _PASSING:
            raise
        except psycopg.Error as error:
            log.warning("worker %s cannot reap: %s", self._name, _first_line(error))

    @property
    def _connection(self) -> psycopg.Connection[Any]:
        assert self._conn is not None
        return self._conn

    @property
    def _outbox(self) -> Outbox:
        return Outbox(self._connection)

    def _connect(self) -> psycopg.Connection[Any]:
        # Nothing prepared: behind a pooler the next statement may meet another session.
        return psycopg.connect(
            self._conninfo, autocommit=True, prepare_threshold=None, **self._options
        )

    def _reconnect(self, error: psycopg.Error) -> None:
        """Return with a new connection, or without one when the time of a stop is up."""
        while True:
            log.warning("worker %s has no connection: %s", self._name, _first_line(error))
            self._connection.close()
            self._refused += 1
            with self._lock:
                wait = _backoff(self._refused)
                if self._release_at is None:
                    self._changed.wait_for(lambda: self._release_at is not None, wait)
                elif time.monotonic() < self._deadline:
                    self._changed.wait(min(wait, self._deadline - time.monotonic()))
                else:
                    return
            try:
                self._conn = self._connect()
                return
            except _PASSING as again:
                error = again

    # The heartbeat's thread

    def _keep_leases(self) -> None:
        conn: psycopg.Connection[Any] | None = None
        refused = 0
        while due := self._next_beats(refused):
            try:
                conn = conn or self._connect()
                for lease, events in due.items():
                    self._beat(conn, lease, events)
                refused = 0
            except psycopg.Error as error:
                log.warning("worker %s has no heartbeat: %s", self._name, _first_line(error))
                refused += 1
                if conn is not None:
                    conn.close()
                    conn = None
        if conn is not None:
            conn.close()

    def _next_beats(self, refused: int) -> dict[int, list[_Held]]:
        """What to extend, by lease, once some of it is due; nothing: all is over."""
        not_before = time.monotonic() + _backoff(refused)
        with self._lock:
            while not self._over:
                beating = [held for held in self._held if not held.ending and not held.lost]
                self._beat_at = min((held.beat_at for held in beating), default=math.inf)
                now = time.monotonic()
                if max(self._beat_at, not_before) <= now:
                    due = {held.delivery.lease for held in beating if held.beat_at <= now}
                    groups: dict[int, list[_Held]] = {lease: [] for lease in due}
                    for held in beating:
                        if held.delivery.lease in due:
                            groups[held.delivery.lease].append(held)
                    return groups
                wait = max(self._beat_at, not_before) - now
                self._beats.wait(None if wait == math.inf else wait)
        return {}

    def _beat(self, conn: psycopg.Connection[Any], lease: int, events: list[_Held]) -> None:
        asked = time.monotonic()
        ids = [held.delivery.id for held in events]
        seconds = dict(conn.execute(_EXTEND, [lease, ids, self._lease_for]).fetchall())
        with self._lock:
            for held in events:
                if held.delivery.id in seconds:
                    held.beat_at = asked + seconds[held.delivery.id] / 3
                elif held in self._held and not held.ending and held.outcome is None:
                    log.warning("%s: its lease is lost", _say(held.delivery))
                    held.lost = True
                    if not held.started:
                        self._give_back([held])


def _backoff(refused: int) -> float:
    if not refused:
        return 0.0
    return min(_LONGEST_BACKOFF, 0.1 * 2.0 ** min(refused, 10)) * random.uniform(0.5, 1.0)


def _say(delivery: Delivery) -> str:
    attempt = f"attempt {delivery.attempt} of {delivery.max_attempts}"
    return f"event {delivery.id} of topic {delivery.topic!r}, {attempt}"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _traced(error: BaseException) -> str:
    """The end of the traceback, which is what went wrong, without the worker's own frame."""
    inner = error.__traceback__.tb_next if error.__traceback__ else None
    try:
        text = "".join(traceback.format_exception(type(error), error, inner))
    except Exception:
        text = f"{type(error).__name__}: its traceback cannot be written"
    return text if len(text) <= _LONGEST_ERROR else "…" + text[1 - _LONGEST_ERROR :]
