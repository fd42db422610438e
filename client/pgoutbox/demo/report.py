"""What became of each promise, computed from what the handlers recorded."""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg
from rich import box
from rich.markup import escape
from rich.table import Table

# Where the server keeps no commit timestamps, an event's created_at stands for its commit: the
# enqueue was the last statement before it, so that a latency is never understated.
VIEWS = """
    create view later as
    select e.id as event
    from outbox_events as e
    where exists (
        select from outbox_events as h
        where h.available_at > h.created_at + interval '10 seconds'
            and (h.id = e.id
                or h.id < e.id and (h.topic, h.ordering_key) = (e.topic, e.ordering_key)));

    create view arrivals as
    select s.*, e.topic, e.ordering_key, a.first_at, a.done_at,
        greatest(e.available_at, case
            when current_setting('track_commit_timestamp')::boolean
                then pg_xact_commit_timestamp(e.xmin)
            else e.created_at
        end) as committed_at
    from (
        select 'order' as kind, o.id as number, e.id as event
        from orders as o
        left join outbox_events as e on e.topic = 'order.placed' and e.dedupe_key = o.id::text
        union all
        select 'line', line, sent.event
        from lines left join sent using (line)
        where created is not false and not exists (select from later where event = sent.event)
    ) as s
    left join outbox_events as e on e.id = s.event
    left join (
        select event, min(delivered_at) as first_at,
            min(ended_at) filter (where not failed) as done_at
        from deliveries
        group by event
    ) as a on a.event = s.event;

    -- What a killed worker recorded as failed, it had not reported: its lease was lost all the same.
    create view failures as
    select * from deliveries where failed
        and (event, attempt, worker) not in (select event, attempt, worker from held);

    create view latencies as
    select round(1000 * extract(epoch from first_at - committed_at)) as ms from arrivals;
"""

# Each answers what was found, a note, and whether a promise was kept; null: there was none.
ORDERS = """
    select count(*),
        case when count(*) = max(committed) then format('%s more were rolled back', max(undone))
            else format('of %s that the producers committed', max(committed)) end,
        count(*) = max(committed)
    from orders, (
        select sum(committed) as committed, sum(rolled_back) as undone from producers) as p
"""
LINES = "select count(*), null, null from lines"
DUPLICATES = """
    select count(*), 'of an earlier dedupe key', null
    from sent where not created having count(*) > 0
"""
LATER = "select count(*), 'or behind one that is not', null from later having count(*) > 0"
DELIVERED = """
    select (select count(done_at) from arrivals),
        to_char(count(*), 'FM9,999,999') || ' attempts, '
            || count(*) filter (where failed) || ' failed', null
    from deliveries
"""
LOST = """
    select count(*), 'such as ' || min(kind) || ' ' || min(number), count(*) = 0
    from arrivals
    where done_at is null
"""
LEFT = """
    select sum(waiting), null, sum(waiting) = 0
    from (
        select ready + scheduled + retry + blocked + processing + expired + dead from outbox_stats
        union all
        select -count(*) from later
    ) as s (waiting)
"""
STRAYS = """
    select count(distinct event), null, count(*) = 0
    from deliveries as d
    where not exists (select from arrivals as a where a.event = d.event)
"""
# A lease lives at least until its handler has ended. What a killed worker held lives until it
# expires, and was looked up when the worker was dead: nothing could extend it any more.
TWO_LEASES = """
    select count(*), null, count(*) = 0
    from deliveries as d
    where exists (
            select from deliveries as e
            where e.event = d.event and e.number < d.number
                and coalesce(e.ended_at, 'infinity') > d.delivered_at
                and (e.event, e.attempt, e.worker) not in (select event, attempt, worker from held))
        or exists (
            select from held as h
            where h.event = d.event and h.attempt < d.attempt
                and h.lease_expires_at > d.delivered_at)
"""
KILLED = """
    select coalesce(string_agg(distinct worker, ', '), 'nobody'), 'it held ' || count(*) || ' events',
        count(*) > 0
    from held
"""
AGAIN = """
    select count(distinct event),
        case when bool_or(strange)
                then count(distinct event) filter (where strange) || ' of them not held by it'
            when count(*) > 0 then 'only what it held' end,
        coalesce(not bool_or(strange), true)
    from (
        select event, event not in (select event from held) as strange
        from deliveries as d
        where exists (
                select from deliveries as e
                where e.event = d.event and e.number < d.number
                    and e.number not in (select number from failures))
            or d.attempt > 1 and not exists (
                select from failures as f
                where f.event = d.event and f.number < d.number and f.attempt = d.attempt - 1)
    ) as d
"""
DEAD = """
    select count(*), string_agg(reason, '; '), count(*) = 1 and bool_and(attempts <=
        (select count(*) from failures as f where f.event = dead.event)
        + (select count(*) from held as h where h.event = dead.event))
    from dead
"""
REDRIVEN = """
    select count(*) filter (where redriven), 'and delivered',
        coalesce(bool_and(redriven and done_at is not null), false)
    from dead left join arrivals using (event)
"""
CHANGED = """
    select count(*), 'as JSON values', count(*) = 0
    from deliveries as d join sent as s on s.event = d.event and s.created join lines using (line)
    where d.payload <> lines.event -> 'payload'
"""
MISPLACED = """
    select count(*) filter (where first_at < before),
        format('in %s ordering keys', count(distinct (topic, ordering_key))),
        count(*) filter (where first_at < before) = 0
    from (
        select *, lag(coalesce(done_at, 'infinity')) over (
            partition by topic, ordering_key order by number) as before
        from arrivals
        where ordering_key is not null
    ) as k
"""
THROUGHPUT = """
    select round(count(done_at) / extract(epoch from max(done_at) - min(committed_at))) || '/s',
        'at the pace of the producers', null
    from arrivals
"""
P50 = """
    select percentile_disc(0.5) within group (order by ms) || ' ms',
        case when current_setting('track_commit_timestamp')::boolean
            then 'by commit timestamps' else 'from just before the commit' end, null
    from latencies
"""
P99 = """
    select percentile_disc(0.99) within group (order by ms) || ' ms',
        'longest ' || to_char(max(ms), 'FM9,999,999') || ' ms', null
    from latencies
"""

BOTH = {
    "events delivered": DELIVERED,
    "lost": LOST,
    "left in the queue": LEFT,
    "delivered, not committed": STRAYS,
    "under two live leases": TWO_LEASES,
}
SPEED = {
    "throughput": THROUGHPUT,
    "commit to delivery, p50": P50,
    "commit to delivery, p99": P99,
}
SHOP = {"orders committed": ORDERS, **BOTH, "killed in mid-batch": KILLED, "re-delivered": AGAIN}
SHOP |= {"dead": DEAD, "redriven": REDRIVEN, **SPEED}
FILE = {"lines in the file": LINES, "duplicates": DUPLICATES, "not due yet": LATER, **BOTH}
FILE |= {"re-delivered": AGAIN, "changed payloads": CHANGED, "out of order": MISPLACED, **SPEED}


class Figure(NamedTuple):
    """One line of the table."""

    name: str
    found: str
    note: str
    kept: bool | None


def figures(conn: psycopg.Connection[Any], queries: dict[str, str]) -> list[Figure]:
    """What `queries`, which are SHOP or FILE, find."""
    rows = [(name, conn.execute(query.encode()).fetchone()) for name, query in queries.items()]
    return [
        Figure(
            name, f"{row[0]:,}" if isinstance(row[0], int) else str(row[0]), row[1] or "", row[2]
        )
        for name, row in rows
        if row
    ]


def table(found: list[Figure]) -> Table:
    """The figures for people."""
    rows = Table("", box=box.SIMPLE_HEAD, pad_edge=False)
    rows.add_column("found", justify="right", no_wrap=True)
    rows.add_column("promise")
    rows.add_column("")
    verdicts = {None: "", True: "[green]kept[/]", False: "[bold red]BROKEN[/]"}
    for figure in found:
        rows.add_row(figure.name, figure.found, verdicts[figure.kept], escape(figure.note))
    return rows
