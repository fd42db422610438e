"""Random interleavings of everything on three connections, against a model in Python.

One thread plays all three: a call that would wait for another's open transaction gives up after
lock_timeout and counts as not made; those that promise never to wait may not give up.
OUTBOX_MODEL_EXAMPLES says how many interleavings to play (150; a night's worth is 10,000).
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from concurrency import (
    Connection,
    Row,
    ack,
    call,
    cancel,
    check,
    check_empty,
    claim,
    configure,
    empty,
    enqueue,
    enqueue_many,
    extend,
    fail,
    ids,
    make_due,
    reap,
    redrive,
    release,
)
from conftest import Connect
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from psycopg.errors import LockNotAvailable, QueryCanceled

EXAMPLES = int(os.environ.get("OUTBOX_MODEL_EXAMPLES", "150"))
STEPS = 50
CONNECTIONS = 3

# Topic "a" retries when the test says so; "b" keeps nothing, blocks on the dead and allows two attempts.
MAX_ATTEMPTS = {"a": 5, "b": 2}


@dataclass
class Event:
    id: int
    topic: str
    ordering_key: str | None
    dedupe_key: str | None
    payload: Any
    state: str = "waiting"  # or held, done, dead, gone
    attempts: int = 0
    lease: int | None = None
    expired: bool = False  # its lease may have been taken back since: then it waits, or is dead
    lost: bool = False  # a lease of it was lost: it is delivered alone
    late: bool = False  # came back behind its key's head: its successors may have gone before
    fleeting: bool = False  # once done, its log row may be gone or not

    @property
    def spent(self) -> bool:
        return self.attempts >= MAX_ATTEMPTS[self.topic]

    @property
    def may_wait(self) -> bool:
        return self.state == "waiting" or (self.state == "held" and self.expired)

    @property
    def may_be_dead(self) -> bool:
        return self.state == "dead" or (self.state == "held" and self.expired and self.spent)


@dataclass
class World:
    events: dict[int, Event] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)


class Peer:
    """A connection, and what its open transaction has done to the world."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.open = False
        self.effects: list[Callable[[World], None]] = []


peers_index = st.integers(0, CONNECTIONS - 1)
topics = st.sampled_from("ab")
ordering_keys = st.sampled_from([None, "k", "k", "k", "l"])
dedupe_keys = st.sampled_from([None, None, "d", "e"])
modes = st.sampled_from(["ignore", "replace", "requeue"])
delays = st.sampled_from([None, None, None, None, "2100-01-01"])
picks = st.integers(0, 1000)
# What becomes of a call: "begin" makes it the first of a transaction, "undo" rolls back to a savepoint
# before it, "commit" and "rollback" end the transaction that it is in.
fates = st.sampled_from(
    ["", "", "begin", "begin", "undo", "commit", "commit", "commit", "rollback"]
)


class Queue(RuleBasedStateMachine):
    connections: tuple[Connection, ...] = ()

    # No rule has a precondition: a replay must draw the same, whatever the database answers.

    def __init__(self) -> None:
        super().__init__()
        self.observer, *workers = self.connections
        for worker in workers:
            worker.execute("rollback")
            worker.execute("reset all")
            worker.execute("select setseed(0.5)")  # else an example could not be played again
        empty(self.observer)
        self.peers = [Peer(worker) for worker in workers]
        self.world = World()
        self.leases: list[int] = []
        self.payload = 0
        configure(
            self.observer,
            "b",
            max_attempts=MAX_ATTEMPTS["b"],
            retention=timedelta(0),
            on_dead="block",
            backoff_base=timedelta(0),
        )
        configure(self.observer, "a", backoff_base=timedelta(days=1), backoff_cap=timedelta(days=1))

    # How a call is made -----------------------------------------------------------------------

    def view(self, peer: Peer) -> World:
        world = deepcopy(self.world)
        for effect in peer.effects:
            effect(world)
        return world

    def alone(self, peer: Peer) -> bool:
        return not any(other.open for other in self.peers if other is not peer)

    def made(
        self, peer: Peer, fate: str, function: Callable[..., Any], *args: Any, **named: Any
    ) -> Any:
        """What a call answers; None where it gave up waiting for another's transaction."""
        if fate == "begin" and not peer.open:
            self.begin(peer)
        if peer.open:
            peer.conn.execute("savepoint s")
        # A replace or requeue looks again for a while for an event that a claim holds.
        impatient = function in (enqueue, enqueue_many) and not self.alone(peer)
        try:
            if impatient:
                peer.conn.execute("set statement_timeout = '150ms'")
            answer = function(peer.conn, *args, **named)
        except (LockNotAvailable, QueryCanceled):
            assert not self.alone(peer), "waited for nobody"
            assert function not in (claim, reap, cancel), "may never wait"
            answer = None
            if not peer.open:
                peer.conn.execute("set statement_timeout = 0")
        else:
            if impatient:
                peer.conn.execute("set statement_timeout = 0")
        if peer.open:
            if fate == "undo" or answer is None:
                peer.conn.execute("rollback to savepoint s")
            peer.conn.execute("release savepoint s")
        return answer

    def happened(self, peer: Peer, fate: str, *effects: Callable[[World], None]) -> None:
        if not peer.open:
            for effect in effects:
                effect(self.world)
        elif fate != "undo":
            peer.effects += effects
            if fate in ("commit", "rollback"):
                self.end(peer, fate == "commit")

    # Transactions -----------------------------------------------------------------------------

    def begin(self, peer: Peer) -> None:
        peer.conn.execute("begin")
        peer.open = True

    def end(self, peer: Peer, commit: bool) -> None:
        peer.conn.execute("commit" if commit else "rollback")
        peer.open = False
        effects, peer.effects = peer.effects, []
        if commit:
            for effect in effects:
                effect(self.world)

    @rule(peer=peers_index, commit=st.sampled_from([True, True, False]))
    def begin_or_end(self, peer: int, commit: bool) -> None:
        if self.peers[peer].open:
            self.end(self.peers[peer], commit)
        else:
            self.begin(self.peers[peer])

    # Producers --------------------------------------------------------------------------------

    @rule(
        peer=peers_index,
        events=st.lists(
            st.tuples(topics, ordering_keys, dedupe_keys, modes, delays), min_size=1, max_size=3
        ),
        fate=fates,
    )
    def enqueue(self, peer: int, events: list[tuple[Any, ...]], fate: str) -> None:
        who = self.peers[peer]
        names = ("topic", "ordering_key", "dedupe_key", "on_duplicate", "available_at")
        wanted = []
        for event in events:
            self.payload += 1
            wanted.append(dict(zip(names, event, strict=True)) | {"payload": self.payload})
        if len(wanted) == 1:
            row = self.made(who, fate, enqueue, **wanted[0])
            rows = None if row is None else [row]
        else:
            rows = self.made(who, fate, enqueue_many, wanted)
        if rows is None:
            return
        world = self.view(who)
        effects: list[Callable[[World], None]] = []
        # Ids ascend in the array's order, but what is not new is looked at only afterwards.
        pairs = list(zip(wanted, rows, strict=True))
        for want, row in sorted(pairs, key=lambda pair: not pair[1].created):
            for effect in self.enqueued(who, world, want, row):
                effect(world)
                effects.append(effect)
        self.happened(who, fate, *effects)

    def enqueued(
        self, who: Peer, world: World, want: dict[str, Any], row: Row
    ) -> Iterator[Callable[[World], None]]:
        known = [
            event
            for event in world.events.values()
            if want["dedupe_key"] is not None
            and (event.topic, event.dedupe_key) == (want["topic"], want["dedupe_key"])
            and event.state != "gone"
        ]
        if row.created:
            assert row.changed
            assert all(event.state == "done" and event.fleeting for event in known)
            same_key = [
                event.id
                for event in world.events.values()
                if (event.topic, event.ordering_key) == (want["topic"], want["ordering_key"])
            ]
            assert want["ordering_key"] is None or all(row.id > id for id in same_key)
            new = Event(
                row.id,
                want["topic"],
                want["ordering_key"],
                want["dedupe_key"],
                want["payload"],
                fleeting=want["topic"] == "b",
            )

            def create(world: World) -> None:
                for event in known:
                    world.events[event.id].state = "gone"
                world.events[new.id] = deepcopy(new)

            yield create
            return
        (event,) = known
        assert row.id == event.id
        match want["on_duplicate"]:
            case "ignore":
                assert not row.changed
            case "replace":
                if row.changed:
                    assert event.may_wait

                    def replace(world: World) -> None:
                        it = world.events[row.id]
                        it.payload, it.state, it.lost = (
                            want["payload"],
                            "waiting",
                            it.lost or it.expired,
                        )

                    yield replace
                else:
                    assert event.state != "waiting" or not self.alone(who)
            case "requeue":
                if row.changed:
                    assert event.state == "done" or (event.may_wait and event.attempts)

                    def requeue(world: World) -> None:
                        it = world.events[row.id]
                        if it.state == "done":
                            it.attempts, it.late, it.lost = 0, True, False
                        elif it.state == "held":
                            it.lost = True
                        it.state, it.expired = "waiting", False

                    yield requeue
                else:
                    assert event.state != "done"

    # Workers ----------------------------------------------------------------------------------

    @rule(peer=peers_index, n=st.integers(1, 4))
    def deliver(self, peer: int, n: int) -> None:
        self.claim(peer, n, None, "commit")

    @rule(peer=peers_index, n=st.integers(1, 4), only=st.sampled_from([None, "a", "b"]), fate=fates)
    def claim(self, peer: int, n: int, only: str | None, fate: str) -> None:
        who = self.peers[peer]
        world = self.view(who)
        rows = self.made(who, fate, claim, n, topics=only and [only])
        assert len(rows) <= n
        for row in rows:
            event = world.events[row.id]
            assert event.may_wait, event
            assert (row.payload, row.attempt) == (event.payload, event.attempts + 1), event
            assert row.attempt <= row.max_attempts == MAX_ATTEMPTS[row.topic]
            assert row.topic == (only or row.topic) not in world.paused
            assert len(rows) == 1 or not (event.lost or event.state == "held")
            assert row.ordering_key == event.ordering_key
            for other in world.events.values():
                if (
                    event.ordering_key is not None
                    and other.id != event.id
                    and (other.topic, other.ordering_key) == (event.topic, event.ordering_key)
                ):
                    assert other.state != "held" or other.expired, (event, other)
                    if other.id < event.id and not other.late:
                        assert other.state != "waiting", (event, other)
                        assert other.state != "dead" or other.topic != "b", (event, other)
        if not rows:
            return
        lease = rows[0].lease
        assert {row.lease for row in rows} == {lease}
        assert lease not in self.leases
        self.leases.append(lease)

        def hold(world: World) -> None:
            for row in rows:
                it = world.events[row.id]
                it.lost = it.lost or it.state == "held"
                it.state, it.lease, it.attempts = "held", lease, it.attempts + 1
                it.expired = it.late = False

        self.happened(who, fate, hold)

    def answer(
        self,
        peer: int,
        lease: int,
        some: int | None,
        fate: str,
        function: Callable[..., list[int]],
        effect: Callable[[Event], None],
        **named: Any,
    ) -> None:
        who = self.peers[peer]
        world = self.view(who)
        if not self.leases:
            return
        # Mostly a lease that is in force.
        live = sorted({e.lease for e in world.events.values() if e.state == "held" and e.lease})
        choice = live if live and lease % 5 else self.leases
        lease = choice[lease % len(choice)]
        held = [e for e in world.events.values() if (e.state, e.lease) == ("held", lease)]
        if some is not None:
            held = [e for e in held if (e.id + some) % 2]
            named["ids"] = sorted({e.id for e in held} | {some})
        answered = self.made(who, fate, function, lease, **named)
        if answered is None:
            return
        assert set(answered) <= {e.id for e in held}
        assert set(answered) >= {e.id for e in held if not e.expired}

        def apply(world: World) -> None:
            for id in answered:
                world.events[id].expired = False
                effect(world.events[id])

        self.happened(who, fate, apply)

    parts = st.one_of(st.none(), picks)

    @rule(peer=peers_index, lease=picks, some=parts, fate=fates)
    def ack(self, peer: int, lease: int, some: int | None, fate: str) -> None:
        def done(event: Event) -> None:
            event.state = "done"

        self.answer(peer, lease, some, fate, ack, done)

    @rule(
        peer=peers_index,
        lease=picks,
        some=parts,
        dead=st.booleans(),
        retry_in=st.sampled_from([timedelta(0), timedelta(1)]),
        fate=fates,
    )
    def fail(
        self, peer: int, lease: int, some: int | None, dead: bool, retry_in: timedelta, fate: str
    ) -> None:
        def failed(event: Event) -> None:
            event.state = "dead" if dead or event.spent else "waiting"

        self.answer(peer, lease, some, fate, fail, failed, dead=dead, retry_in=retry_in)

    @rule(peer=peers_index, lease=picks, some=parts, fate=fates)
    def release(self, peer: int, lease: int, some: int | None, fate: str) -> None:
        def released(event: Event) -> None:
            event.state, event.attempts = "waiting", event.attempts - 1

        self.answer(peer, lease, some, fate, release, released)

    @rule(peer=peers_index, lease=picks, some=parts, fate=fates)
    def extend(self, peer: int, lease: int, some: int | None, fate: str) -> None:
        self.answer(peer, lease, some, fate, extend, lambda event: None)

    # Operators --------------------------------------------------------------------------------

    @rule(peer=peers_index, n=st.sampled_from([1, 1000]), pick=picks, fate=fates)
    def reap(self, peer: int, n: int, pick: int, fate: str) -> None:
        who = self.peers[peer]
        self.leases_expire(pick)
        self.made(who, fate, reap, n)
        self.happened(who, fate)

    def some_events(self, pick: int) -> list[int]:
        return [id for id in self.world.events if (id + pick) % 5 == 0]

    @rule(peer=peers_index, pick=picks, fate=fates)
    def cancel(self, peer: int, pick: int, fate: str) -> None:
        who, wanted = self.peers[peer], self.some_events(pick)
        world = self.view(who)
        cancelled = self.made(who, fate, cancel, wanted)
        for id in wanted:
            event = world.events[id]
            if id in cancelled:
                assert event.may_wait or event.may_be_dead, event
            elif self.alone(who):
                assert event.state not in ("waiting", "dead"), event

        def gone(world: World) -> None:
            for id in cancelled:
                world.events[id].state = "gone"

        self.happened(who, fate, gone)

    @rule(peer=peers_index, pick=picks, fate=fates)
    def redrive(self, peer: int, pick: int, fate: str) -> None:
        who = self.peers[peer]
        world = self.view(who)
        dead = {event.id for event in world.events.values() if event.may_be_dead}
        wanted = sorted({*self.some_events(pick), *dead} & self.world.events.keys())
        redriven = self.made(who, fate, redrive, wanted)
        if redriven is None:
            return
        assert all(world.events[id].may_be_dead for id in redriven)
        if self.alone(who):
            assert {id for id in wanted if world.events[id].state == "dead"} <= set(redriven)

        def waits(world: World) -> None:
            for id in redriven:
                it = world.events[id]
                it.state, it.attempts, it.late = "waiting", 0, True
                it.lost = it.expired = False

        self.happened(who, fate, waits)

    @rule(peer=peers_index, topic=topics, rarely=st.integers(0, 3), fate=fates)
    def pause_or_resume(self, peer: int, topic: str, rarely: int, fate: str) -> None:
        who = self.peers[peer]
        paused = topic in self.view(who).paused
        if rarely and not paused:
            return
        function = "outbox_resume" if paused else "outbox_pause"

        def turn(world: World) -> None:
            (world.paused.discard if paused else world.paused.add)(topic)

        if self.made(who, fate, call, function, topic) is not None:
            self.happened(who, fate, turn)

    # Time -------------------------------------------------------------------------------------

    def leases_expire(self, pick: int) -> None:
        rows = self.observer.execute(
            "update outbox_leases as l set expires_at = clock_timestamp() - interval '1 minute'"
            "  from (select lease, id from outbox_leases where (id + %s) %% 2 = 0"
            "           for update skip locked) as x"
            " where (l.lease, l.id) = (x.lease, x.id) returning l.id",
            [pick],
        ).fetchall()
        for (id,) in rows:
            self.world.events[id].expired = True

    @rule(pick=picks)
    def a_worker_is_lost(self, pick: int) -> None:
        self.leases_expire(pick)
        reap(self.observer)
        self.scheduled_are_due()

    @rule(ages=st.booleans())
    def time_passes(self, ages: bool) -> None:
        self.log_ages() if ages else self.scheduled_are_due()

    def scheduled_are_due(self) -> None:
        self.observer.execute(
            "update outbox_scheduled as s set available_at = clock_timestamp() - interval '1 second'"
            "  from (select id from outbox_scheduled where available_at > clock_timestamp()"
            "           for update skip locked) as x"
            " where s.id = x.id"
        )

    def log_ages(self) -> None:
        rows = self.observer.execute(
            "update outbox_events as e set created_at = created_at - interval '2 days'"
            "  from (select id from outbox_events for no key update skip locked) as x"
            " where e.id = x.id returning e.id"
        ).fetchall()
        for (id,) in rows:
            self.world.events[id].fleeting = True

    # What must hold ---------------------------------------------------------------------------

    @invariant()
    def every_event_is_where_it_should_be(self) -> None:
        check(self.observer)
        rows = self.observer.execute(
            """
            select s.id, s.topic, s.status, s.attempts, s.payload, l.lease
              from outbox_event_status as s
              left join outbox_leases as l on l.id = s.id
            """
        ).fetchall()
        seen = {row[0]: row[1:] for row in rows}
        for event in self.world.events.values():
            if event.id not in seen:
                assert event.state == "gone" or (event.state == "done" and event.fleeting), event
                continue
            _, status, attempts, payload, lease = seen.pop(event.id)
            assert event.state != "gone", event
            waits = status in ("pending", "retry", "blocked")
            held = (status, lease) == ("processing", event.lease)
            match event.state:
                case "waiting":
                    assert waits, (event, status)
                case "held":
                    lost = event.expired and (waits or (status == "dead" and event.spent))
                    assert held or lost, (event, status)
                case _:
                    assert status == event.state, (event, status)
            assert payload == event.payload
            assert attempts == (None if event.state == "done" else event.attempts), event
        assert not seen, "nobody committed these"

    def teardown(self) -> None:
        """When all transactions have ended, draining delivers everything once."""
        if sys.exc_info()[1] is not None:  # a rule or an invariant has just failed
            return
        for i, peer in enumerate(self.peers):
            if peer.open:
                self.end(peer, commit=i != 1)
        self.every_event_is_where_it_should_be()
        for topic in "ab":
            call(self.observer, "outbox_resume", topic)
        states = ("waiting", "held", "dead")
        owed = [event.id for event in self.world.events.values() if event.state in states]
        delivered: Counter[int] = Counter()
        for _ in range(1000):
            if rows := claim(self.observer, 3):
                assert ack(self.observer, rows[0].lease) == sorted(ids(rows))
                delivered.update(ids(rows))
                check(self.observer)
                continue
            if set(delivered) == set(owed):
                break
            self.observer.execute("update outbox_leases set expires_at = clock_timestamp()")
            reap(self.observer)
            make_due(self.observer)
            # What has died stays in the way of its key in topic b until it is redriven.
            redrive(self.observer, owed)
        assert delivered == Counter(owed)
        reap(self.observer)
        check_empty(self.observer)


@pytest.mark.timeout(600 + EXAMPLES)
@pytest.mark.once
def test_random_interleavings(connect: Connect) -> None:
    workers = [connect(autocommit=True, options="-c lock_timeout=15ms") for _ in range(CONNECTIONS)]
    Queue.connections = (connect(autocommit=True), *workers)
    run_state_machine_as_test(
        Queue,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
