create or replace view outbox_fronts as
select
    w.lane,
    f.xid,
    f.id
from outbox_walks as w
cross join lateral (
    (
        select r.xid, r.id
        from unnest(w.stragglers, w.straggler_ids) as s (xid, id)
        cross join lateral (
            select q.xid, q.id
            from outbox_ready as q
            where q.lane = w.lane and q.xid = s.xid and q.id >= s.id
            order by q.id
            limit 1
        ) as r
        where pg_visible_in_snapshot(s.xid, pg_current_snapshot())
        limit 1
    )
    union all
    (
        select q.xid, q.id
        from outbox_ready as q
        where q.lane = w.lane and (q.xid, q.id) >= (w.head_xid, w.head_id)
        order by q.xid, q.id
        limit 1
    )
    limit 1
) as f;

comment on view outbox_fronts is 'Internal. The first ready event of each lane that has one, locked by a claim or not.';
comment on column outbox_fronts.lane is 'The lane.';
comment on column outbox_fronts.xid is 'As outbox_ready.xid.';
comment on column outbox_fronts.id is 'The event.';

revoke all on table outbox_fronts from public;
