"""The head mark: no event is ever hidden by it, and a claim costs no more for what has passed.

Each rule of sql/functions/outbox_move_heads.sql has an interleaving made by hand here, and each
interleaving is shown to be worth something: a mutation breaks its rule, and then it fails.
The stress plays all of it at random. OUTBOX_HEADS_EVENTS=200000 is its long form, with crashes.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from concurrency import (
    PLACES,
    Connection,
    ack,
    call,
    check_empty,
    claim,
    configure,
    count,
    empty,
    enqueue,
    expire,
    fail,
    ids,
    reap,
    redrive,
    release,
    value,
)
from conftest import ROOT, Databases, run, yoyo
from pgoutbox._postgres import Cluster
from psycopg import IsolationLevel
from psycopg.errors import CheckViolation, GeneratedAlways, LockNotAvailable
from psycopg.types.json import Jsonb

EVENTS = int(os.environ.get("OUTBOX_HEADS_EVENTS", "0"))
SECONDS = float(os.environ.get("OUTBOX_HEADS_SECONDS", "12"))
SOURCES = ROOT / "sql"

PROGRAM = Callable[[str], Path]


class Vacuous(Exception):
    """The interleaving did not come about: what the test would find says nothing."""


@pytest.fixture(scope="module")
def database(databases: Databases, template: str) -> Iterator[str]:
    with databases.database(template) as dsn:
        yield dsn


@pytest.fixture
def dsn(databases: Databases, template: str) -> Iterator[str]:
    with databases.database(template) as dsn:
        yield dsn


@dataclass
class Head:
    xid: int
    id: int
    stragglers: list[int]
    straggler_ids: list[int]

    @property
    def place(self) -> tuple[int, int]:
        return self.xid, self.id


class Stage:
    """A database in which a lane of topic `t` is in use, and connections to play on."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.connections = ExitStack()
        self.main = self.open(autocommit=True)
        configure(self.main, "t", backoff_base=timedelta(0))
        self.passed: set[int] = set()  # acked while the interleaving was played
        self.pass_one()

    def reopen(self) -> None:
        """Connect anew, after the server was down."""
        self.connections.close()
        self.main = self.open(autocommit=True)

    def open(self, **options: Any) -> Connection:
        """A connection; without autocommit the next statement opens a transaction."""
        connection = psycopg.connect(self.dsn, options="-c lock_timeout=5s", **options)
        self.connections.callback(connection.close)
        return connection

    def close(self) -> None:
        """Undo all that was played: to make a database for each interleaving takes longer."""
        self.connections.close()
        with psycopg.connect(self.dsn, autocommit=True, options="-c lock_timeout=10s") as conn:
            empty(conn)

    def late(self, isolation: IsolationLevel | None = None) -> Connection:
        """A connection in a transaction that has an xid already and writes its events later."""
        connection = self.open()
        connection.isolation_level = isolation
        connection.execute("select pg_current_xact_id()")
        return connection

    def pass_one(self) -> None:
        """An event passes through the lane."""
        id = enqueue(self.main).id
        rows = claim(self.main)
        assert ids(rows) == [id]
        ack(self.main, rows[0].lease)
        self.passed.add(id)

    def burn(self, transactions: int = 600) -> None:
        """So many transactions pass: those that run now are no longer young."""
        self.main.execute(
            f"do $$ begin for i in 1 .. {transactions} loop"
            " perform pg_current_xact_id(); commit; end loop; end $$"
        )

    def head(self, conn: Connection | None = None, suspect: bool = False) -> Head:
        row = (
            (conn or self.main)
            .execute(
                "select head_xid::text::bigint, head_id, stragglers::text::bigint[], straggler_ids"
                " from outbox_walks where topic = 't' and suspect = %s order by lane limit 1",
                [suspect],
            )
            .fetchone()
        )
        assert row is not None
        return Head(*row)

    def move(self, conn: Connection | None = None) -> Head:
        (conn or self.main).execute("select outbox_move_heads()")
        return self.head(conn)

    def move_past(self, *late: Connection) -> Head:
        """Move the head past these transactions, which run."""
        xids = {self.xid(conn) for conn in late}
        self.burn()
        head = self.move()
        if not all(xid < head.xid for xid in xids):
            raise Vacuous(f"{head} is not past {xids}")
        return head

    def xid(self, conn: Connection) -> int:
        return int(value(conn, "select pg_current_xact_id()::text::bigint"))

    def delivered(self) -> list[int]:
        """All that claims still deliver, in order; nothing may be left."""
        found: list[int] = []
        for _ in range(200):
            rows = claim(self.main, 1000)
            if not rows:
                break
            ack(self.main, rows[0].lease)
            found += ids(rows)
        left = {place: count(self.main, place) for place in PLACES if count(self.main, place)}
        assert not left, f"hidden for good: {left}, behind {self.head()}"
        events = {id for (id,) in self.main.execute("select id from outbox_events").fetchall()}
        assert sorted(found) == sorted(events - self.passed)
        return found


@contextmanager
def staged(dsn: str) -> Iterator[Stage]:
    stage = Stage(dsn)
    try:
        yield stage
    finally:
        stage.close()


@pytest.fixture
def stage(database: str) -> Iterator[Stage]:
    with staged(database) as stage:
        yield stage


# --- The rules, each with the interleaving that needs it -------------------------------------


def locked_by_a_claim(stage: Stage) -> None:
    """The head stops at a visible row though somebody claims it: the claim may roll back."""
    first = enqueue(stage.main).id
    claimer = stage.open()
    assert ids(claim(claimer)) == [first]
    second = enqueue(stage.main).id
    stage.burn()
    stage.move()
    claimer.rollback()
    assert stage.delivered() == [first, second]


def at_the_first_row(stage: Stage) -> None:
    """The head stops at the first row of several, and at a row within its transaction."""
    rows = call(stage.main, "outbox_enqueue_many", Jsonb([{"topic": "t", "payload": 0}] * 5))
    stage.burn()
    stage.move()
    first = claim(stage.main, 2)
    if ids(first) != ids(rows)[:2]:
        raise AssertionError(f"{ids(first)} of {ids(rows)}")
    head = stage.move()
    if head.id != rows[2].id:
        raise AssertionError(f"{head} is not at {rows[2].id}")
    ack(stage.main, first[0].lease)
    stage.passed |= set(ids(first))
    assert stage.delivered() == ids(rows)[2:]


def after_the_snapshot(stage: Stage) -> None:
    """The head stops where the snapshot ends: what begins then is not in it."""
    stage.burn()
    writer = stage.open()
    id = enqueue(writer).id
    stage.move()
    writer.commit()
    assert stage.delivered() == [id]


def snapshot_of_the_probe(stage: Stage) -> None:
    """The end of the snapshot is the end of that which the rows are read in."""
    stage.burn()
    gatekeeper = stage.open()
    gatekeeper.execute("select pg_advisory_xact_lock(1)")
    mover = stage.open(autocommit=True)
    with ThreadPoolExecutor(1) as pool:
        moved = pool.submit(stage.move, mover)
        # A mover that reads the end by itself meets the gate there; the right one is done.
        while not moved.done() and not value(
            stage.main,
            "select exists (select from pg_stat_activity where wait_event_type = 'Lock'"
            f" and pid = {mover.info.backend_pid})",
        ):
            time.sleep(0.002)
        id = enqueue(stage.main).id
        stage.burn(3)
        gatekeeper.rollback()
        moved.result()
    assert stage.delivered() == [id]


def late_writers(stage: Stage) -> None:
    """What ran when the head passed is a straggler: its rows are found, whatever it did."""
    writers = [stage.late() for _ in range(7)]
    early, late, saved, undone, prepared, rare, aborted = writers
    expected = [enqueue(early).id]
    undone.execute("savepoint s")
    enqueue(undone)
    stage.move_past(*writers)
    expected.append(enqueue(late).id)
    saved.execute("savepoint a")
    expected.append(enqueue(saved).id)
    saved.execute("savepoint b")
    expected.append(enqueue(saved).id)
    saved.execute("release b")
    undone.execute("rollback to s")
    expected.append(enqueue(undone).id)
    expected.append(enqueue(prepared).id)
    prepared.execute("prepare transaction 'heads'")
    expected.append(enqueue(rare, "t", priority=5).id)  # makes the lane
    enqueue(aborted)
    aborted.rollback()
    for writer in (early, late, saved, undone, rare):
        writer.commit()
    stage.burn(70)
    stage.move()
    stage.main.execute("commit prepared 'heads'")
    assert sorted(stage.delivered()) == sorted(expected)


def late_rows_of_every_kind(stage: Stage) -> None:
    """Whatever makes a row ready does so under the xid of its transaction, however old that is."""
    main = stage.main
    kinds = ("release", "fail", "reap", "promote", "redrive", "requeue", "follow")
    events = {
        kind: enqueue(main, "t", ordering_key="k" if kind == "follow" else None).id
        for kind in kinds
        if kind != "promote"
    }
    lost = enqueue(main, "t").id  # makes the suspects' lane
    held = {row.id: row.lease for _ in range(len(events) + 1) for row in claim(main)}
    expire(main, held[lost])
    reap(main)
    (row,) = claim(main)
    assert row.id == lost
    ack(main, row.lease)
    fail(main, held[events["redrive"]], dead=True)
    events["next"] = enqueue(main, "t", ordering_key="k").id
    events["promote"] = enqueue(main, "t", available_at="2099-01-01").id
    main.execute("update outbox_scheduled set available_at = clock_timestamp()")
    ack(main, held[events["requeue"]])
    main.execute("update outbox_events set dedupe_key = 'd' where id = %s", [events["requeue"]])

    late = stage.late()
    stage.move_past(late)
    expire(main, held[events["reap"]])
    assert reap(late).expired == 1
    assert release(late, held[events["release"]]) == [events["release"]]
    assert fail(late, held[events["fail"]], retry_in=timedelta(0)) == [events["fail"]]
    assert redrive(late, [events["redrive"]]) == [events["redrive"]]
    assert enqueue(late, "t", dedupe_key="d", on_duplicate="requeue").changed
    assert ack(late, held[events["follow"]]) == [events["follow"]]
    xid = stage.xid(late)
    if value(late, f"select count(*) from outbox_ready where xid = '{xid}'") != len(kinds):
        raise Vacuous("not every kind has made a row ready")
    stage.burn(70)
    stage.move()
    late.commit()
    stage.passed |= {lost, events["follow"]}
    assert sorted(stage.delivered()) == sorted(set(events.values()) - stage.passed)


def running_for_long(stage: Stage) -> None:
    """A straggler stays one while it runs, however often the head moves."""
    late = stage.late()
    stage.move_past(late)
    for _ in range(3):
        stage.pass_one()
        stage.burn(70)
        stage.move()
    id = enqueue(late).id
    late.commit()
    assert stage.delivered() == [id]


def ended_and_not_drained(stage: Stage) -> None:
    """A straggler stays one after its end until nothing of it can be seen."""
    late = stage.late()
    stage.move_past(late)
    expected = [enqueue(late).id, enqueue(late).id]
    late.commit()
    for _ in range(2):
        blocker = stage.open()
        (held,) = claim(blocker)
        assert held.id == expected[0]
        (row,) = claim(stage.main)
        release(stage.main, row.lease)  # becomes a row of its own, after the head
        stage.burn(70)
        stage.move()
        blocker.rollback()
    assert stage.delivered() == expected


def straggler_locked_by_a_claim(stage: Stage) -> None:
    """What is drained of a straggler ends at its first visible row, locked or not."""
    late = stage.late()
    expected = [enqueue(late).id, enqueue(late).id, enqueue(late).id]
    stage.move_past(late)
    late.commit()
    claimer = stage.open()
    assert ids(claim(claimer)) == expected[:1]
    stage.burn(70)
    head = stage.move()
    claimer.rollback()
    if stage.xid(stage.open()) < head.xid:
        raise Vacuous(head)
    assert stage.delivered() == expected


def young_when_met(stage: Stage) -> None:
    """The head stops at a young transaction; when it passes it later, that is a straggler."""
    late = stage.late()
    stage.burn(80)
    if stage.move().place != (stage.xid(late), 0):
        raise Vacuous(f"{stage.head()} is not at {stage.xid(late)}")
    stage.move_past(late)
    id = enqueue(late).id
    late.commit()
    assert stage.delivered() == [id]


def mover_with_an_xid(stage: Stage) -> None:
    """Who has an xid moves nothing: its own rows to come have it, and no snapshot shows that."""
    plain, saved = stage.late(), stage.open()
    saved.execute("savepoint s")
    saved.execute("select pg_current_xact_id()")
    saved.execute("rollback to s")
    stage.pass_one()
    expected = []
    for mover in plain, saved:
        stage.burn()
        mover.execute("select outbox_move_heads()")
        expected.append(enqueue(mover).id)
        mover.commit()
    assert stage.delivered() == expected


def mover_that_goes_on(stage: Stage) -> None:
    """Who moves and then writes writes after the head; who rolls the move back, too."""
    expected = []
    for isolation in IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ:
        mover = stage.open()
        mover.isolation_level = isolation
        stage.burn()
        mover.execute("savepoint s")
        stage.move(mover)
        expected.append(enqueue(mover).id)
        mover.execute("savepoint t")
        mover.execute("rollback to t")
        expected.append(enqueue(mover).id)
        mover.commit()
    assert stage.delivered() == expected


def mover_with_an_old_snapshot(stage: Stage) -> None:
    """A mover that sees the past finds a head of the past, and it is true still."""
    late = stage.late()
    stage.burn()
    mover = stage.open()
    mover.isolation_level = IsolationLevel.REPEATABLE_READ
    mover.execute("select 1")
    young = stage.late()
    expected = [enqueue(stage.main).id]
    stage.burn()
    head = stage.move()
    stage.move(mover)
    expected.append(enqueue(mover).id)
    mover.commit()
    if stage.head().place < head.place:
        raise AssertionError(f"{stage.head()} is before {head}")
    for writer in (young, late):
        expected.insert(0, enqueue(writer).id)
        writer.commit()
    assert sorted(stage.delivered()) == sorted(expected)


def several_movers(stage: Stage) -> None:
    """Movers that do not see each other's heads do not harm each other."""
    late = stage.late()
    stage.burn()
    movers = [stage.open() for _ in range(3)]
    for mover in movers:
        stage.move(mover)
        stage.pass_one()
        stage.burn(70)
    expected = [enqueue(late).id]
    late.commit()
    for mover in reversed(movers[1:]):
        mover.commit()
    movers[0].rollback()
    stage.move()
    assert stage.delivered() == expected


def claim_with_an_old_snapshot(stage: Stage) -> None:
    """Who sees the past sees heads of the past, also when the reaper has removed them since."""
    stage.burn()
    stage.move()
    expected = [enqueue(stage.main).id]
    claimer = stage.open()
    claimer.isolation_level = IsolationLevel.REPEATABLE_READ
    claimer.execute("select 1")
    expected.append(enqueue(stage.main).id)
    for _ in range(3):
        stage.burn(70)
        stage.move()
        reap(stage.main)
    rows = claim(claimer, 10)
    assert ids(rows) == expected[:1]
    claimer.rollback()
    assert stage.delivered() == expected


def own_events(stage: Stage) -> None:
    """A straggler can claim what it has itself enqueued."""
    late = stage.late()
    stage.move_past(late)
    id = enqueue(late).id
    rows = claim(late)
    assert ids(rows) == [id]
    ack(late, rows[0].lease)
    late.commit()
    stage.passed.add(id)
    assert stage.delivered() == []


def one_straggler_of_two(stage: Stage) -> None:
    """The rows of a straggler that has ended are found though an older one still runs."""
    older, younger = stage.late(), stage.late()
    stage.move_past(older, younger)
    expected = [enqueue(younger).id, enqueue(older).id]
    younger.commit()
    now = value(stage.main, "select outbox_next_due() <= clock_timestamp()")
    assert now, "outbox_next_due does not see a straggler"
    rows = claim(stage.main)
    assert ids(rows) == expected[:1]
    ack(stage.main, rows[0].lease)
    stage.passed.add(expected[0])
    older.commit()
    assert stage.delivered() == expected[1:]


def stragglers_in_order(stage: Stage) -> None:
    """Within a lane: as their transactions first wrote, though the head passed them in turns."""
    first = stage.late()
    stage.move_past(first)
    second = stage.late()
    third = stage.late()
    stage.move_past(second, third)
    expected = [enqueue(first).id, enqueue(second).id, enqueue(third).id]
    for writer in (third, second, first):
        writer.commit()
    expected.append(enqueue(stage.main).id)
    rows = [claim(stage.main)[0] for _ in expected]
    assert ids(rows) == expected
    for row in rows:
        ack(stage.main, row.lease)
    stage.passed |= set(expected)
    assert stage.delivered() == []


def drained_straggler(stage: Stage) -> None:
    """What is drained of a straggler is passed, also while the head itself stands."""
    late = stage.late()
    many = call(late, "outbox_enqueue_many", Jsonb([{"topic": "t", "payload": 0}] * 20))
    stage.move_past(late)
    last = enqueue(stage.main).id
    stage.move()
    late.commit()
    rows = claim(stage.main, 15)
    ack(stage.main, rows[0].lease)
    stage.passed |= set(ids(rows))
    head = stage.move()
    assert head.straggler_ids == [many[15].id]
    reap(stage.main)
    assert stage.head() == head, "the newest head of two at one place is to be kept"
    assert stage.delivered() == [*ids(many)[15:], last]


def never_lowered(stage: Stage) -> None:
    """The reaper leaves the largest head of a lane, which alone stands for the others."""
    for _ in range(4):
        stage.pass_one()
        stage.burn(70)
        head = stage.move()
    assert count(stage.main, "outbox_heads") > 3
    reap(stage.main)
    assert stage.head().place >= head.place
    assert count(stage.main, "outbox_heads") == 1
    assert stage.delivered() == []


def nobody_chooses_an_xid(stage: Stage) -> None:
    """A row that becomes ready again has the xid of the transaction that made it so."""
    first = enqueue(stage.main).id
    (row,) = claim(stage.main)
    stage.pass_one()
    stage.burn()
    stage.move()
    release(stage.main, row.lease)
    assert stage.delivered() == [first]
    with pytest.raises(GeneratedAlways):
        stage.main.execute("insert into outbox_ready (xid, id, lane) values ('9', 9, 1)")


def head_of_the_future(stage: Stage) -> None:
    """A head past the end of the snapshot was not made here."""
    stage.main.execute(
        "insert into outbox_heads (lane, xid, id, stragglers, straggler_ids)"
        " select lane, (pg_snapshot_xmax(pg_current_snapshot())::text::bigint + 100)::text::xid8,"
        "        0, '{}', '{}'"
        "   from outbox_lanes"
    )
    id = enqueue(stage.main).id
    assert stage.delivered() == [id]


def restored_head(stage: Stage) -> None:
    """A head that came with a dump, as its COPY writes it, is not believed when its time comes."""
    stage.main.execute(
        "insert into outbox_heads (lane, xid, id, stragglers, straggler_ids, made)"
        " select lane, (pg_snapshot_xmax(pg_current_snapshot())::text::bigint + 300)::text::xid8,"
        "        0, '{}', '{}', now() - interval '1 day'"
        "   from outbox_lanes"
    )
    id = enqueue(stage.main).id
    stage.burn()
    assert stage.delivered() == [id]


def only_positive_ids(stage: Stage) -> None:
    """(xid, 0) is before every row of a transaction."""
    with pytest.raises(CheckViolation):
        stage.main.execute("insert into outbox_ready (id, lane) values (0, 1)")


def waits_for_nobody(stage: Stage) -> None:
    """No lock that anybody holds keeps a mover, and a mover keeps nobody."""
    mover = stage.open()
    stage.burn()
    stage.move(mover)
    enqueue(stage.main)
    impatient = stage.open(autocommit=True)
    impatient.execute("set lock_timeout = '50ms'")
    stage.move(impatient)
    reap(impatient)
    call(impatient, "outbox_pause", "t")
    call(impatient, "outbox_resume", "t")
    call(impatient, "outbox_cancel", [value(impatient, "select max(id) from outbox_events")])
    mover.commit()
    assert stage.delivered() == []


RULES: dict[str, Callable[[Stage], None]] = {
    rule.__name__: rule
    for rule in (
        locked_by_a_claim,
        at_the_first_row,
        after_the_snapshot,
        snapshot_of_the_probe,
        late_writers,
        late_rows_of_every_kind,
        running_for_long,
        ended_and_not_drained,
        straggler_locked_by_a_claim,
        young_when_met,
        mover_with_an_xid,
        mover_that_goes_on,
        mover_with_an_old_snapshot,
        several_movers,
        claim_with_an_old_snapshot,
        own_events,
        one_straggler_of_two,
        stragglers_in_order,
        drained_straggler,
        never_lowered,
        nobody_chooses_an_xid,
        head_of_the_future,
        restored_head,
        only_positive_ids,
        waits_for_nobody,
    )
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_rule(stage: Stage, rule: Callable[[Stage], None]) -> None:
    rule(stage)


def test_restored_dump(
    databases: Databases, stage: Stage, dump: Callable[[str], str], program: PROGRAM, tmp_path: Path
) -> None:
    """Heads of a cluster that was further on come with the dump and count for nothing."""
    id = enqueue(stage.main).id
    stage.main.execute(
        "insert into outbox_heads (lane, xid, id, stragglers, straggler_ids)"
        " select lane, (pg_snapshot_xmax(pg_current_snapshot())::text::bigint + 5000)::text::xid8,"
        "        0, '{}', '{}'"
        "   from outbox_lanes"
    )
    text = tmp_path / "dump.sql"
    text.write_text(dump(stage.dsn))
    with databases.database() as dsn:
        run(program("psql"), "-qX", "-v", "ON_ERROR_STOP=1", "-f", text, "--dbname", dsn)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("set search_path to public")
            assert count(conn, "outbox_heads where made <> stamp") > 0
            new = enqueue(conn).id
            stage.burn(6000)
            (row, other) = claim(conn, 10)
            assert [row.id, other.id] == [id, new]
            ack(conn, row.lease)
            check_empty(conn)


def test_crash(cluster: Cluster) -> None:
    """After a crash there is no head, and none is missed."""
    yoyo("apply", cluster.dsn)
    stage = Stage(cluster.dsn)
    stage.burn()
    expected = [enqueue(stage.main).id]
    prepared = stage.late()
    expected.append(enqueue(prepared).id)
    stage.burn()
    stage.move()
    prepared.execute("prepare transaction 'heads'")
    assert count(stage.main, "outbox_heads") > 0
    for immediate in (True, False):
        cluster.stop(immediate=immediate)
        cluster.start()
        stage.reopen()
        assert (count(stage.main, "outbox_heads") == 0) == immediate
        stage.burn()
        stage.move()
    stage.main.execute("commit prepared 'heads'")
    assert sorted(stage.delivered()) == sorted(expected)
    stage.connections.close()


# --- Mutations: without its rule an interleaving fails ----------------------------------------

KEEP_XIDS = """
alter table outbox_ready alter column xid drop expression;
alter table outbox_ready alter column xid set default pg_current_xact_id();
create table kept_xids (id bigint primary key, xid xid8);
create function keep_xid() returns trigger language plpgsql as $$
begin
    if tg_op = 'DELETE' then
        insert into kept_xids values (old.id, old.xid) on conflict do nothing;
        return old;
    end if;
    new.xid := coalesce((select k.xid from kept_xids as k where k.id = new.id), new.xid);
    return new;
end $$;
create trigger keep_xid before insert or delete on outbox_ready
    for each row execute function keep_xid();
"""
LATER_SNAPSHOT = """
create function later_snapshot() returns pg_snapshot language plpgsql as $$
begin
    perform pg_advisory_xact_lock(1);
    return pg_current_snapshot();
end $$;
"""


@dataclass
class Mutation:
    """What is broken: text of a file in sql/ that is replaced, or statements that are executed."""

    name: str
    caught_by: Callable[[Stage], None]
    file: str = ""
    old: str = ""
    new: str = ""
    setup: str = ""

    def apply(self, conn: Connection) -> None:
        if self.setup:
            conn.execute(self.setup)
        if self.file:
            text = (SOURCES / self.file).read_text()
            assert text.count(self.old) == 1, f"{self.file} has no longer one {self.old!r}"
            conn.execute(text.replace(self.old, self.new))


MOVE = "functions/outbox_move_heads.sql"
CLAIM = "functions/outbox_claim.sql"
SEEN = "pg_visible_in_snapshot(s.xid, pg_current_snapshot())"
MUTATIONS = [
    Mutation(
        "probe skips locked rows",
        locked_by_a_claim,
        MOVE,
        "                limit 1\n           ) as r on true",
        "                limit 1 for update skip locked\n           ) as r on true",
    ),
    Mutation(
        "straggler's probe skips locked rows",
        straggler_locked_by_a_claim,
        MOVE,
        "limit 1\n                            ) as f on true",
        "limit 1 for update skip locked\n                            ) as f on true",
    ),
    Mutation(
        "head a row too far", at_the_first_row, MOVE, "then r.id else 0", "then r.id + 1 else 0"
    ),
    Mutation(
        "no cap at the snapshot",
        after_the_snapshot,
        MOVE,
        "n.xmax\n               ) as bound",
        "pg_current_xact_id()\n               ) as bound",
    ),
    Mutation(
        "snapshot later than the probe's",
        snapshot_of_the_probe,
        MOVE,
        "(select pg_current_snapshot() as snapshot)",
        "(select later_snapshot() as snapshot)",
        LATER_SNAPSHOT,
    ),
    Mutation(
        "mover has an xid",
        mover_with_an_xid,
        MOVE,
        "pg_current_xact_id_if_assigned() is not null",
        "false",
    ),
    Mutation("a retry keeps its xid", nobody_chooses_an_xid, setup=KEEP_XIDS),
    Mutation("stragglers forgotten", late_writers, MOVE, "and r.xid < h.xid", "and false"),
    Mutation(
        "straggler at the head forgotten",
        young_when_met,
        MOVE,
        "r.xid >= l.head_xid\n                        and r.xid < h.xid",
        "r.xid > l.head_xid\n                        and r.xid < h.xid",
    ),
    Mutation(
        "straggler dropped while it runs",
        running_for_long,
        MOVE,
        "where o.xid = any (n.running)",
        "where false",
    ),
    Mutation(
        "straggler dropped at its end",
        ended_and_not_drained,
        MOVE,
        "f.id, f.id is not null,",
        "f.id, false,",
    ),
    Mutation(
        "drained straggler not passed", drained_straggler, MOVE, "s.drained\n           or", ""
    ),
    Mutation(
        "stragglers in no order",
        stragglers_in_order,
        MOVE,
        "array_agg(s.xid order by s.xid) filter (where s.stays), '{}') as xids,\n"
        "                      coalesce(array_agg(s.id order by s.xid)",
        "array_agg(s.xid) filter (where s.stays), '{}') as xids,\n"
        "                      coalesce(array_agg(s.id)",
    ),
    Mutation(
        "movers wait for each other",
        waits_for_nobody,
        MOVE,
        "    with now as",
        "    lock table outbox_heads in exclusive mode;\n    with now as",
    ),
    Mutation(
        "head lowered",
        never_lowered,
        "functions/outbox_reap.sql",
        "order by q.xid desc, q.id desc, q.made desc",
        "order by q.xid, q.id, q.made",
    ),
    Mutation(
        "restored head trusted",
        restored_head,
        "views/outbox_walks.sql",
        "        and q.made = q.stamp\n",
        "",
    ),
    Mutation(
        "head of the future trusted",
        head_of_the_future,
        "views/outbox_walks.sql",
        "        and q.xid <= pg_snapshot_xmax(pg_current_snapshot())\n",
        "",
    ),
    Mutation("claim overlooks stragglers", late_writers, CLAIM, f"where {SEEN}", "where false"),
    Mutation(
        "claim waits for the oldest straggler",
        one_straggler_of_two,
        CLAIM,
        f"where {SEEN}",
        "where s.xid < pg_snapshot_xmin(pg_current_snapshot())",
    ),
    Mutation(
        "claim overlooks its own events",
        own_events,
        CLAIM,
        f"where {SEEN}",
        f"where {SEEN} and s.xid is distinct from pg_current_xact_id_if_assigned()",
    ),
    Mutation(
        "next_due overlooks stragglers",
        one_straggler_of_two,
        "views/outbox_fronts.sql",
        f"where {SEEN}",
        "where false",
    ),
    Mutation(
        "ids from 0",
        only_positive_ids,
        setup="alter table outbox_ready drop constraint outbox_ready_id_check",
    ),
]


@pytest.fixture(scope="module")
def scratch(databases: Databases, template: str) -> Iterator[str]:
    with databases.database(template) as dsn:
        yield dsn


@pytest.mark.once
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_mutation(databases: Databases, template: str, scratch: str, mutation: Mutation) -> None:
    with ExitStack() as stack:
        dsn = stack.enter_context(databases.database(template)) if mutation.setup else scratch
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        conn.execute("set search_path to public, pg_temp")
        mutation.apply(conn)
        if mutation.file:
            stack.callback(lambda: conn.execute((SOURCES / mutation.file).read_text()))
        stage = stack.enter_context(staged(dsn))
        with pytest.raises((AssertionError, pytest.fail.Exception, LockNotAvailable)):
            mutation.caught_by(stage)


# --- No decay -----------------------------------------------------------------------------------


def pass_events(conn: Connection, events: int) -> None:
    """So many events are enqueued, delivered and acked."""
    for _ in range(events // 1000):
        conn.execute(
            "insert into outbox_events (topic, payload) select 't', '0' from generate_series(1, 1000)"
        )
        while rows := conn.execute("select lease from outbox_claim('test', 100)").fetchall():
            conn.execute("select outbox_ack(%s)", rows[0])


def blocks_of_an_empty_claim(conn: Connection) -> int:
    """How many blocks it touches; the least of some, since a claim may move the heads first."""
    seen = []
    for _ in range(5):
        plan = value(
            conn, "explain (analyze, buffers, format json) select * from outbox_claim('test')"
        )[0]["Plan"]
        seen.append(int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"]))
    return min(seen)


@pytest.mark.parametrize("held_by", ["snapshot", "writer", "prepared writer"])
def test_no_decay(stage: Stage, held_by: str) -> None:
    """What has passed under a transaction that vacuum must respect costs a claim nothing."""
    pass_events(stage.main, 1000)
    holder = stage.open()
    if held_by == "snapshot":
        holder.isolation_level = IsolationLevel.REPEATABLE_READ
        holder.execute("select 1 from outbox_ready")
    else:
        holder.execute("select pg_current_xact_id()")
    if held_by == "prepared writer":
        holder.execute("prepare transaction 'holder'")
    stage.burn()
    pass_events(stage.main, 3000)
    few = blocks_of_an_empty_claim(stage.main)
    pass_events(stage.main, 27000)
    many = blocks_of_an_empty_claim(stage.main)
    dead = value(stage.main, "select pg_relation_size('outbox_ready_pkey') / 8192")
    if dead < 100:
        raise Vacuous(f"the dead entries fill {dead} blocks")
    assert many < few + 30, (few, many)


# --- All of it at random ------------------------------------------------------------------------

PRODUCERS = (
    *("plain", "auto", "late", "rollback", "savepoints", "many_savepoints", "xid_first"),
    *("repeatable_read", "serializable", "prepared", "copy", "sequence_first", "keyed"),
    *("scheduled", "move_first"),
)
CLAIMERS = (
    *("auto", "auto", "auto", "auto", "abort", "doubled", "doubled_abort", "savepoint"),
    *("deep_savepoint", "repeatable_read", "old_snapshot", "xid_first", "prepared", "slow"),
    "with_its_effects",
)


class Stress:
    """Everything that writes, claims, moves, ends and kills, on one database."""

    def __init__(self, dsn: str, seed: int, hold: float = 0.3, lease_for: float = 1) -> None:
        self.dsn = dsn
        self.random = random.Random(seed)
        self.hold = hold
        self.stopping = threading.Event()
        self.seen: Counter[str] = Counter()
        self.prepared: deque[tuple[float, str]] = deque()
        self.events = 0
        self.moves = 0  # since the last crash
        with self.connect() as conn:
            # No primary key, and no unique index: a second ack is to be seen, not refused.
            conn.execute("create table test_acked (id bigint)")
            for topic in "abks":
                configure(
                    *(conn, topic),
                    max_attempts=1000,
                    lease_for=timedelta(seconds=lease_for),
                    backoff_base=timedelta(seconds=0.05),
                    backoff_cap=timedelta(seconds=0.2),
                )

    def connect(self) -> Connection:
        for _ in range(300):
            with suppress(psycopg.OperationalError):
                return psycopg.connect(self.dsn, autocommit=True)
            time.sleep(0.1)
        raise RuntimeError("no server")

    def start(self, *roles: Callable[[Connection], None]) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._loop, args=[role]) for role in roles]
        for thread in threads:
            thread.start()
        return threads

    def _loop(self, role: Callable[[Connection], None]) -> None:
        conn: Connection | None = None
        while not self.stopping.is_set():
            try:
                if conn is None or conn.closed:
                    conn = self.connect()
                    conn.execute(f"set synchronous_commit = {self.random.choice(('on', 'off'))}")
                role(conn)
            except psycopg.Error as error:
                self.seen[type(error).__name__] += 1
                try:
                    assert conn is not None
                    conn.rollback()
                except psycopg.Error:
                    conn = None
        if conn is not None:
            conn.close()

    def nap(self, chance: float, longest: float) -> None:
        # Half of the time nobody is late, and xmin is close to xmax.
        calm = int(time.monotonic() / 2) % 2 == 0
        if self.random.random() < chance:
            time.sleep(self.random.random() * longest * (0.03 if calm else 1))

    def prepare(self, conn: Connection) -> None:
        gid = f"heads {self.random.getrandbits(60)}"
        conn.execute(f"prepare transaction '{gid}'")
        self.prepared.append((time.monotonic() + self.random.random() * self.hold * 2, gid))

    def enqueue(self, conn: Connection, events: int) -> None:
        conn.execute(
            "insert into outbox_events (topic, payload, priority)"
            " select topic, '0', priority"
            "   from (values ('a', 0), ('a', 1), ('b', 0)) as lanes (topic, priority),"
            "        generate_series(1, %s) order by random() limit %s",
            [events, events],
        )

    def producer(self, conn: Connection) -> None:
        way = self.random.choice(PRODUCERS)
        events = self.random.choice((1, 2, 3, 5, 30, 80))
        self.seen[f"producer {way}"] += 1
        if way == "auto":
            self.enqueue(conn, events)
            return
        isolation = {
            "repeatable_read": " isolation level repeatable read",
            "serializable": " isolation level serializable",
        }.get(way, "")
        conn.execute(f"begin{isolation}")
        if way == "xid_first":
            conn.execute("select pg_current_xact_id()")
            self.nap(1, self.hold)
            self.enqueue(conn, events)
        elif way == "sequence_first":
            conn.execute(
                "select nextval(pg_get_serial_sequence('outbox_events', 'id'))"
                " from generate_series(1, 40)"
            )
            self.nap(1, self.hold)
            self.enqueue(conn, events)
        elif way == "move_first":
            if self.random.random() < 0.5:  # then it may move nothing
                conn.execute("select pg_current_xact_id()")
                self.nap(1, self.hold)
            conn.execute("select outbox_move_heads()")
            self.nap(0.5, self.hold)
            self.enqueue(conn, events)
            self.nap(0.5, self.hold)
        elif way == "savepoints":
            conn.execute("savepoint a")
            self.enqueue(conn, events)
            self.nap(0.5, self.hold)
            conn.execute("rollback to a")
            self.enqueue(conn, events)
            conn.execute("savepoint b")
            self.enqueue(conn, events)
            conn.execute("release b")
            self.nap(0.5, self.hold)
        elif way == "many_savepoints":  # more than a backend's entry in shared memory holds
            for _ in range(70):
                conn.execute("savepoint s")
                self.enqueue(conn, 1)
            self.nap(1, self.hold)
        elif way == "copy":
            with conn.cursor().copy("copy outbox_events (topic, payload) from stdin") as rows:
                for _ in range(events):
                    rows.write_row((self.random.choice("ab"), "0"))
            self.nap(0.5, self.hold)
        elif way == "keyed":
            for key in sorted(self.random.choices("pqrstuvw", k=min(events, 3))):
                enqueue(conn, "k", ordering_key=key)
            self.nap(0.3, 0.03)
        elif way == "scheduled":
            conn.execute(
                "select outbox_enqueue('s', '0', available_at =>"
                " clock_timestamp() + random() * interval '0.3 seconds')"
                " from generate_series(1, %s)",
                [events],
            )
            self.nap(0.5, self.hold)
        else:
            self.enqueue(conn, events)
            self.nap(0.6, self.hold * (3 if way == "late" else 1))
        if way == "rollback":
            conn.execute("rollback")
        elif way == "prepared":
            self.prepare(conn)
        else:
            conn.execute("commit")

    def claimer(self, conn: Connection) -> None:
        way = self.random.choice(CLAIMERS)
        n = self.random.choice((1, 2, 5, 20, 200))
        self.seen[f"claimer {way}"] += 1

        def take() -> list[tuple[int, int]]:
            rows = conn.execute("select lease, id from outbox_claim('test', %s)", [n]).fetchall()
            return [(lease, id) for lease, id in rows]

        if way == "auto":
            taken = take()
        else:
            old = way in ("repeatable_read", "old_snapshot")
            conn.execute("begin" + (" isolation level repeatable read" if old else ""))
            if way == "old_snapshot":
                conn.execute("select 1 from outbox_lanes")
                self.nap(1, self.hold)
            elif way == "xid_first":
                conn.execute("select pg_current_xact_id()")
                self.nap(0.5, self.hold)
            elif way == "savepoint":
                conn.execute("savepoint a")
                take()
                self.nap(0.5, 0.05)
                conn.execute("rollback to a")
            elif way == "deep_savepoint":
                conn.execute("savepoint a")
                take()
                conn.execute("savepoint b")
                take()
                conn.execute("release b")
                self.nap(0.5, 0.05)
                conn.execute("rollback to a")
            taken = take()
            if way in ("doubled", "doubled_abort"):
                self.nap(0.5, 0.05)
                taken += take()
            self.nap(1 if way == "slow" else 0.3, self.hold / 2)
            if way == "with_its_effects":
                for lease in {lease for lease, _ in taken}:
                    self.ack(conn, lease)
            if way in ("abort", "doubled_abort"):
                conn.execute("rollback")
                return
            if way == "prepared":
                self.prepare(conn)
                return
            conn.execute("commit")
            if way == "with_its_effects":
                return
        self.seen["claimed"] += len(taken)
        by_lease: dict[int, list[int]] = defaultdict(list)
        for lease, id in taken:
            by_lease[lease].append(id)
        for lease, held in by_lease.items():
            end = self.random.random()
            if end < 0.7:
                self.ack(conn, lease)
            elif end < 0.8:
                release(conn, lease, held)
            elif end < 0.87:
                fail(conn, lease, retry_in=timedelta(0))
            elif end < 0.95:
                fail(conn, lease, ids=held[: len(held) // 2 + 1])
                self.ack(conn, lease)

    def ack(self, conn: Connection, lease: int) -> None:
        conn.execute("insert into test_acked select outbox_ack(%s)", [lease])

    def mover(self, conn: Connection) -> None:
        time.sleep(self.random.random() * 0.004)
        way = self.random.random()
        if way < 0.8:
            conn.execute("select outbox_move_heads()")
        else:
            conn.execute("begin isolation level repeatable read")
            conn.execute("select 1")
            self.nap(0.5, self.hold)
            conn.execute("select outbox_move_heads()")
            self.nap(0.5, 0.05)
            conn.execute("commit" if way < 0.95 else "rollback")
        self.seen["calls of movers"] += 1

    def reaper(self, conn: Connection) -> None:
        time.sleep(0.1 + self.random.random() * 0.3)
        call(conn, "outbox_reap", 500)

    def vacuum(self, conn: Connection) -> None:
        time.sleep(0.7)
        conn.execute("vacuum outbox_ready, outbox_leases, outbox_heads, outbox_scheduled")

    def resolver(self, conn: Connection) -> None:
        time.sleep(0.02)
        while self.prepared and self.prepared[0][0] < time.monotonic():
            _, gid = self.prepared.popleft()
            end = "rollback" if self.random.random() < 0.4 else "commit"
            conn.execute(f"{end} prepared '{gid}'")

    def killer(self, conn: Connection) -> None:
        time.sleep(0.4)
        killed = conn.execute(
            "select pg_terminate_backend(pid) from ("
            "    select pid from pg_stat_activity"
            "     where datname = current_database() and backend_type = 'client backend'"
            "       and pid <> pg_backend_pid() and query !~ 'vacuum'"
            "     order by random() limit 2) as chosen"
        ).fetchall()
        self.seen["kills"] += len(killed)

    def measure(self) -> None:
        """Count the moves: the reaper removes heads, and a crash removes its count as well."""
        with suppress(psycopg.Error), self.connect() as conn:
            self.seen["heads with stragglers"] += int(
                value(conn, "select count(*) from outbox_walks where cardinality(stragglers) > 0")
            )
            moves = value(
                conn, "select n_tup_ins from pg_stat_user_tables where relname = 'outbox_heads'"
            )
            if moves < self.moves:
                self.seen["moves"] += self.moves
            self.moves = int(moves)
            self.events = count(conn, "outbox_events")

    def finish(self, threads: list[threading.Thread]) -> None:
        """Stop, and let the prepared transactions commit, for which somebody may be waiting."""
        self.stopping.set()
        while any(thread.is_alive() for thread in threads):
            self.commit_prepared()
            time.sleep(0.1)
        self.commit_prepared()

    def commit_prepared(self) -> None:
        with suppress(psycopg.Error), self.connect() as conn:  # the killer may be at work still
            for (gid,) in conn.execute(
                "select gid from pg_prepared_xacts where database = current_database()"
            ).fetchall():
                with suppress(psycopg.errors.UndefinedObject):
                    conn.execute(f"commit prepared '{gid}'")

    def drain(self, seconds: float) -> dict[str, int]:
        """What claims alone do not bring out, and what was acked too often; nothing, when right."""
        deadline = time.monotonic() + seconds

        def deliver() -> None:
            idle = 0
            with self.connect() as conn:
                while idle < 8:
                    rows = conn.execute("select lease from outbox_claim('test', 1000)").fetchall()
                    if rows:
                        idle = 0
                        self.ack(conn, rows[0][0])
                    elif not any(count(conn, place) for place in PLACES):
                        return
                    else:
                        idle += 1
                        time.sleep(0.3)
                    # Events that have lost a lease are delivered one by one.
                    if time.monotonic() > deadline:
                        raise TimeoutError("claims still deliver")

        with ThreadPoolExecutor(4) as pool:
            for delivering in [pool.submit(deliver) for _ in range(4)]:
                delivering.result()
        with self.connect() as conn:
            faults = {place: count(conn, place) for place in PLACES}
            faults["acked twice"] = count(conn, "test_acked") - int(
                value(conn, "select count(distinct id) from test_acked")
            )
            faults["never acked"] = count(
                conn,
                "outbox_events as e where not exists (select from test_acked as a where a.id = e.id)",
            )
            faults["acked, but not enqueued"] = count(
                conn,
                "test_acked as a where not exists (select from outbox_events as e where e.id = a.id)",
            )
            self.seen["events"] = count(conn, "outbox_events")
        return {fault: number for fault, number in faults.items() if number}


def no_longer_young_at_once(conn: Connection, age: int = 20) -> None:
    """Let nearly everybody who runs be passed, so that stragglers are the rule."""
    text = (SOURCES / MOVE).read_text()
    assert text.count("- 100)") == 1
    conn.execute("set search_path to public, pg_temp")
    conn.execute(text.replace("- 100)", f"- {age})"))


def chaos(
    stress: Stress, seconds: float, events: int = 0, crash: Callable[[], None] | None = None
) -> dict[str, int]:
    """Play until so much time has passed, or so many events; then drain."""
    threads = stress.start(
        *[stress.producer] * 6,
        *[stress.claimer] * 6,
        *[stress.mover] * 2,
        *(stress.reaper, stress.vacuum, stress.resolver, stress.killer),
    )
    try:
        start = time.monotonic()
        crashes = 0
        while time.monotonic() < start + seconds or stress.events < events:
            time.sleep(0.5)
            stress.measure()
            if crash and time.monotonic() > start + (crashes + 1) * 25:
                crash()
                crashes += 1
                stress.seen["crashes"] += 1
    finally:
        stress.finish(threads)
    stress.measure()
    stress.seen["moves"] += stress.moves
    return stress.drain(10 + stress.events / 100)


@pytest.mark.once
def test_stress(dsn: str) -> None:
    stress = Stress(dsn, seed=1)
    with stress.connect() as conn:
        no_longer_young_at_once(conn)
    faults = chaos(stress, SECONDS)
    print(dict(stress.seen))
    assert not faults, (faults, stress.seen)
    assert stress.seen["heads with stragglers"] > 0


if EVENTS:  # the long form, which a run of all tests leaves out

    @pytest.mark.timeout(3600)
    @pytest.mark.parametrize("age", [20, 100])
    def test_long_stress(cluster: Cluster, age: int) -> None:
        yoyo("apply", cluster.dsn)
        stress = Stress(cluster.dsn, seed=2, hold=0.3 if age == 20 else 1.5, lease_for=4)
        with stress.connect() as conn:
            no_longer_young_at_once(conn, age)

        def crash() -> None:
            cluster.stop(immediate=True)
            cluster.start()

        faults = chaos(stress, 10, EVENTS, crash)
        print(dict(stress.seen))
        assert not faults, (faults, stress.seen)
