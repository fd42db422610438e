"""The functions of the queue, one method each, over the caller's own connection."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, TypeVar

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.rows import class_row, scalar_row
from psycopg.types.json import Json, Jsonb

__all__ = ["Delivery", "Enqueued", "EnqueuedMany", "Extended", "Failed", "LeaseLost", "Outbox"]
__all__ += ["Policy", "Reaped", "Undecoded"]


class LeaseLost(Exception):
    """Events that a call named are not held under their lease any more.

    `lost_ids` may be with another worker by now and are not yours to end; on `held_ids` the call
    took effect. In autocommit mode that effect is committed. In a transaction it is still open:
    let this exception leave `with conn.transaction()` and all is rolled back, the handler's own
    writes too, and `held_ids` are to be ended again; catch it inside to keep the rest.
    """

    def __init__(self, lease: int, lost_ids: Iterable[int], held_ids: Iterable[int]) -> None:
        self.lease, self.lost_ids, self.held_ids = lease, tuple(lost_ids), tuple(held_ids)
        super().__init__(self.lease, self.lost_ids, self.held_ids)

    def __str__(self) -> str:
        return f"lease {self.lease} no longer holds {', '.join(map(str, self.lost_ids))}"


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event under a lease, as `claim` answers it.

    JSON is decoded as the connection decodes jsonb: by json.loads, fractions as float, unless
    psycopg's `set_json_loads` says otherwise.
    """

    lease: int
    id: int
    topic: str
    payload: Any
    headers: Any
    dedupe_key: str | None
    ordering_key: str | None
    priority: int
    attempt: int
    max_attempts: int
    created_at: datetime
    lease_expires_at: datetime


@dataclass(frozen=True, slots=True)
class Undecoded:
    """Stands for JSON that Python cannot decode: nested too deeply, or too long an integer."""

    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Enqueued:
    """`created` is false, and `id` the first event's, where the dedupe key was known.

    `changed`: what the call asked for is in effect (created, replaced or requeued).
    """

    id: int
    created: bool
    changed: bool


@dataclass(frozen=True, slots=True)
class EnqueuedMany:
    """Of `count` events `created` are new; `events` answers for each, and is None after COPY."""

    count: int
    created: int
    events: list[Enqueued] | None


@dataclass(frozen=True, slots=True)
class Failed:
    """`status` is "retry", due at `available_at`, or "dead" (None)."""

    id: int
    status: str
    available_at: datetime | None


@dataclass(frozen=True, slots=True)
class Extended:
    """The event is held until `lease_expires_at`, by the database's clock."""

    id: int
    lease_expires_at: datetime


@dataclass(frozen=True, slots=True)
class Reaped:
    """Leases that had expired, how many of these went dead, events made ready, events removed."""

    expired: int
    dead: int
    promoted: int
    pruned: int


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings of a topic."""

    topic: str
    max_attempts: int
    lease_for: timedelta
    backoff_base: timedelta
    backoff_cap: timedelta
    retention: timedelta
    notify: bool
    on_dead: str
    paused: bool


T = TypeVar("T")
Ids = Iterable[int] | None
Leased = int | Delivery | Iterable[Delivery]
OnDuplicate = Literal["ignore", "replace", "requeue"]
Topics = Sequence[str] | None

_PARAMETERS: dict[str, type] = {
    **dict.fromkeys(("topic", "payload", "dedupe_key", "ordering_key", "on_duplicate"), str),
    **dict(headers=Mapping, priority=int, available_at=datetime, max_attempts=int),
}
_UNSTORABLE = re.compile(r"(?<!\\)(?:\\\\)*\\u0000|[\ud800-\udfff]")
_EXPONENT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?e\+\d+')


def _json(name: str, value: object) -> str:
    """JSON text from which jsonb gives an equal value back; ValueError where it could not."""
    if isinstance(value, Json | Jsonb):
        dumped = (value.dumps or json.dumps)(value.obj)
        return dumped.decode() if isinstance(dumped, bytes) else dumped
    try:
        # With \u escapes a lone surrogate would go unseen.
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not JSON: {error}") from error
    if _UNSTORABLE.search(text):
        raise ValueError(f"{name} holds a NUL character or a lone surrogate")
    # jsonb would make the integer 10^23 of 1e+23, and the float 1e23 is another number.
    if "e+" not in text:
        return text
    return _EXPONENT.sub(lambda m: m[0] if m[0][0] == '"' else f"{Decimal(m[0]):f}.0", text)


def _checked(event: Mapping[str, Any]) -> dict[str, Any]:
    """What is given of an event, payload and headers as JSON text; ValueError for a bad value."""
    if unknown := event.keys() - _PARAMETERS.keys():
        raise ValueError(f"unknown key {min(unknown)!r}")
    if missing := {"topic", "payload"} - event.keys():
        raise ValueError(f"{max(missing)} is missing")
    checked: dict[str, Any] = {"payload": _json("payload", event["payload"])}
    for name, value in event.items():
        if name == "payload" or (value is None and name != "topic"):
            continue
        if not isinstance(value, _PARAMETERS[name]) or isinstance(value, bool):
            raise ValueError(f"{name} is not of type {_PARAMETERS[name].__name__}: {value!r}")
        if isinstance(value, datetime) and value.utcoffset() is None:
            raise ValueError(f"{name} has no time zone: {value}")
        if isinstance(value, str):
            _json(name, value)
        checked[name] = _json(name, dict(value)) if isinstance(value, Mapping) else value
    return checked


def _object(event: dict[str, Any]) -> str:
    plain = {name: value for name, value in event.items() if name not in ("payload", "headers")}
    text = json.dumps(plain, default=str)[:-1] + f', "payload": {event["payload"]}'
    return f'{text}, "headers": {event.get("headers", "null")}}}'


class JsonLoader(Loader):
    """Decodes as the connection does, but lets no undecodable value take its whole claim down."""

    def load(self, data: Buffer) -> Any:
        assert self.connection
        loader = self.connection.adapters.get_loader(self.oid, self.format) or Loader
        try:
            return loader(self.oid, self.connection).load(data)
        except (ValueError, RecursionError) as error:
            return Undecoded(bytes(data).decode(errors="replace"), str(error))


class Outbox:
    """The functions of the queue over `conn`, which stays the caller's.

    Nothing here opens, commits, rolls back, retries or logs: a call is part of the connection's
    transaction, or in autocommit mode commits by itself; its search_path leads to the queue.
    ValueError and TypeError are raised before anything is sent; what the database refuses is
    psycopg's error, with the SQLSTATE, message and hint of the function.

    Calls on a lease take a delivery, or deliveries of one lease, or the lease's number, with or
    without ids. Events that were named and are lost raise `LeaseLost`. A number alone means all
    that the lease still holds, were it nothing: there, only the answer tells.
    """

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        if not isinstance(conn, psycopg.Connection):
            raise TypeError(f"conn is no psycopg.Connection: {conn!r}")
        self._conn = conn

    def enqueue(
        self,
        topic: str,
        payload: Any,
        *,
        dedupe_key: str | None = None,
        ordering_key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        priority: int = 0,
        available_at: datetime | None = None,
        max_attempts: int | None = None,
        on_duplicate: OnDuplicate = "ignore",
    ) -> Enqueued:
        """Enqueue one event, which exists if and only if the transaction commits.

        `payload` is what json.dumps takes (None: JSON null) or a psycopg Jsonb with a dumps of
        its own. Not NaN or infinities, no NUL or lone surrogates, no time without a zone.
        """
        event = {name: value for name, value in locals().items() if name != "self"}
        return self._call(Enqueued, "enqueue", **_checked(event))[0]

    def enqueue_many(self, events: Iterable[Mapping[str, Any]]) -> EnqueuedMany:
        """Enqueue events, mappings with `enqueue`'s parameters as keys, in their order.

        Without dedupe and ordering keys by one COPY, which is fastest and tells no ids; else by
        `outbox_enqueue_many` in thousands, each of which autocommit mode commits by itself. All
        are encoded in memory beforehand; ValueError names the position of a bad one, from 0.
        """
        checked = []
        for place, event in enumerate(events):
            try:
                checked.append(_checked(event))
            except ValueError as error:
                raise ValueError(f"events[{place}]: {error}") from error
        if any({"dedupe_key", "ordering_key", "on_duplicate"} & event.keys() for event in checked):
            texts, each = list(map(_object, checked)), list[Enqueued]()
            for start in range(0, len(texts), 1000):
                array = f"[{', '.join(texts[start : start + 1000])}]"
                each += self._call(Enqueued, "enqueue_many", events=array)
            return EnqueuedMany(len(each), sum(row.created for row in each), each)
        columns = ("topic", "payload", "headers", "priority", "available_at", "max_attempts")
        query = f"copy outbox_events ({', '.join(columns)}) from stdin"
        with psycopg.Cursor(self._conn) as cursor, cursor.copy(query.encode()) as copy:
            for event in ({"headers": "{}", "priority": 0} | event for event in checked):
                copy.write_row([event.get(name) for name in columns])
        return EnqueuedMany(len(checked), len(checked), None)

    def claim(
        self, worker: str, n: int = 1, *, topics: Topics = None, lease_for: timedelta | None = None
    ) -> list[Delivery]:
        """Take up to `n` (1 to 10,000) ready events under one new lease, in order; never waits.

        Commit before the work: until then the events are locked, not leased. Fewer than `n` is
        normal, an empty list means that nothing was ready and free. `topics` None: all;
        `lease_for` 0.1 seconds to 30 days, None: the topic's.
        """
        return self._call(Delivery, "claim", worker=worker, n=n, topics=topics, lease_for=lease_for)

    def ack(self, lease: Leased, ids: Ids = None) -> set[int]:
        """Done, never to be delivered again. Answers the ids that were held."""
        return set(self._end(int, "ack", lease, ids))

    def fail(
        self,
        lease: Leased,
        ids: Ids = None,
        *,
        error: str | None = None,
        retry_in: timedelta | None = None,
        dead: bool = False,
    ) -> list[Failed]:
        """A failed attempt: to be retried, or dead when the attempts are spent or `dead` is true.

        `retry_in` is 0 to 1 year, None: the topic's backoff. Of `error` the first 8,000
        characters are kept; what the database cannot store is replaced.
        """
        if error is not None:
            utf8 = self._conn.info.parameter_status("server_encoding") == "UTF8"
            codec = "utf-8" if utf8 and self._conn.info.encoding == "utf-8" else "ascii"
            error = error.replace("\0", "\ufffd").encode(codec, "replace").decode(codec)
        return self._end(Failed, "fail", lease, ids, error=error, retry_in=retry_in, dead=dead)

    def extend(
        self, lease: Leased, ids: Ids = None, *, lease_for: timedelta | None = None
    ) -> list[Extended]:
        """A heartbeat: held until `lease_for` (None: the topic's) from now, and never shorter."""
        return self._end(Extended, "extend", lease, ids, lease_for=lease_for)

    def release(self, lease: Leased, ids: Ids = None) -> set[int]:
        """Give back at once, with the attempt not counted. Answers the ids that were held."""
        return set(self._end(int, "release", lease, ids))

    def reap(self, n: int = 1000) -> Reaped:
        """Housekeeping, at most `n` (1 to 100,000) of each kind; never waits, safe at any rate."""
        return self._call(Reaped, "reap", n=n)[0]

    def redrive(self, ids: Ids = None, *, topic: str | None = None, n: int = 1000) -> set[int]:
        """Dead letters, by ids or topic, back to pending with attempts from 0; at most `n`."""
        return set(self._call(int, "redrive", ids=ids, topic=topic, n=n))

    def cancel(self, ids: Iterable[int]) -> set[int]:
        """Remove events that wait or are dead. Those in flight or done are left, and missing."""
        return set(self._call(int, "cancel", ids=ids))

    def configure(
        self,
        topic: str,
        *,
        max_attempts: int | None = None,
        lease_for: timedelta | None = None,
        backoff_base: timedelta | None = None,
        backoff_cap: timedelta | None = None,
        retention: timedelta | None = None,
        notify: bool | None = None,
        on_dead: Literal["skip", "block"] | None = None,
    ) -> Policy:
        """Change what is given of a topic's settings, and answer all of them."""
        given = {name: value for name, value in locals().items() if name != "self"}
        return self._call(Policy, "configure", **given)[0]

    def pause(self, topic: str) -> None:
        """No delivery by claims that start after the commit; enqueue and leases go on."""
        self._call(str, "pause", topic=topic)

    def resume(self, topic: str) -> None:
        """Undo `pause`."""
        self._call(str, "resume", topic=topic)

    def next_due(self, topics: Topics = None) -> datetime | None:
        """When something already there can next be claimed (None: nothing).

        To sleep until then, subtract clock_timestamp() in SQL: it is the database's clock.
        """
        return self._call(datetime, "next_due", topics=topics)[0]

    def version(self) -> str:
        """The version that is installed in the database."""
        return self._call(str, "version")[0]

    def _call(self, cls: type[T], function: str, /, **given: Any) -> list[T]:
        # By name: columns that are added later do no harm, and what is not given is its default.
        given = {name: value for name, value in given.items() if value is not None}
        for name in {"ids", "topics"} & given.keys():
            if isinstance(given[name], str):
                raise TypeError(f"{name} is one str, not several: {given[name]!r}")
            given[name] = list(given[name])
        columns = ", ".join(field.name for field in fields(cls)) if is_dataclass(cls) else "*"
        arguments = ", ".join(f"{name} => %({name})s" for name in given)
        query = f"select {columns} from outbox_{function}({arguments})"
        # A cursor class or row factory of the connection's own would change what comes back.
        factory = class_row(cls) if is_dataclass(cls) else scalar_row
        with psycopg.Cursor(self._conn, row_factory=factory) as cursor:
            cursor.adapters.register_loader("jsonb", JsonLoader)
            return cursor.execute(query.encode(), given).fetchall()

    def _end(self, cls: type[T], function: str, lease: Leased, ids: Ids, **given: Any) -> list[T]:
        if not isinstance(lease, int):
            if ids is not None:
                raise TypeError("ids go with the number of a lease; deliveries name themselves")
            deliveries = [lease] if isinstance(lease, Delivery) else list(lease)
            if not deliveries:
                return []
            lease, ids = deliveries[0].lease, [delivery.id for delivery in deliveries]
            if any(delivery.lease != lease for delivery in deliveries):
                raise ValueError("deliveries of several leases: give those of one at a time")
        named = None if ids is None else list(ids)
        rows = self._call(cls, function, lease=lease, ids=named, **given)
        held: set[Any] = {getattr(row, "id", row) for row in rows}
        if named and not held.issuperset(named):
            raise LeaseLost(lease, set(named) - held, held)
        return rows
