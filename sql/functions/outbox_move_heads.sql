create or replace function outbox_move_heads()
returns void
language plpgsql
volatile
set search_path from current
as $$
begin
    -- A transaction's own snapshots do not show it as running: the head would pass the rows that it is yet to write. And
    -- rows that it has written are seen by nobody else.
    if pg_current_xact_id_if_assigned() is not null then
        return;
    end if;

    -- All of this reads one snapshot. What is or may become claimable: a row that it shows, locked or not, since the
    -- claim that has locked it may roll back; a row of a transaction that runs in it; a row of a later transaction. So
    -- a head may go up to the first row shown and up to the snapshot's end, past transactions that still run if it
    -- names them as stragglers. One that is young is not passed: it will hardly hold the head for long. A straggler
    -- stays one until it has ended and none of its rows is shown.
    with now as materialized (
        select n.xmax, n.running,
               coalesce(
                   (select min(r.xid) from unnest(n.running) as r (xid)
                     where r.xid::text::bigint >= n.xmax::text::bigint - 100),
                   n.xmax
               ) as bound
          from (
              select pg_snapshot_xmax(s.snapshot) as xmax, array(select pg_snapshot_xip(s.snapshot)) as running
                from (select pg_current_snapshot() as snapshot) as s
          ) as n
    ), lanes as materialized (
        select w.lane, w.head_xid, w.head_id, w.stragglers, w.straggler_ids
          from outbox_walks as w
         where not w.paused
         order by random()
         limit 64
    )
    insert into outbox_heads (lane, xid, id, stragglers, straggler_ids)
    select l.lane, h.xid, h.id, s.xids, s.ids
      from now as n
     cross join lanes as l
      left join lateral (
               select r.xid, r.id
                 from outbox_ready as r
                where r.lane = l.lane
                  and (r.xid, r.id) >= (l.head_xid, l.head_id)
                order by r.xid, r.id
                limit 1
           ) as r on true
     cross join lateral (
               select case when r.xid < n.bound then r.xid else n.bound end as xid,
                      case when r.xid < n.bound then r.id else 0 end as id
           ) as h
     cross join lateral (
               select coalesce(array_agg(s.xid order by s.xid) filter (where s.stays), '{}') as xids,
                      coalesce(array_agg(s.id order by s.xid) filter (where s.stays), '{}') as ids,
                      coalesce(bool_or(s.drained), false) as drained
                 from (
                     select r.xid, 0::bigint as id, true as stays, false as drained
                       from unnest(n.running) as r (xid)
                      where r.xid >= l.head_xid
                        and r.xid < h.xid
                     union all
                     select o.xid, o.id, true, false
                       from unnest(l.stragglers, l.straggler_ids) as o (xid, id)
                      where o.xid = any (n.running)
                     union all
                     select o.xid, f.id, f.id is not null, f.id is distinct from o.id
                       from unnest(l.stragglers, l.straggler_ids) as o (xid, id)
                       left join lateral (
                                select q.id
                                  from outbox_ready as q
                                 where q.lane = l.lane
                                   and q.xid = o.xid
                                   and q.id >= o.id
                                 order by q.id
                                 limit 1
                            ) as f on true
                      where o.xid <> all (n.running)
                 ) as s
           ) as s
     where (h.xid, h.id) >= (l.head_xid, l.head_id)
       -- What is drained of a straggler is passed though the head stands. A lane that nobody uses needs no new head
       -- with each transaction.
       and (
           s.drained
           or (h.xid, h.id) > (l.head_xid, l.head_id)
          and (r.xid is not null or h.xid::text::bigint > l.head_xid::text::bigint + 64)
       );
end;
$$;

comment on function outbox_move_heads() is
    'Internal. Moves the heads of up to 64 lanes as far as is safe; does nothing in a transaction that has written. Never waits.';

revoke all on function outbox_move_heads() from public;
