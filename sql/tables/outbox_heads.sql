-- Append-only, so that no mover waits for another and none is undone: every head ever committed stays true, and the
-- largest is used. Unlogged: after a crash or a failover there is none, and claims start at the lane's first row.
-- A head that came with a dump speaks of another cluster's transactions: its stamp is not the time it was made.
create unlogged table if not exists outbox_heads (
    lane integer not null,
    xid xid8 not null,
    id bigint not null,
    stragglers xid8[] not null,
    straggler_ids bigint[] not null,
    made timestamptz not null default now(),
    stamp timestamptz not null generated always as (outbox_made(lane)) stored
);

create index if not exists outbox_heads_lane_idx on outbox_heads (lane, xid, id, made) where made = stamp;

comment on table outbox_heads is
    'Internal. How far each lane is drained for good: a row of the lane that is or may become claimable is at or after (xid, id), or its xid is one of the stragglers. A hint for speed, which must never be wrong.';
comment on column outbox_heads.lane is 'The lane.';
comment on column outbox_heads.xid is 'With id: nothing before is claimable, but the stragglers'' rows.';
comment on column outbox_heads.id is 'With xid.';
comment on column outbox_heads.stragglers is 'Transactions before xid that were still running, or whose rows were not drained, when the head was made.';
comment on column outbox_heads.straggler_ids is 'For each straggler: none of its rows before this id is claimable.';
comment on column outbox_heads.made is 'When the head was made.';
comment on column outbox_heads.stamp is 'The same, generated: differs in a row that was restored from a dump.';
comment on index outbox_heads_lane_idx is 'The largest head of a lane, read backwards.';

revoke all on table outbox_heads from public;
