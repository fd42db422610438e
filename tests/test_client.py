"""The client: each method, both roads of enqueue_many, lost leases, and what must not get in."""

from __future__ import annotations

import copy
import json
import pickle
import random
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pgoutbox
import psycopg
import pytest
from pgoutbox import Delivery, Enqueued, EnqueuedMany, Failed, LeaseLost, Outbox, Reaped, Undecoded
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb, set_json_loads

Conn = psycopg.Connection[Any]
Connect = Callable[..., Conn]

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


@pytest.fixture
def outbox(conn: Conn) -> Outbox:
    return Outbox(conn)


def status(conn: Conn, event: int) -> tuple[str, int | None] | None:
    """Status and attempts of an event."""
    query = "select status, attempts from outbox_event_status where id = %s"
    return conn.execute(query, [event]).fetchone()


def count(conn: Conn) -> int:
    row = conn.execute("select count(*) from outbox_events").fetchone()
    assert row
    return int(row[0])


def reap_expired(outbox: Outbox) -> Reaped:
    """What the reaper says once the shortest lease has run out."""
    deadline = time.monotonic() + 10
    while not (reaped := outbox.reap()).expired:
        assert time.monotonic() < deadline
    return reaped


# Enqueue


def test_an_enqueued_event_is_delivered_with_all_that_was_given(outbox: Outbox) -> None:
    made = outbox.enqueue(
        "order.placed",
        {"order": 17},
        dedupe_key="d17",
        ordering_key="customer 4",
        headers={"traceparent": "00-1-2-03"},
        priority=7,
        available_at=datetime(2020, 1, 1, tzinfo=timezone.utc),
        max_attempts=3,
    )
    assert made == Enqueued(made.id, created=True, changed=True)
    [delivery] = outbox.claim("w")
    assert delivery.id == made.id
    assert delivery.lease > 0
    assert delivery.topic == "order.placed"
    assert delivery.payload == {"order": 17}
    assert delivery.headers == {"traceparent": "00-1-2-03"}
    assert delivery.dedupe_key == "d17"
    assert delivery.ordering_key == "customer 4"
    assert delivery.priority == 7
    assert (delivery.attempt, delivery.max_attempts) == (1, 3)
    assert delivery.lease_expires_at > delivery.created_at
    assert delivery.lease_expires_at.tzinfo is not None


def test_defaults_are_the_functions_own(outbox: Outbox) -> None:
    outbox.enqueue("t", None)
    [delivery] = outbox.claim("w")
    assert delivery.payload is None
    assert delivery.headers == {}
    assert (delivery.priority, delivery.max_attempts) == (0, 5)
    assert delivery.dedupe_key is None
    assert delivery.ordering_key is None


def test_a_rolled_back_enqueue_never_was(connect: Connect, conn: Conn) -> None:
    with connect() as producer:
        Outbox(producer).enqueue("t", 1)
        producer.rollback()
    assert count(conn) == 0


def test_the_client_leaves_the_transaction_to_its_caller(connect: Connect, conn: Conn) -> None:
    producer = connect()
    Outbox(producer).enqueue("t", 1)
    Outbox(producer).enqueue_many([{"topic": "t", "payload": 2}])
    assert producer.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    assert count(conn) == 0
    producer.commit()
    assert count(conn) == 2


def test_a_duplicate_answers_the_first_events_id(outbox: Outbox) -> None:
    first = outbox.enqueue("t", 1, dedupe_key="k")
    assert outbox.enqueue("t", 2, dedupe_key="k") == Enqueued(first.id, False, False)
    replaced = outbox.enqueue("t", 3, dedupe_key="k", on_duplicate="replace")
    assert replaced == Enqueued(first.id, False, True)
    assert [d.payload for d in outbox.claim("w")] == [3]


def test_the_callers_cursor_and_rows_do_not_matter(connect: Connect) -> None:
    conn = connect(autocommit=True, row_factory=namedtuple_row, cursor_factory=psycopg.RawCursor)
    outbox = Outbox(conn)
    event = outbox.enqueue("t", {"a": [1]})
    [delivery] = outbox.claim("w")
    assert (delivery.id, delivery.payload) == (event.id, {"a": [1]})
    assert outbox.ack(delivery) == {event.id}


# enqueue_many


def test_without_keys_many_go_through_copy(outbox: Outbox, conn: Conn) -> None:
    at = datetime.now(timezone.utc) + HOUR
    answer = outbox.enqueue_many(
        [
            {"topic": "t", "payload": 'tab\t, newline\n, backslash \\N, quote "'},
            {"topic": "t", "payload": None, "headers": {"h": 1}, "priority": 3},
            {"topic": "t", "payload": 3, "available_at": at, "max_attempts": 2, "headers": None},
        ]
    )
    assert answer == EnqueuedMany(3, 3, None)
    rows = conn.execute(
        "select payload, headers, priority, available_at, max_attempts"
        " from outbox_events order by id"
    ).fetchall()
    assert rows == [
        ('tab\t, newline\n, backslash \\N, quote "', {}, 0, None, None),
        (None, {"h": 1}, 3, None, None),
        (3, {}, 0, at, 2),
    ]


def test_with_keys_many_go_through_the_function(outbox: Outbox) -> None:
    first = outbox.enqueue("t", 0, dedupe_key="a")
    at = datetime.now(timezone.utc) - HOUR
    answer = outbox.enqueue_many(
        {"topic": "t", "payload": i, "dedupe_key": key, "available_at": at, "headers": {"i": i}}
        for i, key in enumerate(["a", "b", None, "b"])
    )
    assert answer.events is not None
    assert [(e.created, e.changed) for e in answer.events] == [
        (False, False),
        (True, True),
        (True, True),
        (False, False),
    ]
    assert (answer.count, answer.created) == (4, 2)
    assert answer.events[0].id == first.id
    assert answer.events[3].id == answer.events[1].id
    assert [(d.payload, d.headers) for d in outbox.claim("w", 10)] == [
        (0, {}),
        (1, {"i": 1}),
        (2, {"i": 2}),
    ]


@pytest.mark.parametrize("key", ["dedupe_key", "ordering_key"])
def test_more_than_one_call_of_the_function_keeps_the_order(
    outbox: Outbox, conn: Conn, key: str
) -> None:
    events = [{"topic": "t", "payload": i, key: f"k{i}"} for i in range(2500)]
    with conn.transaction():
        answer = outbox.enqueue_many(events)
    assert answer.events is not None
    assert (answer.count, answer.created) == (2500, 2500)
    ids = [event.id for event in answer.events]
    assert ids == sorted(ids)
    stored = conn.execute("select payload from outbox_events order by id").fetchall()
    assert [row[0] for row in stored] == list(range(2500))


@pytest.mark.parametrize("events", [[], iter(())])
def test_no_events_at_all(outbox: Outbox, conn: Conn, events: Any) -> None:
    assert outbox.enqueue_many(events) == EnqueuedMany(0, 0, None)
    assert count(conn) == 0


# What must not get in

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "not a number": ({"payload": [float("nan")]}, "payload is not JSON"),
    "infinite": ({"payload": {"a": float("-inf")}}, "payload is not JSON"),
    "no JSON": ({"payload": {1, 2}}, "payload is not JSON: Object of type set"),
    "a Decimal": ({"payload": Decimal("0.1")}, "payload is not JSON: Object of type Decimal"),
    "too long an integer": ({"payload": 10**5000}, "payload is not JSON: Exceeds the limit"),
    "too deep": ({"payload": []}, "payload is not JSON"),
    "NUL": ({"payload": {"a": "x\0y"}}, "payload holds a NUL"),
    "NUL in a key": ({"payload": {"\0": 1}}, "payload holds a NUL"),
    "NUL after a backslash": ({"payload": "\\\0"}, "payload holds a NUL"),
    "a lone surrogate": ({"payload": "\ud83d"}, "payload holds .* a lone surrogate"),
    "a pair of surrogates": ({"payload": "\ud83d\ude00"}, "payload holds .* a lone surrogate"),
    "in a header": ({"headers": {"a": "\udfff"}}, "headers holds .* a lone surrogate"),
    "in the topic": ({"topic": "\ud800"}, "topic holds .* a lone surrogate"),
    "NUL in the ordering key": ({"ordering_key": "a\0"}, "ordering_key holds a NUL"),
    "no topic": ({"topic": None}, "topic is not of type str: None"),
    "a topic of another type": ({"topic": 5}, "topic is not of type str: 5"),
    "a dedupe key of another type": ({"dedupe_key": 5}, "dedupe_key is not of type str: 5"),
    "headers of another type": ({"headers": [1]}, "headers is not of type Mapping"),
    "a priority of another type": ({"priority": 1.5}, "priority is not of type int: 1.5"),
    "a true priority": ({"priority": True}, "priority is not of type int: True"),
    "a time without zone": ({"available_at": datetime(2030, 1, 1)}, "available_at has no time z"),
    "a time as text": ({"available_at": "2030-01-01"}, "available_at is not of type datetime"),
}
deep = BAD["too deep"][0]["payload"]
for _ in range(100_000):
    deep.append(deep := [])


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_anything_is_sent(connect: Connect, name: str) -> None:
    bad, message = BAD[name]
    conn = connect()
    outbox = Outbox(conn)
    event: dict[str, Any] = {"topic": "t", "payload": 1} | bad
    with pytest.raises(ValueError, match=message):
        outbox.enqueue(**event)
    good = {"topic": "t", "payload": 1}
    with pytest.raises(ValueError, match=rf"events\[2\]: {message}"):
        outbox.enqueue_many([good, good, event, good])
    with pytest.raises(ValueError, match=rf"events\[1\]: {message}"):
        outbox.enqueue_many([good | {"dedupe_key": "k"}, event])
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"topic": "t", "payload": 1, "topc": 2}, r"events\[0\]: unknown key 'topc'"),
        ({"topic": "t"}, r"events\[0\]: payload is missing"),
        ({"payload": 1}, r"events\[0\]: topic is missing"),
    ],
)
def test_an_event_has_the_keys_of_enqueue(outbox: Outbox, event: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        outbox.enqueue_many([event])


def test_what_the_database_refuses_is_its_own_error(outbox: Outbox, conn: Conn) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue) as refused:
        outbox.enqueue("t", 1, priority=11)
    assert "11" in str(refused.value.diag.message_primary)
    assert refused.value.diag.message_hint
    with pytest.raises(psycopg.errors.CheckViolation):
        outbox.enqueue_many([{"topic": "t", "payload": 1}, {"topic": "t" * 201, "payload": 1}])
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="event 2"):
        outbox.enqueue_many(
            {"topic": "t" * i, "payload": 1, "dedupe_key": f"{i}"} for i in (1, 201)
        )
    assert count(conn) == 0


# JSON values arrive equal


def same(sent: Any, got: Any) -> bool:
    """Equal, and of the same types: 1 is not True, and 1e23 is not 10**23."""
    if isinstance(sent, dict) and isinstance(got, dict):
        return sent.keys() == got.keys() and all(same(sent[k], got[k]) for k in sent)
    if isinstance(sent, list) and isinstance(got, list):
        return len(sent) == len(got) and all(map(same, sent, got))
    return type(sent) is type(got) and bool(sent == got)


VALUES: list[Any] = [
    *(None, True, False, 0, -1, 2**53 + 1, -(2**63), 10**400, 0.1, 1.0, -2.5, 1e16, 1e22, 1e23),
    *(1.7976931348623157e308, 5e-324, 1.2345678901234567e20, 123456789.12345679, 1e-7, [], {}),
    *("", "é ñ 漢字 😀 \U0010ffff", "\\u0000", "\\\\u0000", 'say "1e+23"', "\x01\x7f\u2028", "e+1"),
    {"": [[], {}, [None]], "1e+23": {"k\\": ["a\\", 1e30, 'b"', 10**30]}, "a": {"b": [0.5, 1]}},
]


@pytest.mark.parametrize("more", [{}, {"dedupe_key": "k"}, {"ordering_key": "k"}])
def test_values_arrive_equal_on_both_roads(outbox: Outbox, more: dict[str, Any]) -> None:
    for value in VALUES:
        outbox.enqueue("one", value)
    outbox.enqueue_many([{"topic": "many", "payload": VALUES, "headers": {"v": VALUES}} | more])
    for delivery, value in zip(outbox.claim("w", 1000, topics=["one"]), VALUES, strict=True):
        assert same(value, delivery.payload), value
    [delivery] = outbox.claim("w", topics=["many"])
    assert same(VALUES, delivery.payload)
    assert same(VALUES, delivery.headers["v"])


def test_every_finite_float_arrives_as_it_was(outbox: Outbox) -> None:
    rng = random.Random(2)
    bits = (struct.pack("<Q", rng.getrandbits(64)) for _ in range(20_000))
    floats = [x for [x] in map(struct.Struct("<d").unpack, bits) if abs(x) < float("inf")]
    outbox.enqueue("t", floats)
    [delivery] = outbox.claim("w")
    assert same(floats, delivery.payload)


def test_a_jsonb_brings_its_own_dumps(outbox: Outbox) -> None:
    exact = '{"price": 0.12345678901234567890123456789}'
    outbox.enqueue("t", Jsonb(exact, dumps=str))
    outbox.enqueue_many([{"topic": "t", "payload": Jsonb(exact, dumps=str.encode)}])
    outbox.enqueue_many([{"topic": "t", "payload": Jsonb({"a": 1}), "ordering_key": "k"}])
    first, second, third = outbox.claim("w", 3)
    assert first.payload == second.payload == json.loads(exact)
    assert third.payload == {"a": 1}


def test_the_connections_loads_decodes(connect: Connect) -> None:
    conn = connect(autocommit=True)
    set_json_loads(lambda text: json.loads(text, parse_float=Decimal), conn)
    conn.execute("select outbox_enqueue('t', '0.12345678901234567890123456789')")
    assert Outbox(conn).claim("w")[0].payload == Decimal("0.12345678901234567890123456789")


def test_what_python_cannot_decode_takes_nothing_else_down(outbox: Outbox, conn: Conn) -> None:
    conn.execute("select outbox_enqueue('t', repeat('9', 5000)::jsonb)")
    outbox.enqueue("t", "after it")
    bad, good = outbox.claim("w", 2)
    assert isinstance(bad.payload, Undecoded)
    assert bad.payload.text == "9" * 5000
    assert "limit" in bad.payload.reason
    assert good.payload == "after it"


# Claims and what ends them


def test_claim_takes_up_to_n_in_order(outbox: Outbox) -> None:
    ids = [outbox.enqueue("t", i).id for i in range(3)]
    first = outbox.claim("w", 2)
    assert [d.id for d in first] == ids[:2]
    assert len({d.lease for d in first}) == 1
    second = outbox.claim("w", 2)
    assert [d.id for d in second] == ids[2:]
    assert second[0].lease != first[0].lease
    assert outbox.claim("w", 2) == []


def test_claim_by_topics_and_for_a_time(outbox: Outbox) -> None:
    for topic in "abc":
        outbox.enqueue(topic, topic)
    assert outbox.claim("w", 9, topics=["nobody's"]) == []
    deliveries = outbox.claim("w", 9, topics=("a", "c"), lease_for=HOUR * 2)
    assert sorted(d.topic for d in deliveries) == ["a", "c"]
    assert all(d.lease_expires_at - d.created_at > HOUR for d in deliveries)
    with pytest.raises(TypeError, match="topics is one str"):
        outbox.claim("w", topics="abc")
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        outbox.claim("w", topics=[])


def test_a_delivery_is_frozen_and_can_be_made_for_a_test() -> None:
    now = datetime.now(timezone.utc)
    delivery = Delivery(1, 2, "t", {}, {}, None, None, 0, 1, 5, now, now)
    with pytest.raises(AttributeError):
        delivery.payload = 1  # type: ignore[misc]
    assert not hasattr(delivery, "__dict__")
    assert copy.copy(delivery) == pickle.loads(pickle.dumps(delivery)) == delivery


def test_columns_that_are_added_later_do_no_harm(connect: Connect) -> None:
    conn = connect(autocommit=True, options="-csearch_path=newer,public")
    event = Outbox(conn).enqueue("t", 1)
    conn.execute("create schema newer")
    conn.execute(
        """
        create function newer.outbox_claim(worker text, n integer)
        returns table (
            colour text, id bigint, lease bigint, payload jsonb, topic text, headers jsonb,
            dedupe_key text, ordering_key text, priority integer, attempt integer,
            max_attempts integer, created_at timestamptz, lease_expires_at timestamptz, shade text
        ) language sql as $$
            select 'red', d.id, lease, payload, topic, headers, dedupe_key, ordering_key, priority,
                   attempt, max_attempts, created_at, lease_expires_at, 'dark'
              from public.outbox_claim(worker, n) as d
        $$
        """
    )
    [delivery] = Outbox(conn).claim("w")
    assert (delivery.id, delivery.topic, delivery.payload) == (event.id, "t", 1)


@pytest.mark.parametrize("how", ["delivery", "deliveries", "lease", "ids"])
def test_ack(outbox: Outbox, conn: Conn, how: str) -> None:
    for i in range(2):
        outbox.enqueue("t", i)
    one, two = outbox.claim("w", 2)
    if how == "delivery":
        assert outbox.ack(one) == {one.id}
    elif how == "deliveries":
        assert outbox.ack(d for d in (one, two)) == {one.id, two.id}
    elif how == "lease":
        assert outbox.ack(one.lease) == {one.id, two.id}
    else:
        assert outbox.ack(one.lease, ids=[one.id, one.id]) == {one.id}
        assert outbox.ack(one.lease, []) == set()
    assert status(conn, one.id) == ("done", None)
    rest = ("processing", 1) if how in ("delivery", "ids") else ("done", None)
    assert status(conn, two.id) == rest


def test_fail_waits_and_then_is_dead(outbox: Outbox, conn: Conn) -> None:
    event = outbox.enqueue("t", 1, max_attempts=2).id
    [failed] = outbox.fail(outbox.claim("w"), error="no", retry_in=timedelta())
    assert (failed.id, failed.status) == (event, "retry")
    assert failed.available_at is not None
    [failed] = outbox.fail(outbox.claim("w")[0], error="still no")
    assert failed == Failed(event, "dead", None)
    query = "select reason, last_error from outbox_dead_letters"
    assert conn.execute(query).fetchall() == [("failed", "still no")]


def test_fail_can_be_for_good(outbox: Outbox, conn: Conn) -> None:
    event = outbox.enqueue("t", 1).id
    [delivery] = outbox.claim("w")
    assert outbox.fail(delivery.lease, dead=True, retry_in=HOUR) == [Failed(event, "dead", None)]
    assert conn.execute("select reason from outbox_dead_letters").fetchone() == ("discarded",)


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        ("nul \0 and \ud800 and 😀", "nul \ufffd and ? and 😀"),
        ("x" * 20_000, "x" * 8_000),
        ("", ""),
        (None, None),
    ],
)
def test_fail_takes_any_error_text(
    outbox: Outbox, conn: Conn, error: str | None, kept: str | None
) -> None:
    outbox.enqueue("t", 1)
    outbox.fail(outbox.claim("w"), error=error)
    assert conn.execute("select last_error from outbox_event_status").fetchone() == (kept,)


def test_fail_takes_any_error_text_in_any_encoding(connect: Connect, conn: Conn) -> None:
    latin = connect(autocommit=True, client_encoding="latin1")
    outbox = Outbox(latin)
    outbox.enqueue("t", 1)
    outbox.fail(outbox.claim("w"), error="caf\u00e9 😀")
    assert conn.execute("select last_error from outbox_event_status").fetchone() == ("caf? ?",)


def test_extend_never_shortens(outbox: Outbox) -> None:
    outbox.enqueue("t", 1)
    [delivery] = outbox.claim("w", lease_for=HOUR)
    [same_expiry] = outbox.extend(delivery, lease_for=SECOND)
    assert same_expiry.lease_expires_at == delivery.lease_expires_at
    [longer] = outbox.extend([delivery], lease_for=HOUR * 3)
    assert longer.id == delivery.id
    assert longer.lease_expires_at - delivery.lease_expires_at > HOUR


def test_release_does_not_count(outbox: Outbox, conn: Conn) -> None:
    event = outbox.enqueue("t", 1).id
    assert outbox.release(outbox.claim("w")) == {event}
    assert status(conn, event) == ("pending", 0)
    assert outbox.claim("w")[0].attempt == 1


def test_a_lost_lease_is_said(outbox: Outbox, conn: Conn) -> None:
    for i in range(3):
        outbox.enqueue("t", i)
    one, two, three = outbox.claim("w", 3)
    outbox.ack(two)
    calls: list[Callable[[Any], object]] = [outbox.extend, outbox.ack, outbox.fail, outbox.release]
    for call in calls:
        with pytest.raises(LeaseLost) as lost:
            call([two])
        assert (lost.value.lease, lost.value.lost_ids) == (one.lease, (two.id,))
        assert lost.value.held_ids == ()
        assert str(two.id) in str(lost.value)
    with pytest.raises(LeaseLost) as lost:
        outbox.ack([one, two])
    assert (lost.value.lost_ids, lost.value.held_ids) == ((two.id,), (one.id,))
    assert status(conn, one.id) == ("done", None)
    assert status(conn, three.id) == ("processing", 1)
    again = pickle.loads(pickle.dumps(lost.value))
    assert (again.lease, again.lost_ids, again.held_ids) == (one.lease, (two.id,), (one.id,))


def test_a_fenced_worker_can_neither_ack_nor_fail(outbox: Outbox) -> None:
    outbox.configure("t", backoff_base=timedelta(), backoff_cap=timedelta())
    event = outbox.enqueue("t", 1).id
    [old] = outbox.claim("slow", lease_for=SECOND / 10)
    reap_expired(outbox)
    [new] = outbox.claim("quick")
    assert (new.id, new.attempt) == (event, 2)
    with pytest.raises(LeaseLost):
        outbox.ack(old)
    with pytest.raises(LeaseLost):
        outbox.fail(old, error="late")
    assert outbox.ack(old.lease) == set()
    assert outbox.ack(new) == {event}


def test_a_lost_lease_rolls_the_callers_transaction_back(connect: Connect, conn: Conn) -> None:
    conn.execute("create table effects (event bigint)")
    worker = connect(autocommit=True)
    outbox = Outbox(worker)
    for i in range(2):
        outbox.enqueue("t", i)
    held, lost = outbox.claim("w", 2)
    outbox.release(lost)
    with pytest.raises(LeaseLost), worker.transaction():
        worker.execute("insert into effects values (1)")
        outbox.ack([held, lost])
    assert conn.execute("select count(*) from effects").fetchone() == (0,)
    assert status(conn, held.id) == ("processing", 1)
    with worker.transaction():
        worker.execute("insert into effects values (2)")
        with pytest.raises(LeaseLost):
            outbox.ack([held, lost])
    assert conn.execute("select event from effects").fetchall() == [(2,)]
    assert status(conn, held.id) == ("done", None)


def test_no_delivery_is_nothing_to_do(outbox: Outbox) -> None:
    assert outbox.ack(outbox.claim("w")) == set()
    assert outbox.release([]) == set()
    assert outbox.fail([]) == []
    assert outbox.extend([]) == []


def test_calls_that_name_two_leases_or_too_much(outbox: Outbox, conn: Conn) -> None:
    for i in range(2):
        outbox.enqueue("t", i)
    both = outbox.claim("w") + outbox.claim("w")
    with pytest.raises(ValueError, match="several leases"):
        outbox.ack(both)
    with pytest.raises(TypeError, match="deliveries name themselves"):
        outbox.ack(both[0], [both[0].id])
    assert [status(conn, d.id) for d in both] == [("processing", 1)] * 2


# Running it


def test_reap_answers_what_it_took_up(outbox: Outbox, conn: Conn) -> None:
    event = outbox.enqueue("t", 1, max_attempts=1).id
    outbox.claim("w", lease_for=SECOND / 10)
    assert reap_expired(outbox) == Reaped(expired=1, dead=1, promoted=0, pruned=0)
    assert status(conn, event) == ("dead", 1)
    assert outbox.reap(1).expired == 0


def test_redrive_and_cancel(outbox: Outbox, conn: Conn) -> None:
    ids = [outbox.enqueue(topic, 1).id for topic in "aab"]
    outbox.fail(outbox.claim("w", 3), dead=True)
    assert outbox.redrive(ids[:1]) == {ids[0]}
    assert outbox.redrive(topic="a", n=5) == {ids[1]}
    assert status(conn, ids[0]) == ("pending", 0)
    with pytest.raises(psycopg.errors.NullValueNotAllowed):
        outbox.redrive()
    [delivery] = outbox.claim("w")
    assert outbox.cancel(i for i in ids) == set(ids) - {delivery.id}
    assert outbox.cancel([]) == set()


def test_configure_changes_what_is_given(outbox: Outbox) -> None:
    policy = outbox.configure("t")
    assert (policy.topic, policy.max_attempts, policy.on_dead) == ("t", 5, "skip")
    assert policy.lease_for == timedelta(minutes=5)
    assert (policy.notify, policy.paused) == (False, False)
    changed = outbox.configure("t", retention=timedelta(days=9), notify=True, on_dead="block")
    assert (changed.retention, changed.notify, changed.on_dead) == (
        timedelta(days=9),
        True,
        "block",
    )
    outbox.pause("t")
    assert outbox.configure("t", notify=False).paused


def test_pause_and_resume(outbox: Outbox) -> None:
    outbox.enqueue("t", 1)
    outbox.pause("t")
    assert outbox.claim("w") == []
    assert outbox.next_due() is None
    outbox.resume("t")
    assert len(outbox.claim("w")) == 1


def test_next_due(outbox: Outbox) -> None:
    assert outbox.next_due() is None
    at = datetime.now(timezone.utc) + HOUR
    outbox.enqueue("later", 1, available_at=at)
    assert outbox.next_due() == at
    assert outbox.next_due(["other"]) is None
    outbox.enqueue("now", 1)
    due = outbox.next_due(("now", "other"))
    assert due is not None
    assert due < at


def test_the_version_is_the_databases_too(outbox: Outbox) -> None:
    assert outbox.version() == pgoutbox.__version__


# The core is tiny


@pytest.mark.once
def test_the_core_needs_psycopg_alone_and_is_short() -> None:
    blocked = ["yoyo", "sqlparse", "click", "rich", "tabulate", "importlib_metadata"]
    program = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({blocked!r}))\n"
        "import pgoutbox\n"
        "for name, module in sys.modules.items():\n"
        "    if name.split('.')[0] == 'pgoutbox':\n"
        "        print(module.__file__)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    files = [Path(line) for line in answer.stdout.split()]
    assert len(files) >= 2
    assert sum(len(file.read_text().splitlines()) for file in files) < 400


@pytest.mark.once
def test_what_is_no_connection_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match=r"no psycopg\.Connection: 'postgresql://"):
        Outbox("postgresql://localhost")  # type: ignore[arg-type]
