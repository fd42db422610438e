create or replace view outbox_walks as
select
    p.lane,
    p.topic,
    p.priority,
    p.suspect,
    p.paused,
    coalesce(h.xid, '0') as head_xid,
    coalesce(h.id, 0) as head_id,
    coalesce(h.stragglers, '{}') as stragglers,
    coalesce(h.straggler_ids, '{}') as straggler_ids
from outbox_policies as p
left join lateral (
    -- A head of the future cannot be this cluster's.
    select q.xid, q.id, q.stragglers, q.straggler_ids
    from outbox_heads as q
    where q.lane = p.lane
        and q.made = q.stamp
        and q.xid <= pg_snapshot_xmax(pg_current_snapshot())
    order by q.xid desc, q.id desc, q.made desc
    limit 1
) as h on true;

comment on view outbox_walks is
    'Internal. Where a walk through each lane starts: at the stragglers'' rows, then at (head_xid, head_id).';
comment on column outbox_walks.lane is 'The lane.';
comment on column outbox_walks.topic is 'Its topic.';
comment on column outbox_walks.priority is 'Its priority.';
comment on column outbox_walks.suspect is 'Whether its events have lost a lease.';
comment on column outbox_walks.paused is 'Whether claims pass the topic over.';
comment on column outbox_walks.head_xid is 'As outbox_heads.xid; 0 where there is no head.';
comment on column outbox_walks.head_id is 'As outbox_heads.id.';
comment on column outbox_walks.stragglers is 'As outbox_heads.stragglers.';
comment on column outbox_walks.straggler_ids is 'As outbox_heads.straggler_ids.';

revoke all on table outbox_walks from public;
