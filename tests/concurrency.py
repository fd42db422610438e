"""The functions as Python calls, and what must hold between calls whatever has happened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

Connection = psycopg.Connection[Any]
Row = Any

# Each waiting, held or dead event has its row in exactly one of these.
PLACES = ("outbox_ready", "outbox_scheduled", "outbox_leases", "outbox_blocked", "outbox_dead")


def call(conn: Connection, function: str, *arguments: Any, **named: Any) -> list[Row]:
    """The rows that a function of the queue answers."""
    places = ["%s"] * len(arguments) + [f"{name} => %s" for name in named]
    query = f"select * from {function}({', '.join(places)})"
    with conn.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute(query, [*arguments, *named.values()]).fetchall()


def enqueue(conn: Connection, topic: str = "t", payload: Any = None, **named: Any) -> Row:
    (row,) = call(conn, "outbox_enqueue", topic, Jsonb(payload), **named)
    return row


def enqueue_many(conn: Connection, events: Iterable[dict[str, Any]]) -> list[Row]:
    return call(conn, "outbox_enqueue_many", Jsonb([{"topic": "t"} | e for e in events]))


def claim(conn: Connection, n: int = 1, **named: Any) -> list[Row]:
    return call(conn, "outbox_claim", "test", n, **named)


def _ids(rows: Iterable[Row]) -> list[int]:
    return sorted(row[0] for row in rows)


def ack(conn: Connection, lease: int, ids: Sequence[int] | None = None) -> list[int]:
    return _ids(call(conn, "outbox_ack", lease, *([list(ids)] if ids is not None else [])))


def release(conn: Connection, lease: int, ids: Sequence[int] | None = None) -> list[int]:
    return _ids(call(conn, "outbox_release", lease, ids))


def fail(conn: Connection, lease: int, **named: Any) -> list[int]:
    return _ids(call(conn, "outbox_fail", lease, **named))


def extend(conn: Connection, lease: int, **named: Any) -> list[int]:
    return _ids(call(conn, "outbox_extend", lease, **named))


def reap(conn: Connection, n: int = 1000) -> Row:
    (row,) = call(conn, "outbox_reap", n)
    return row


def cancel(conn: Connection, ids: Sequence[int]) -> list[int]:
    return _ids(call(conn, "outbox_cancel", list(ids)))


def redrive(conn: Connection, ids: Sequence[int]) -> list[int]:
    return _ids(call(conn, "outbox_redrive", list(ids)))


def configure(conn: Connection, topic: str = "t", **named: Any) -> None:
    call(conn, "outbox_configure", topic, **named)


def ids(rows: Iterable[Row]) -> list[int]:
    return [row.id for row in rows]


def expire(conn: Connection, lease: int | None = None, seconds: float = 1) -> None:
    """Time passes: this lease, or every lease, expired so long ago."""
    conn.execute(
        "update outbox_leases set expires_at = clock_timestamp() - make_interval(secs => %s)"
        " where %s::bigint is null or lease = %s",
        [seconds, lease, lease],
    )


def make_due(conn: Connection) -> None:
    """Time passes: what is scheduled is due."""
    conn.execute(
        "update outbox_scheduled set available_at = clock_timestamp() - interval '1 second'"
        " where available_at > clock_timestamp()"
    )
    conn.execute("update outbox_blocked set available_at = null")


def status(conn: Connection, id: int) -> str | None:
    """What outbox_event_status says of an event; None where there is no such event."""
    row = conn.execute("select status from outbox_event_status where id = %s", [id]).fetchone()
    return row[0] if row else None


def value(conn: Connection, query: str) -> Any:
    """The one value that the query answers."""
    ((value,),) = conn.execute(query).fetchall()
    return value


def count(conn: Connection, table: str) -> int:
    return int(value(conn, f"select count(*) from {table}"))


def drain(conn: Connection, n: int = 1000) -> list[Row]:
    """Deliver and ack until nothing waits, time passing as it must; the deliveries in order."""
    delivered: list[Row] = []
    while True:
        while rows := claim(conn, n):
            assert ack(conn, rows[0].lease) == sorted(ids(rows))
            delivered += rows
        reap(conn)
        if not count(conn, "outbox_ready"):
            if not count(conn, "outbox_scheduled") and not count(conn, "outbox_leases"):
                return delivered
            make_due(conn)
            expire(conn)


def check(conn: Connection) -> None:
    """What must hold at every moment, as this connection sees it."""
    places = " union all ".join(f"select id, '{place}' as place from {place}" for place in PLACES)
    rows = conn.execute(
        f"""
        with places as materialized (
            select p.id, p.place, e.topic, e.ordering_key
              from ({places}) as p
              left join outbox_events as e on e.id = p.id
        ), heads as materialized (
            select p.id, p.place, p.topic, p.ordering_key
              from places as p
              left join outbox_dead as d on d.id = p.id
             where p.ordering_key is not null
               and p.place <> 'outbox_blocked'
               and (p.place <> 'outbox_dead' or d.standing_key is not null)
        )
        select 'in two places' as fault, id::text from places group by id having count(*) > 1
         union all
        select 'in two leases', id::text from outbox_leases group by id having count(*) > 1
         union all
        select 'without a log row', id::text from places where topic is null
         union all
        select 'of one key, and none blocked', string_agg(id::text, ' ')
          from heads where place <> 'outbox_dead' group by topic, ordering_key having count(*) > 1
         union all
        select 'not blocked, but not the head of its key', h.id::text
          from heads as h
         where h.place <> 'outbox_dead'
           and not exists (
                   select from outbox_turns as t
                    where (t.topic, t.ordering_key, t.head) = (h.topic, h.ordering_key, h.id)
               )
         union all
        select 'a key that nobody will pass on', t.ordering_key
          from outbox_turns as t
         where not exists (
                   select from outbox_handovers as h
                    where (h.topic, h.ordering_key, h.turn) = (t.topic, t.ordering_key, t.turn)
               )
           and (t.head is null or not exists (select from heads as h where h.id = t.head))
         union all
        select 'blocked in a key that nobody holds', b.id::text
          from outbox_blocked as b
         where not exists (
                   select from outbox_turns as t
                    where (t.topic, t.ordering_key) = (b.topic, b.ordering_key)
               )
        """
    ).fetchall()
    assert rows == []


def empty(conn: Connection) -> None:
    """The database is as it was installed."""
    prepared = conn.execute(
        "select gid from pg_prepared_xacts where database = current_database()"
    ).fetchall()
    for (gid,) in prepared:
        conn.execute(sql.SQL("rollback prepared {}").format(gid))
    sequences = conn.execute(
        "select oid::regclass::text from pg_class"
        " where relkind = 'S' and relname like 'outbox\\_%'"
        "   and relnamespace = current_schema()::regnamespace"
    ).fetchall()
    for (sequence,) in sequences:
        conn.execute(f"alter sequence {sequence} restart")
    tables = conn.execute(
        "select oid::regclass::text from pg_class"
        " where relkind = 'r' and relname like 'outbox\\_%'"
        "   and relnamespace = current_schema()::regnamespace"
    ).fetchall()
    conn.execute(f"truncate {', '.join(table for (table,) in tables)}")


def check_empty(conn: Connection) -> None:
    """Nothing waits, nothing is left behind."""
    left = {
        table: count(conn, table)
        for table in (*PLACES, "outbox_keys", "outbox_turns", "outbox_handovers")
        if count(conn, table)
    }
    assert not left, left
