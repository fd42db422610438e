select set_config('search_path', format('%I, pg_temp', current_schema()), true);

-- begin sql/types/outbox_delivery.sql
do $$
begin
    if to_regtype('outbox_delivery') is null then
        create type outbox_delivery as (
            lease bigint,
            id bigint,
            topic text,
            payload jsonb,
            headers jsonb,
            dedupe_key text,
            ordering_key text,
            priority integer,
            attempt integer,
            max_attempts integer,
            created_at timestamptz,
            lease_expires_at timestamptz
        );
    end if;
end;
$$;

comment on type outbox_delivery is
    'One event as outbox_claim delivers it. Grows only at its end: read the columns by name.';
comment on column outbox_delivery.lease is 'The number to ack, fail, extend or release with; all rows of one claim share it.';
comment on column outbox_delivery.id is 'The event.';
comment on column outbox_delivery.topic is 'The event''s topic.';
comment on column outbox_delivery.payload is 'The event''s payload, any JSON value.';
comment on column outbox_delivery.headers is 'The event''s headers, {} unless the producer gave some.';
comment on column outbox_delivery.dedupe_key is 'The event''s dedupe key, or null.';
comment on column outbox_delivery.ordering_key is 'The event''s ordering key, or null.';
comment on column outbox_delivery.priority is '-10 to 10, higher first.';
comment on column outbox_delivery.attempt is 'Which attempt this delivery is, from 1.';
comment on column outbox_delivery.max_attempts is 'After a failure of this attempt number the event is dead.';
comment on column outbox_delivery.created_at is 'When the event was enqueued, by the database''s clock.';
comment on column outbox_delivery.lease_expires_at is 'Until when nobody else is given the event, by the database''s clock; outbox_extend moves it.';
-- end sql/types/outbox_delivery.sql

-- begin sql/types/outbox_policy.sql
do $$
begin
    if to_regtype('outbox_policy') is null then
        create type outbox_policy as (
            topic text,
            max_attempts integer,
            lease_for interval,
            backoff_base interval,
            backoff_cap interval,
            retention interval,
            notify boolean,
            on_dead text,
            paused boolean
        );
    end if;
end;
$$;

comment on type outbox_policy is
    'The policy of a topic as outbox_configure answers it. Grows only at its end: read the columns by name.';
comment on column outbox_policy.topic is 'The topic.';
comment on column outbox_policy.max_attempts is 'Attempts before an event is dead, unless it has its own limit.';
comment on column outbox_policy.lease_for is 'How long a claim holds an event, unless the claim says otherwise.';
comment on column outbox_policy.backoff_base is 'Wait after the first failed attempt; doubles with each.';
comment on column outbox_policy.backoff_cap is 'Longest wait after a failed attempt.';
comment on column outbox_policy.retention is 'How long after its creation a done event is kept.';
comment on column outbox_policy.notify is 'Whether an enqueue notifies outbox_channel().';
comment on column outbox_policy.on_dead is 'skip: a dead event lets its ordering key go on; block: the key stands.';
comment on column outbox_policy.paused is 'Whether claims pass the topic over.';
-- end sql/types/outbox_policy.sql

-- begin sql/functions/outbox_stamp.sql
create or replace function outbox_stamp(id bigint)
returns xid8
language sql
immutable
set search_path from current
as $$
    -- Declared immutable though it is not: only an immutable function may generate a column.
    -- The argument keeps the planner from folding the call into a constant.
    select pg_current_xact_id()
$$;

comment on function outbox_stamp(bigint) is
    'Internal. The writing transaction''s id, as the generated column outbox_ready.xid takes it.';

revoke all on function outbox_stamp(bigint) from public;
-- end sql/functions/outbox_stamp.sql

-- begin sql/functions/outbox_made.sql
create or replace function outbox_made(lane integer)
returns timestamptz
language sql
immutable
set search_path from current
as $$
    -- Declared immutable though it is not, as outbox_stamp is.
    select now()
$$;

comment on function outbox_made(integer) is
    'Internal. The writing transaction''s start, as the generated column outbox_heads.stamp takes it.';

revoke all on function outbox_made(integer) from public;
-- end sql/functions/outbox_made.sql

-- begin sql/tables/outbox_topics.sql
create table if not exists outbox_topics (
    topic text not null,
    max_attempts integer,
    lease_for interval,
    backoff_base interval,
    backoff_cap interval,
    retention interval,
    notify boolean,
    on_dead text,
    paused boolean not null default false,
    constraint outbox_topics_pkey primary key (topic)
);

comment on table outbox_topics is
    'Internal. What outbox_configure and outbox_pause have said of a topic; null: the default of outbox_defaults. A topic without a row has all defaults: enqueue never writes here.';
comment on column outbox_topics.topic is 'The topic.';
comment on column outbox_topics.max_attempts is 'Attempts before an event is dead, unless it has its own limit.';
comment on column outbox_topics.lease_for is 'How long a claim holds an event, unless the claim says otherwise.';
comment on column outbox_topics.backoff_base is 'Wait after the first failed attempt; doubles with each.';
comment on column outbox_topics.backoff_cap is 'Longest wait after a failed attempt.';
comment on column outbox_topics.retention is 'How long after its creation a done event is kept.';
comment on column outbox_topics.notify is 'Whether an enqueue notifies outbox_channel().';
comment on column outbox_topics.on_dead is 'skip: a dead event lets its ordering key go on; block: the key stands.';
comment on column outbox_topics.paused is 'Whether claims pass the topic over.';

revoke all on table outbox_topics from public;
-- end sql/tables/outbox_topics.sql

-- begin sql/tables/outbox_lanes.sql
-- Not unique on (topic, priority): with a unique row the first producer of a topic would make all others wait for its
-- commit, and two such producers could deadlock. Everyone uses the lowest visible lane; a surplus one,
-- whose events are in order among themselves only, drains and stays.
create table if not exists outbox_lanes (
    lane integer generated always as identity,
    topic text not null,
    priority integer not null,
    suspect boolean not null default false,
    constraint outbox_lanes_pkey primary key (lane)
);

create index if not exists outbox_lanes_topic_idx on outbox_lanes (topic, priority, suspect, lane);
create index if not exists outbox_lanes_suspect_idx on outbox_lanes (lane) where suspect;

comment on table outbox_lanes is
    'Internal. A lane holds the events of one topic and priority that are ready, in order; made on first use, never removed.';
comment on column outbox_lanes.lane is 'Number of the lane.';
comment on column outbox_lanes.topic is 'The topic of its events.';
comment on column outbox_lanes.priority is 'The priority of its events, -10 to 10.';
comment on column outbox_lanes.suspect is 'Whether its events have lost a lease: these are delivered alone.';
comment on index outbox_lanes_topic_idx is 'Finds the lowest lane of a topic and priority.';
comment on index outbox_lanes_suspect_idx is 'Lets a claim see that there are no suspects without reading all lanes.';

revoke all on table outbox_lanes from public;
revoke all on sequence outbox_lanes_lane_seq from public;
-- end sql/tables/outbox_lanes.sql

-- begin sql/tables/outbox_events.sql
create table if not exists outbox_events (
    id bigint generated always as identity,
    topic text not null,
    payload jsonb not null,
    dedupe_key text,
    ordering_key text,
    headers jsonb not null default '{}',
    priority integer not null default 0,
    available_at timestamptz,
    max_attempts integer,
    created_at timestamptz not null default clock_timestamp(),
    constraint outbox_events_pkey primary key (id),
    constraint outbox_events_id_check check (id > 0),
    constraint outbox_events_topic_check check (octet_length(topic) between 1 and 200),
    constraint outbox_events_dedupe_key_check check (octet_length(dedupe_key) between 1 and 500),
    constraint outbox_events_ordering_key_check check (octet_length(ordering_key) between 1 and 500),
    constraint outbox_events_priority_check check (priority between -10 and 10),
    constraint outbox_events_available_at_check check (isfinite(available_at)),
    constraint outbox_events_max_attempts_check check (max_attempts between 1 and 1000)
);

create unique index if not exists outbox_events_dedupe_key
    on outbox_events (topic, dedupe_key) where dedupe_key is not null;

comment on table outbox_events is
    'The immutable log: one row an event, there if and only if the transaction that enqueued it committed. Also the bulk door: INSERT and COPY of (topic, payload, dedupe_key, ordering_key, headers, priority, available_at, max_attempts) enqueue as outbox_enqueue does. Only outbox_cancel and the retention remove; nobody updates.';
comment on column outbox_events.id is 'Number of the event; ascends in the order of enqueueing.';
comment on column outbox_events.topic is 'The stream that the event belongs to, 1 to 200 bytes.';
comment on column outbox_events.payload is 'Any JSON value; jsonb keeps neither spacing nor key order.';
comment on column outbox_events.dedupe_key is 'Unique within the topic for as long as the event is kept, 1 to 500 bytes; null: never a duplicate.';
comment on column outbox_events.ordering_key is 'Events of a topic that share it are delivered one at a time, lowest id first, 1 to 500 bytes; null: no order asked for.';
comment on column outbox_events.headers is 'Metadata beside the payload, such as a trace context.';
comment on column outbox_events.priority is '-10 to 10, higher first, strictly.';
comment on column outbox_events.available_at is 'Not delivered before; null or past: at once.';
comment on column outbox_events.max_attempts is 'Attempts before the event is dead, 1 to 1,000; null: as its topic says at the moment of the failure.';
comment on column outbox_events.created_at is 'When the row was written, by the database''s clock; the retention counts from here.';
comment on index outbox_events_dedupe_key is 'A dedupe key is unique per topic.';

revoke all on table outbox_events from public;
revoke all on sequence outbox_events_id_seq from public;
-- end sql/tables/outbox_events.sql

-- begin sql/tables/outbox_ready.sql
-- Rows are inserted and deleted, never updated: a row that comes back is a new row with the xid of its own transaction.
create table if not exists outbox_ready (
    xid xid8 generated always as (outbox_stamp(id)) stored,
    id bigint not null,
    lane integer not null,
    attempts smallint not null default 0,
    lost_leases smallint not null default 0,
    keyed boolean not null default false,
    last_error text,
    constraint outbox_ready_pkey primary key (lane, xid, id),
    constraint outbox_ready_id_key unique (id),
    constraint outbox_ready_id_check check (id > 0)
) with (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 20000);

comment on table outbox_ready is
    'Internal. Events that can be claimed: a lane is read in the order (xid, id).';
comment on column outbox_ready.xid is 'The transaction that made the event ready: generated, so that neither a client nor a restore chooses it.';
comment on column outbox_ready.id is 'The event.';
comment on column outbox_ready.lane is 'Its lane.';
comment on column outbox_ready.attempts is 'Attempts so far.';
comment on column outbox_ready.lost_leases is 'How many of the attempts ended with a lost lease.';
comment on column outbox_ready.keyed is 'Whether the event has an ordering key, whose head it then is.';
comment on column outbox_ready.last_error is 'What the last failed attempt said.';

revoke all on table outbox_ready from public;
-- end sql/tables/outbox_ready.sql

-- begin sql/tables/outbox_heads.sql
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
-- end sql/tables/outbox_heads.sql

-- begin sql/tables/outbox_scheduled.sql
-- Rows are inserted and deleted, never updated: claims delete what they locked by its ctid.
create table if not exists outbox_scheduled (
    available_at timestamptz not null,
    id bigint not null,
    lane integer not null,
    attempts smallint not null default 0,
    lost_leases smallint not null default 0,
    keyed boolean not null default false,
    last_error text,
    constraint outbox_scheduled_pkey primary key (lane, available_at, id),
    constraint outbox_scheduled_id_key unique (id),
    constraint outbox_scheduled_available_at_check check (isfinite(available_at))
) with (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 20000);

comment on table outbox_scheduled is
    'Internal. Events that wait for their time: a first attempt in the future, or a retry.';
comment on column outbox_scheduled.available_at is 'When the event is due.';
comment on column outbox_scheduled.id is 'The event.';
comment on column outbox_scheduled.lane is 'The lane it will be claimed from.';
comment on column outbox_scheduled.attempts is 'Attempts so far.';
comment on column outbox_scheduled.lost_leases is 'How many of the attempts ended with a lost lease.';
comment on column outbox_scheduled.keyed is 'Whether the event has an ordering key, whose head it then is.';
comment on column outbox_scheduled.last_error is 'What the last failed attempt said.';

revoke all on table outbox_scheduled from public;
-- end sql/tables/outbox_scheduled.sql

-- begin sql/tables/outbox_lease_seq.sql
create sequence if not exists outbox_lease_seq as bigint maxvalue 8796093022207;

comment on sequence outbox_lease_seq is
    'Internal. The upper 43 bits of a lease number; the lower 20 are random, so that a number is not repeated when a failover or a restore runs the sequence again.';

revoke all on sequence outbox_lease_seq from public;
-- end sql/tables/outbox_lease_seq.sql

-- begin sql/tables/outbox_leases.sql
-- The key is the fence: an answer for a lease that was lost finds no row.
create table if not exists outbox_leases (
    lease bigint not null,
    id bigint not null,
    locked_at timestamptz not null,
    expires_at timestamptz not null,
    lane integer not null,
    attempts smallint not null,
    lost_leases smallint not null,
    keyed boolean not null,
    locked_by text not null,
    last_error text,
    constraint outbox_leases_pkey primary key (lease, id)
) with (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 20000);

create index if not exists outbox_leases_expires_at_idx on outbox_leases (expires_at);

comment on table outbox_leases is 'Internal. Events in flight: which claim holds them, and until when.';
comment on column outbox_leases.lease is 'Number of the claim.';
comment on column outbox_leases.id is 'The event.';
comment on column outbox_leases.locked_at is 'When it was claimed.';
comment on column outbox_leases.expires_at is 'From when it may be taken back; outbox_extend moves it.';
comment on column outbox_leases.lane is 'The lane it was claimed from.';
comment on column outbox_leases.attempts is 'Attempts, this one included.';
comment on column outbox_leases.lost_leases is 'How many earlier attempts ended with a lost lease.';
comment on column outbox_leases.keyed is 'Whether the event has an ordering key, whose head it then is.';
comment on column outbox_leases.locked_by is 'The worker, as it called itself; for people to read, never a fence.';
comment on column outbox_leases.last_error is 'What the last failed attempt said.';
comment on index outbox_leases_expires_at_idx is 'Which leases have expired.';

revoke all on table outbox_leases from public;
-- end sql/tables/outbox_leases.sql

-- begin sql/tables/outbox_dead.sql
create table if not exists outbox_dead (
    id bigint not null,
    lane integer not null,
    attempts smallint not null,
    lost_leases smallint not null,
    reason text not null,
    last_error text,
    dead_at timestamptz not null,
    standing_topic text,
    standing_key text,
    constraint outbox_dead_pkey primary key (id),
    constraint outbox_dead_reason_check check (reason in ('failed', 'discarded', 'lost lease'))
);

create index if not exists outbox_dead_standing_idx
    on outbox_dead (standing_topic, standing_key, id) where standing_key is not null;

comment on table outbox_dead is 'Internal. Dead letters: not tried again until outbox_redrive; outbox_cancel removes them.';
comment on column outbox_dead.id is 'The event.';
comment on column outbox_dead.lane is 'The lane it came from.';
comment on column outbox_dead.attempts is 'Attempts made.';
comment on column outbox_dead.lost_leases is 'How many of them ended with a lost lease.';
comment on column outbox_dead.reason is 'failed: the attempts are spent; discarded: the worker said so; lost lease: the attempts are spent, the last by a lost lease; where a limit was lowered later, one of them.';
comment on column outbox_dead.last_error is 'What the last failed attempt said.';
comment on column outbox_dead.dead_at is 'When it died.';
comment on column outbox_dead.standing_topic is 'With standing_key: the ordering key that stands until this event is redriven or cancelled.';
comment on column outbox_dead.standing_key is 'Null unless the topic''s on_dead was block when the event died.';
comment on index outbox_dead_standing_idx is 'Whether a dead event stands in the way of an ordering key.';

revoke all on table outbox_dead from public;
-- end sql/tables/outbox_dead.sql

-- begin sql/tables/outbox_turn_seq.sql
create sequence if not exists outbox_turn_seq as bigint;

comment on sequence outbox_turn_seq is
    'Internal. Numbers the turns of all ordering keys, so that a handover left for one turn never ends another.';

revoke all on sequence outbox_turn_seq from public;
-- end sql/tables/outbox_turn_seq.sql

-- begin sql/tables/outbox_keys.sql
-- A row's lock is the turnstile of its key: enqueue takes it before it draws the id and keeps it until it commits, so
-- that id order is commit order. Whose turn it is stands in outbox_turns, which a producer does not hold.
create table if not exists outbox_keys (
    topic text not null,
    ordering_key text not null,
    transactions bigint not null default 1,
    constraint outbox_keys_pkey primary key (topic, ordering_key)
);

comment on table outbox_keys is
    'Internal. Ordering keys in use: a row is there while the key has an event that waits, is in flight or stands dead.';
comment on column outbox_keys.topic is 'The topic.';
comment on column outbox_keys.ordering_key is 'The key.';
comment on column outbox_keys.transactions is 'How many have locked the row. Each writes it, so that an ack with an older snapshot raises 40001 instead of overlooking what was enqueued.';

revoke all on table outbox_keys from public;
-- end sql/tables/outbox_keys.sql

-- begin sql/tables/outbox_turns.sql
create table if not exists outbox_turns (
    topic text not null,
    ordering_key text not null,
    head bigint,
    turn bigint not null,
    constraint outbox_turns_pkey primary key (topic, ordering_key)
);

comment on table outbox_turns is
    'Internal. Whose turn it is in each ordering key. Made and removed by who holds the key''s row in outbox_keys; changed by who holds this one.';
comment on column outbox_turns.topic is 'The topic.';
comment on column outbox_turns.ordering_key is 'The key.';
comment on column outbox_turns.head is 'The one event of the key that is in outbox_ready, outbox_scheduled or outbox_leases, or stands in outbox_dead. Null, or an event that has ended, where a handover waits.';
comment on column outbox_turns.turn is 'Number of the turn, new with each head: the same event can be head twice.';

revoke all on table outbox_turns from public;
-- end sql/tables/outbox_turns.sql

-- begin sql/tables/outbox_blocked.sql
create table if not exists outbox_blocked (
    topic text not null,
    ordering_key text not null,
    id bigint not null,
    lane integer not null,
    attempts smallint not null default 0,
    lost_leases smallint not null default 0,
    available_at timestamptz,
    last_error text,
    constraint outbox_blocked_pkey primary key (topic, ordering_key, id)
) with (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 20000);

comment on table outbox_blocked is 'Internal. Events behind an earlier one with the same ordering key.';
comment on column outbox_blocked.topic is 'The topic.';
comment on column outbox_blocked.ordering_key is 'The key.';
comment on column outbox_blocked.id is 'The event; the lowest is let in next.';
comment on column outbox_blocked.lane is 'The lane it will be claimed from.';
comment on column outbox_blocked.attempts is 'Attempts so far.';
comment on column outbox_blocked.lost_leases is 'How many of the attempts ended with a lost lease.';
comment on column outbox_blocked.available_at is 'Not before this time once it is the event''s turn; null: at once.';
comment on column outbox_blocked.last_error is 'What the last failed attempt said.';

revoke all on table outbox_blocked from public;
-- end sql/tables/outbox_blocked.sql

-- begin sql/tables/outbox_handovers.sql
create table if not exists outbox_handovers (
    handover bigint generated always as identity,
    topic text not null,
    ordering_key text not null,
    turn bigint not null,
    noted_at timestamptz not null default clock_timestamp(),
    constraint outbox_handovers_pkey primary key (handover)
);

comment on table outbox_handovers is
    'Internal. Turns that ended while somebody else held a row that is needed to pass them on: rather than wait, they are left here for a claim or the reaper.';
comment on column outbox_handovers.handover is 'Number of the handover.';
comment on column outbox_handovers.topic is 'The topic.';
comment on column outbox_handovers.ordering_key is 'The key.';
comment on column outbox_handovers.turn is 'The turn that ended: while the key is still at this turn, its next event may be let in.';
comment on column outbox_handovers.noted_at is 'When it was left.';

create index if not exists outbox_handovers_noted_at_idx on outbox_handovers (noted_at);

comment on index outbox_handovers_noted_at_idx is 'Whether there are handovers to be done.';

revoke all on table outbox_handovers from public;
revoke all on sequence outbox_handovers_handover_seq from public;
-- end sql/tables/outbox_handovers.sql

-- begin sql/tables/outbox_prune_seq.sql
create sequence if not exists outbox_prune_seq as bigint minvalue 0 start 0;

comment on sequence outbox_prune_seq is
    'Internal. How far the pruning of done events has walked through outbox_events, by id. A hint that needs no lock: a wrong value costs one more round.';

revoke all on sequence outbox_prune_seq from public;
-- end sql/tables/outbox_prune_seq.sql

-- begin sql/views/outbox_defaults.sql
create or replace view outbox_defaults as
select
    5 as max_attempts,
    interval '5 minutes' as lease_for,
    interval '1 second' as backoff_base,
    interval '1 hour' as backoff_cap,
    interval '1 day' as retention,
    false as notify,
    'skip'::text as on_dead;

comment on view outbox_defaults is
    'Internal. The policy of a topic of which nobody has said anything: the one place where the defaults stand.';
comment on column outbox_defaults.max_attempts is 'As outbox_topics.max_attempts.';
comment on column outbox_defaults.lease_for is 'As outbox_topics.lease_for.';
comment on column outbox_defaults.backoff_base is 'As outbox_topics.backoff_base.';
comment on column outbox_defaults.backoff_cap is 'As outbox_topics.backoff_cap.';
comment on column outbox_defaults.retention is 'As outbox_topics.retention.';
comment on column outbox_defaults.notify is 'As outbox_topics.notify.';
comment on column outbox_defaults.on_dead is 'As outbox_topics.on_dead.';

revoke all on table outbox_defaults from public;
-- end sql/views/outbox_defaults.sql

-- begin sql/views/outbox_policies.sql
create or replace view outbox_policies as
select
    l.lane,
    l.topic,
    l.priority,
    l.suspect,
    coalesce(t.max_attempts, d.max_attempts) as max_attempts,
    coalesce(t.lease_for, d.lease_for) as lease_for,
    coalesce(t.backoff_base, d.backoff_base) as backoff_base,
    coalesce(t.backoff_cap, d.backoff_cap) as backoff_cap,
    coalesce(t.retention, d.retention) as retention,
    coalesce(t.on_dead, d.on_dead) as on_dead,
    coalesce(t.paused, false) as paused
from outbox_lanes as l
cross join outbox_defaults as d
left join outbox_topics as t on t.topic = l.topic;

comment on view outbox_policies is
    'Internal. Each lane with the policy of its topic as it is now: every setting is read when it is used.';
comment on column outbox_policies.lane is 'The lane.';
comment on column outbox_policies.topic is 'Its topic.';
comment on column outbox_policies.priority is 'Its priority.';
comment on column outbox_policies.suspect is 'Whether its events have lost a lease.';
comment on column outbox_policies.max_attempts is 'As outbox_topics.max_attempts, the default filled in.';
comment on column outbox_policies.lease_for is 'As outbox_topics.lease_for, the default filled in.';
comment on column outbox_policies.backoff_base is 'As outbox_topics.backoff_base, the default filled in.';
comment on column outbox_policies.backoff_cap is 'As outbox_topics.backoff_cap, the default filled in.';
comment on column outbox_policies.retention is 'As outbox_topics.retention, the default filled in.';
comment on column outbox_policies.on_dead is 'As outbox_topics.on_dead, the default filled in.';
comment on column outbox_policies.paused is 'Whether claims pass the topic over.';

revoke all on table outbox_policies from public;
-- end sql/views/outbox_policies.sql

-- begin sql/views/outbox_walks.sql
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
-- end sql/views/outbox_walks.sql

-- begin sql/views/outbox_fronts.sql
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
-- end sql/views/outbox_fronts.sql

-- begin sql/functions/outbox_check_text.sql
create or replace function outbox_check_text(
    argument text,
    value text,
    longest integer
)
returns void
language plpgsql
immutable
set search_path from current
as $$
begin
    if outbox_check_text.value is null then
        raise exception using
            errcode = 'null_value_not_allowed',
            message = format('%s is null', argument),
            hint = format('Give a text of 1 to %s bytes.', longest);
    end if;
    if octet_length(outbox_check_text.value) not between 1 and longest then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = format('%s has %s bytes: "%s"', argument, octet_length(outbox_check_text.value), left(outbox_check_text.value, 60)),
            hint = format('Give a text of 1 to %s bytes.', longest);
    end if;
end;
$$;

comment on function outbox_check_text(text, text, integer) is
    'Internal. Raises 22004 for a null and 22023 for a text that is empty or longer than so many bytes.';

revoke all on function outbox_check_text(text, text, integer) from public;
-- end sql/functions/outbox_check_text.sql

-- begin sql/functions/outbox_check_integer.sql
create or replace function outbox_check_integer(
    argument text,
    value integer,
    lowest integer,
    highest integer
)
returns void
language plpgsql
immutable
set search_path from current
as $$
begin
    if outbox_check_integer.value is null then
        raise exception using
            errcode = 'null_value_not_allowed',
            message = format('%s is null', argument),
            hint = format('Give a number from %s to %s.', lowest, highest);
    end if;
    if outbox_check_integer.value not between lowest and highest then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = format('%s is %s', argument, outbox_check_integer.value),
            hint = format('Give a number from %s to %s.', lowest, highest);
    end if;
end;
$$;

comment on function outbox_check_integer(text, integer, integer, integer) is
    'Internal. Raises 22004 for a null and 22023 for a number outside the bounds.';

revoke all on function outbox_check_integer(text, integer, integer, integer) from public;
-- end sql/functions/outbox_check_integer.sql

-- begin sql/functions/outbox_check_interval.sql
create or replace function outbox_check_interval(
    argument text,
    value interval,
    shortest interval,
    longest interval
)
returns interval
language plpgsql
immutable
set search_path from current
as $$
begin
    -- By seconds: as intervals compare, a year has 360 days, and a month less 29 days is positive but may end in the past.
    if extract(epoch from outbox_check_interval.value) not between extract(epoch from shortest) and extract(epoch from longest) then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = format('%s is %s', argument, outbox_check_interval.value),
            hint = format('Give an interval from %s to %s.', shortest, longest);
    end if;
    return make_interval(secs => extract(epoch from outbox_check_interval.value)::double precision);
end;
$$;

comment on function outbox_check_interval(text, interval, interval, interval) is
    'Internal. The same length in seconds, without months and days; null for a null. Raises 22023 for an interval outside the bounds.';

revoke all on function outbox_check_interval(text, interval, interval, interval) from public;
-- end sql/functions/outbox_check_interval.sql

-- begin sql/functions/outbox_check_ids.sql
create or replace function outbox_check_ids(ids bigint[])
returns void
language plpgsql
immutable
set search_path from current
as $$
begin
    -- As text, whatever the dimensions.
    if position('*' in array_to_string(ids, ',', '*')) > 0 then
        raise exception using
            errcode = 'null_value_not_allowed',
            message = case
                when array_ndims(ids) = 1 then format('ids has a null at position %s', array_position(ids, null))
                else 'ids has a null'
            end,
            hint = 'Give the ids of events; leave out what is null.';
    end if;
end;
$$;

comment on function outbox_check_ids(bigint[]) is
    'Internal. Raises 22004 for a null among the ids; a null array passes.';

revoke all on function outbox_check_ids(bigint[]) from public;
-- end sql/functions/outbox_check_ids.sql

-- begin sql/functions/outbox_check_lease.sql
create or replace function outbox_check_lease(lease bigint)
returns void
language plpgsql
immutable
set search_path from current
as $$
begin
    if lease is null then
        raise exception using
            errcode = 'null_value_not_allowed',
            message = 'lease is null',
            hint = 'Give the lease that outbox_claim answered.';
    end if;
end;
$$;

comment on function outbox_check_lease(bigint) is 'Internal. Raises 22004 for a null.';

revoke all on function outbox_check_lease(bigint) from public;
-- end sql/functions/outbox_check_lease.sql

-- begin sql/functions/outbox_check_topics.sql
create or replace function outbox_check_topics(topics text[])
returns void
language plpgsql
immutable
set search_path from current
as $$
begin
    if cardinality(topics) = 0 then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = 'topics is an empty array',
            hint = 'Name at least one topic, or give null for all topics.';
    end if;
end;
$$;

comment on function outbox_check_topics(text[]) is
    'Internal. Raises 22023 for an empty array; null means all topics.';

revoke all on function outbox_check_topics(text[]) from public;
-- end sql/functions/outbox_check_topics.sql

-- begin sql/functions/outbox_check_event.sql
create or replace function outbox_check_event(
    topic text,
    payload jsonb,
    dedupe_key text,
    ordering_key text,
    priority integer,
    available_at timestamptz,
    max_attempts integer,
    on_duplicate text,
    place text default ''
)
returns void
language plpgsql
immutable
set search_path from current
as $$
begin
    -- One expression for the event that is as it should be: this runs for each event.
    if octet_length(topic) between 1 and 200
        and payload is not null
        and (dedupe_key is null or octet_length(dedupe_key) between 1 and 500)
        and (ordering_key is null or octet_length(ordering_key) between 1 and 500)
        and priority between -10 and 10
        and (available_at is null or isfinite(available_at))
        and (max_attempts is null or max_attempts between 1 and 1000)
        and on_duplicate in ('ignore', 'replace', 'requeue')
    then
        return;
    end if;
    perform outbox_check_text(place || 'topic', topic, 200);
    if payload is null then
        raise exception using
            errcode = 'null_value_not_allowed',
            message = format('%spayload is null', place),
            hint = 'For a JSON null give ''null''::jsonb.';
    end if;
    if dedupe_key is not null then
        perform outbox_check_text(place || 'dedupe_key', dedupe_key, 500);
    end if;
    if ordering_key is not null then
        perform outbox_check_text(place || 'ordering_key', ordering_key, 500);
    end if;
    perform outbox_check_integer(place || 'priority', priority, -10, 10);
    if not isfinite(available_at) then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = format('%savailable_at is %s', place, available_at),
            hint = 'Give a finite time, or null for at once.';
    end if;
    if max_attempts is not null then
        perform outbox_check_integer(place || 'max_attempts', max_attempts, 1, 1000);
    end if;
    raise exception using
        errcode = 'invalid_parameter_value',
        message = format('%son_duplicate is "%s"', place, left(on_duplicate, 60)),
        hint = 'Give ignore, replace or requeue.';
end;
$$;

comment on function outbox_check_event(text, jsonb, text, text, integer, timestamptz, integer, text, text) is
    'Internal. Raises 22004 or 22023 for the first fault of an event; place stands before the argument''s name in the message.';

revoke all on function outbox_check_event(text, jsonb, text, text, integer, timestamptz, integer, text, text) from public;
-- end sql/functions/outbox_check_event.sql

-- begin sql/functions/outbox_check_sequence.sql
create or replace function outbox_check_sequence()
returns void
language plpgsql
stable
set search_path from current
as $$
declare
    v_given bigint := (select q.last_value from outbox_events_id_seq as q);
    v_taken bigint := (select max(e.id) from outbox_events as e);
begin
    if v_given < v_taken then
        raise exception using
            errcode = 'unique_violation',
            message = format('outbox_events_id_seq is at %s, behind the last event, %s', v_given, v_taken),
            hint = 'Run: select setval(''outbox_events_id_seq'', max(id)) from outbox_events';
    end if;
end;
$$;

comment on function outbox_check_sequence() is
    'Internal. Raises 23505 where the sequence gives ids that are taken, as after a restore or replication without it.';

revoke all on function outbox_check_sequence() from public;
-- end sql/functions/outbox_check_sequence.sql

-- begin sql/functions/outbox_lane.sql
create or replace function outbox_lane(
    topic text,
    priority integer,
    suspect boolean
)
returns integer
language plpgsql
volatile
set search_path from current
as $$
declare
    v_lane integer;
begin
    select min(l.lane)
      into v_lane
      from outbox_lanes as l
     where l.topic = outbox_lane.topic
       and l.priority = outbox_lane.priority
       and l.suspect = outbox_lane.suspect;
    if v_lane is null then
        insert into outbox_lanes as l (topic, priority, suspect)
        values (outbox_lane.topic, outbox_lane.priority, outbox_lane.suspect)
        returning l.lane into v_lane;
    end if;
    return v_lane;
end;
$$;

comment on function outbox_lane(text, integer, boolean) is
    'Internal. The lane of a topic and priority, for suspects or others; made if there is none.';

revoke all on function outbox_lane(text, integer, boolean) from public;
-- end sql/functions/outbox_lane.sql

-- begin sql/functions/outbox_lock_keys.sql
create or replace function outbox_lock_keys(
    topics text[],
    keys text[]
)
returns void
language plpgsql
volatile
set search_path from current
as $$
begin
    -- All who lock several keys in one statement go by one order, so that such statements cannot deadlock with each
    -- other. A transaction writes a row once; where the condition fails, the row is locked all the same.
    insert into outbox_keys as k (topic, ordering_key)
    select w.topic, w.key
      from unnest(topics, keys) as w (topic, key)
     where w.key is not null
     group by w.topic, w.key
     order by w.topic collate "C", w.key collate "C"
    on conflict on constraint outbox_keys_pkey do update
       set transactions = k.transactions + 1
     where k.xmin <> pg_current_xact_id()::xid;
end;
$$;

comment on function outbox_lock_keys(text[], text[]) is
    'Internal. Locks the rows of these ordering keys in outbox_keys until the transaction ends, making those that are missing; waits for others who hold one. Null keys are passed over.';

revoke all on function outbox_lock_keys(text[], text[]) from public;
-- end sql/functions/outbox_lock_keys.sql

-- begin sql/functions/outbox_seat.sql
create or replace function outbox_seat(
    topics text[],
    keys text[]
)
returns void
language plpgsql
volatile
set search_path from current
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_topics text[] := topics;
    v_keys text[] := keys;
begin
    -- First whoever visibly waits is let in, though a producer may hold the key's row. A key without anybody is taken
    -- down under the lock of that row, after a second look: it sees what the row's last holder committed. Where the row
    -- is held, its holder may be about to commit an event: a handover is left.
    -- A cancel deletes from outbox_blocked and outbox_dead without a lock on the key. Where it holds the next event, to
    -- pass it over would break the order if the cancel rolls back: a handover is left too.
    for v_pass in 1 .. 2 loop
        with vacant as materialized (
            select w.topic,
                   w.key,
                   coalesce(t.turn, 0) as turn,
                   (select min(b.id) from outbox_blocked as b where b.topic = w.topic and b.ordering_key = w.key) as blocked_id,
                   (select min(d.id) from outbox_dead as d where d.standing_topic = w.topic and d.standing_key = w.key) as standing_id
              from (select distinct u.topic, u.key from unnest(v_topics, v_keys) as u (topic, key)) as w
              left join lateral (
                       select q.head, q.turn from outbox_turns as q where q.topic = w.topic and q.ordering_key = w.key limit 1
                   ) as t on true
             where t.head is null
               and w.key is not null
        ), next as materialized (
            select v.*, v.standing_id is not null and v.standing_id < coalesce(v.blocked_id, v.standing_id + 1) as stands
              from vacant as v
        ), standing as materialized (
            select d.id
              from next as n
             cross join lateral (
                       select q.id from outbox_dead as q where q.id = n.standing_id for update skip locked
                   ) as d
             where n.stands
        ), moved as (
            delete from outbox_blocked as b
             where b.ctid = any (array(
                       select c.ctid
                         from next as n
                        cross join lateral (
                                  select q.ctid
                                    from outbox_blocked as q
                                   where q.topic = n.topic and q.ordering_key = n.key and q.id = n.blocked_id
                                     for update skip locked
                              ) as c
                        where not n.stands
                   ))
            returning b.*
        ), ready as (
            insert into outbox_ready (lane, id, attempts, lost_leases, keyed, last_error)
            select m.lane, m.id, m.attempts, m.lost_leases, true, m.last_error
              from moved as m
             where m.available_at is null or m.available_at <= v_now
        ), scheduled as (
            insert into outbox_scheduled (available_at, lane, id, attempts, lost_leases, keyed, last_error)
            select m.available_at, m.lane, m.id, m.attempts, m.lost_leases, true, m.last_error
              from moved as m
             where m.available_at > v_now
        ), seated as (
            insert into outbox_turns as t (topic, ordering_key, head, turn)
            select n.topic,
                   n.key,
                   case when n.stands then n.standing_id else n.blocked_id end,
                   nextval('outbox_turn_seq'::regclass)
              from next as n
             where n.standing_id in (select s.id from standing as s)
                or n.blocked_id in (select m.id from moved as m)
            on conflict on constraint outbox_turns_pkey do update
               set head = excluded.head,
                   turn = excluded.turn
        ), held as (
            insert into outbox_handovers (topic, ordering_key, turn)
            select n.topic, n.key, n.turn
              from next as n
             where case
                       when n.stands then n.standing_id not in (select s.id from standing as s)
                       when n.blocked_id is not null then n.blocked_id not in (select m.id from moved as m)
                       else false
                   end
        )
        select array_agg(n.topic), array_agg(n.key)
          into v_topics, v_keys
          from next as n
         where n.blocked_id is null
           and n.standing_id is null;
        exit when v_topics is null;

        if v_pass = 1 then
            with empty as materialized (
                select u.topic, u.key from unnest(v_topics, v_keys) as u (topic, key)
            ), locked as materialized (
                select k.topic, k.ordering_key
                  from empty as e
                 cross join lateral (
                           select q.topic, q.ordering_key
                             from outbox_keys as q
                            where q.topic = e.topic and q.ordering_key = e.key
                              for update skip locked
                       ) as k
            ), held as (
                insert into outbox_handovers (topic, ordering_key, turn)
                select t.topic, t.ordering_key, t.turn
                  from empty as e
                 cross join lateral (
                           select q.topic, q.ordering_key, q.turn
                             from outbox_turns as q
                            where q.topic = e.topic and q.ordering_key = e.key
                            limit 1
                       ) as t
                 where (e.topic, e.key) not in (select l.topic, l.ordering_key from locked as l)
            )
            select array_agg(l.topic), array_agg(l.ordering_key)
              into v_topics, v_keys
              from locked as l;
            exit when v_topics is null;
        else
            delete from outbox_turns as t
             where t.ctid = any (array(
                       select c.ctid
                         from unnest(v_topics, v_keys) as u (topic, key)
                        cross join lateral (
                                  select q.ctid from outbox_turns as q where q.topic = u.topic and q.ordering_key = u.key limit 1
                              ) as c
                   ));
            delete from outbox_keys as k
             where k.ctid = any (array(
                       select c.ctid
                         from unnest(v_topics, v_keys) as u (topic, key)
                        cross join lateral (
                                  select q.ctid from outbox_keys as q where q.topic = u.topic and q.ordering_key = u.key limit 1
                              ) as c
                   ));
        end if;
    end loop;
end;
$$;

comment on function outbox_seat(text[], text[]) is
    'Internal. For each of these keys that has no head: lets its next event in, or removes the key when there is none. The caller holds the keys'' rows in outbox_turns, or those in outbox_keys. Never waits.';

revoke all on function outbox_seat(text[], text[]) from public;
-- end sql/functions/outbox_seat.sql

-- begin sql/functions/outbox_reseat.sql
create or replace function outbox_reseat(
    topics text[],
    keys text[]
)
returns void
language plpgsql
volatile
set search_path from current
as $$
begin
    perform
       from (
           select u.topic, u.key
             from unnest(outbox_reseat.topics, outbox_reseat.keys) as u (topic, key)
            group by u.topic, u.key
            order by u.topic collate "C", u.key collate "C"
       ) as u
      cross join lateral (
                select from outbox_turns as q where q.topic = u.topic and q.ordering_key = u.key for update
            ) as t;

    -- A head that a claim holds (locked, or already leased) stays: the lower id comes next after the one in flight.
    with overtaken as materialized (
        select t.ctid, t.topic, t.ordering_key, t.head
          from (
              select distinct u.topic, u.key from unnest(outbox_reseat.topics, outbox_reseat.keys) as u (topic, key)
          ) as u
         cross join lateral (
                   select q.ctid, q.topic, q.ordering_key, q.head
                     from outbox_turns as q
                    where q.topic = u.topic and q.ordering_key = u.key
                    limit 1
               ) as t
         where t.head > (select min(b.id) from outbox_blocked as b where b.topic = t.topic and b.ordering_key = t.ordering_key)
    ), from_ready as (
        delete from outbox_ready as r
         where r.ctid = any (array(
                   select c.ctid
                     from overtaken as o
                    cross join lateral (select q.ctid from outbox_ready as q where q.id = o.head for update skip locked) as c
               ))
        returning r.lane, r.id, r.attempts, r.lost_leases, null::timestamptz as available_at, r.last_error
    ), from_scheduled as (
        delete from outbox_scheduled as s
         where s.ctid = any (array(
                   select c.ctid
                     from overtaken as o
                    cross join lateral (select q.ctid from outbox_scheduled as q where q.id = o.head for update skip locked) as c
               ))
        returning s.lane, s.id, s.attempts, s.lost_leases, s.available_at, s.last_error
    ), back as (
        insert into outbox_blocked (topic, ordering_key, lane, id, attempts, lost_leases, available_at, last_error)
        select o.topic, o.ordering_key, w.lane, w.id, w.attempts, w.lost_leases, w.available_at, w.last_error
          from overtaken as o
          join (table from_ready union all table from_scheduled) as w on w.id = o.head
        returning id
    )
    update outbox_turns as t
       set head = null
     where t.ctid = any (array(
               select o.ctid
                 from overtaken as o
                where o.head in (select b.id from back as b)
                   or exists (select from outbox_dead as d where d.id = o.head offset 0)
           ));

    perform outbox_seat(outbox_reseat.topics, outbox_reseat.keys);
end;
$$;

comment on function outbox_reseat(text[], text[]) is
    'Internal. After an event with a lower id has entered one of these keys: a head that still waits gives its place back to the lowest id. Waits for who changes a turn just now.';

revoke all on function outbox_reseat(text[], text[]) from public;
-- end sql/functions/outbox_reseat.sql

-- begin sql/functions/outbox_unblock.sql
create or replace function outbox_unblock(ids bigint[])
returns void
language plpgsql
volatile
set search_path from current
as $$
declare
    v_topics text[];
    v_keys text[];
begin
    -- Whoever waits is looked for in a later statement than the lock.
    with ended as materialized (
        select t.topic, t.ordering_key, t.head, t.turn
          from outbox_events as e
         cross join lateral (
                   select q.topic, q.ordering_key, q.head, q.turn
                     from outbox_turns as q
                    where q.topic = e.topic and q.ordering_key = e.ordering_key and q.head = e.id
                    limit 1
               ) as t
         where e.id = any (outbox_unblock.ids)
    ), locked as materialized (
        select t.ctid, e.turn
          from ended as e
         cross join lateral (
                   select q.ctid
                     from outbox_turns as q
                    where q.topic = e.topic and q.ordering_key = e.ordering_key and q.turn = e.turn and q.head = e.head
                      for update skip locked
               ) as t
    ), held as (
        insert into outbox_handovers (topic, ordering_key, turn)
        select e.topic, e.ordering_key, e.turn
          from ended as e
         where e.turn not in (select l.turn from locked as l)
    ), vacated as (
        update outbox_turns as t
           set head = null
         where t.ctid = any (array(select l.ctid from locked as l))
        returning t.topic, t.ordering_key
    )
    select array_agg(v.topic), array_agg(v.ordering_key)
      into v_topics, v_keys
      from vacated as v;
    if v_topics is not null then
        perform outbox_seat(v_topics, v_keys);
    end if;
end;
$$;

comment on function outbox_unblock(bigint[]) is
    'Internal. These events have ended: where one was the head of its ordering key, the next is let in. Never waits. To be called while their log rows are still there.';

revoke all on function outbox_unblock(bigint[]) from public;
-- end sql/functions/outbox_unblock.sql

-- begin sql/functions/outbox_give_way.sql
create or replace function outbox_give_way(ids bigint[])
returns void
language plpgsql
volatile
set search_path from current
as $$
declare
    v_topics text[];
    v_keys text[];
begin
    -- A key whose turn somebody changes just now is passed over: its head goes first then, and the lower id next.
    select array_agg(k.topic), array_agg(k.ordering_key)
      into v_topics, v_keys
      from (
          select k.topic, k.ordering_key
            from outbox_events as e
           cross join lateral (
                     select q.topic, q.ordering_key
                       from outbox_turns as q
                      where q.topic = e.topic
                        and q.ordering_key = e.ordering_key
                        and q.head = e.id
                        and exists (
                                select
                                  from outbox_blocked as b
                                 where b.topic = e.topic and b.ordering_key = e.ordering_key and b.id < e.id
                                offset 0
                            )
                        for update skip locked
                 ) as k
           where e.id = any (outbox_give_way.ids)
      ) as k;
    if v_topics is not null then
        perform outbox_reseat(v_topics, v_keys);
    end if;
end;
$$;

comment on function outbox_give_way(bigint[]) is
    'Internal. These events wait again after an attempt: where an event with a lower id has entered their ordering key meanwhile, it goes first. Never waits.';

revoke all on function outbox_give_way(bigint[]) from public;
-- end sql/functions/outbox_give_way.sql

-- begin sql/functions/outbox_hand_over.sql
create or replace function outbox_hand_over(
    n integer,
    noted_by timestamptz,
    topics text[] default null
)
returns void
language plpgsql
volatile
set search_path from current
as $$
declare
    v_handovers bigint[];
    v_more bigint[];
    v_topics text[];
    v_keys text[];
begin
    -- Those that have somebody waiting need the turn and the next event's row, the others the key's row: while somebody
    -- else holds what is needed, they would only be left anew. What is most often held is locked first: the locks before
    -- one that is skipped stay until the transaction ends.
    v_handovers := array(
        select h.handover
          from outbox_handovers as h
          join outbox_turns as t on t.topic = h.topic and t.ordering_key = h.ordering_key
          join outbox_blocked as b on b.topic = h.topic and b.ordering_key = h.ordering_key
           and b.id = (select min(q.id) from outbox_blocked as q where q.topic = h.topic and q.ordering_key = h.ordering_key)
         where h.noted_at <= outbox_hand_over.noted_by
           and (outbox_hand_over.topics is null or h.topic = any (outbox_hand_over.topics))
         order by h.handover
         limit outbox_hand_over.n
           for update of b, t, h skip locked
    );
    v_more := array(
        select h.handover
          from outbox_handovers as h
          join outbox_turns as t on t.topic = h.topic and t.ordering_key = h.ordering_key
          join outbox_keys as k on k.topic = h.topic and k.ordering_key = h.ordering_key
         where h.noted_at <= outbox_hand_over.noted_by
           and (outbox_hand_over.topics is null or h.topic = any (outbox_hand_over.topics))
           and h.handover <> all (v_handovers)
           and not exists (select from outbox_blocked as b where b.topic = h.topic and b.ordering_key = h.ordering_key offset 0)
         order by h.handover
         limit outbox_hand_over.n
           for update of k, t, h skip locked
    );
    -- A handover names a turn that has ended: who finds the key still at it may vacate it. A key without a row has no
    -- event left, and another turn has been passed on already: such handovers are moot.
    with vacated as (
        update outbox_turns as t
           set head = null
          from outbox_handovers as h
         where h.handover = any (v_handovers || v_more)
           and t.topic = h.topic
           and t.ordering_key = h.ordering_key
           and t.turn = h.turn
        returning t.topic, t.ordering_key
    )
    select array_agg(v.topic), array_agg(v.ordering_key)
      into v_topics, v_keys
      from vacated as v;
    delete from outbox_handovers as h
     where h.handover = any (v_handovers || v_more || array(
               select m.handover
                 from outbox_handovers as m
                where m.noted_at <= outbox_hand_over.noted_by
                  and not exists (select from outbox_turns as t where t.topic = m.topic and t.ordering_key = m.ordering_key offset 0)
                order by m.handover
                limit outbox_hand_over.n
                  for update of m skip locked
           ));
    if v_topics is not null then
        perform outbox_seat(v_topics, v_keys);
    end if;
end;
$$;

comment on function outbox_hand_over(integer, timestamptz, text[]) is
    'Internal. Passes on turns that were left as handovers by then, at most n of each kind; topics null: of all. Never waits.';

revoke all on function outbox_hand_over(integer, timestamptz, text[]) from public;
-- end sql/functions/outbox_hand_over.sql

-- begin sql/functions/outbox_version.sql
create or replace function outbox_version()
returns text
language sql
immutable
security definer
set search_path from current
as $$
    select '0.1.0'
$$;

comment on function outbox_version() is 'The installed version of pgoutbox.';

revoke all on function outbox_version() from public;
-- end sql/functions/outbox_version.sql

-- begin sql/functions/outbox_channel.sql
create or replace function outbox_channel()
returns text
language sql
stable
security definer
set search_path from current
as $$
    -- By oid: a schema's name could overflow the 63 bytes of a channel.
    select 'outbox_' || quote_ident(current_schema())::regnamespace::oid
$$;

comment on function outbox_channel() is
    'What to LISTEN on. A topic notifies here, without a payload, when outbox_configure has set its notify.';

revoke all on function outbox_channel() from public;
-- end sql/functions/outbox_channel.sql

-- begin sql/functions/outbox_route.sql
create or replace function outbox_route()
returns trigger
language plpgsql
volatile
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_left bigint;
    v_notify boolean;
    v_topics text[];
    v_keys text[];
    v_reseat boolean;
begin
    -- The common event (no key, no time, a lane that exists) is routed by this statement alone.
    with routed as (
        insert into outbox_ready (lane, id)
        select l.lane, n.id
          from new_events as n
         cross join lateral (
                   select min(l.lane) as lane
                     from outbox_lanes as l
                    where l.topic = n.topic and l.priority = n.priority and not l.suspect
               ) as l
         where n.ordering_key is null
           and n.available_at is null
           and l.lane is not null
        returning id
    )
    select (select count(*) from new_events) - (select count(*) from routed),
           exists (
               select from outbox_topics as t where t.notify and t.topic in (select n.topic from new_events as n)
           )
      into v_left, v_notify;

    if v_left > 0 then
        perform outbox_lane(n.topic, n.priority, false)
           from (select distinct n.topic, n.priority from new_events as n) as n;

        with unrouted as materialized (
            select n.id, n.available_at, l.lane
              from new_events as n
             cross join lateral (
                       select min(l.lane) as lane
                         from outbox_lanes as l
                        where l.topic = n.topic and l.priority = n.priority and not l.suspect
                   ) as l
             where n.ordering_key is null
               and not exists (select from outbox_ready as r where r.id = n.id offset 0)
        ), scheduled as (
            insert into outbox_scheduled (available_at, lane, id)
            select u.available_at, u.lane, u.id from unrouted as u where u.available_at > v_now
        )
        insert into outbox_ready (lane, id)
        select u.lane, u.id from unrouted as u where u.available_at is null or u.available_at <= v_now;

        select array_agg(k.topic), array_agg(k.ordering_key)
          into v_topics, v_keys
          from (select distinct n.topic, n.ordering_key from new_events as n where n.ordering_key is not null) as k;
    end if;

    if v_topics is not null then
        perform outbox_lock_keys(v_topics, v_keys);

        -- Later statements than the lock: they see what the key's earlier holders committed. A key without a turn has
        -- nobody waiting.
        insert into outbox_turns (topic, ordering_key, head, turn)
        select a.topic, a.ordering_key, a.first_id, nextval('outbox_turn_seq'::regclass)
          from (
              select n.topic, n.ordering_key, min(n.id) as first_id
                from new_events as n
               where n.ordering_key is not null
               group by n.topic, n.ordering_key
          ) as a
         where not exists (
                   select from outbox_turns as t where t.topic = a.topic and t.ordering_key = a.ordering_key offset 0
               );

        with placed as materialized (
            select n.id, n.topic, n.ordering_key, n.available_at, t.head, l.lane
              from new_events as n
             cross join lateral (
                       select t.head
                         from outbox_turns as t
                        where t.topic = n.topic and t.ordering_key = n.ordering_key
                        limit 1
                   ) as t
             cross join lateral (
                       select min(l.lane) as lane
                         from outbox_lanes as l
                        where l.topic = n.topic and l.priority = n.priority and not l.suspect
                   ) as l
             where n.ordering_key is not null
        ), ready as (
            insert into outbox_ready (lane, id, keyed)
            select p.lane, p.id, true
              from placed as p
             where p.id = p.head and (p.available_at is null or p.available_at <= v_now)
        ), scheduled as (
            insert into outbox_scheduled (available_at, lane, id, keyed)
            select p.available_at, p.lane, p.id, true
              from placed as p
             where p.id = p.head and p.available_at > v_now
        ), blocked as (
            insert into outbox_blocked (topic, ordering_key, id, lane, available_at)
            select p.topic, p.ordering_key, p.id, p.lane, p.available_at
              from placed as p
             where p.id is distinct from p.head
        )
        select exists (select from placed as p where p.head is null or p.id < p.head)
          into v_reseat;
        if v_reseat then
            perform outbox_reseat(v_topics, v_keys);
        end if;
    end if;

    if v_notify then
        perform pg_notify(outbox_channel(), '');
    end if;
    return null;
end;
$$;

comment on function outbox_route() is
    'Internal. Trigger of outbox_events: puts each new event where it waits, in the inserting statement''s transaction.';

revoke all on function outbox_route() from public;

create or replace trigger outbox_events_route
after insert on outbox_events
referencing new table as new_events
for each statement execute function outbox_route();

comment on trigger outbox_events_route on outbox_events is
    'Routes new events; once a statement, whatever the number of rows.';
-- end sql/functions/outbox_route.sql

-- begin sql/functions/outbox_replace.sql
create or replace function outbox_replace(
    id bigint,
    payload jsonb,
    headers jsonb,
    available_at timestamptz
)
returns boolean
language plpgsql
volatile
set search_path from current
as $$
declare
    v_due_at timestamptz := case when outbox_replace.available_at > clock_timestamp() then outbox_replace.available_at end;
    v_found boolean;
begin
    perform from outbox_events as e where e.id = outbox_replace.id for update;
    if not found then
        return null;
    end if;

    -- A row that somebody holds may only be on its way from one place to the other: it is looked for again, for up to a
    -- second. A claim that stays open for longer counts as in flight.
    for v_look in 1 .. 100 loop
        -- A ready row that stays ready keeps its place; it is locked, so that no claim delivers the old payload before
        -- this commits.
        with kept as (
            select r.id
              from outbox_ready as r
             where r.id = outbox_replace.id
               and v_due_at is null
               for update skip locked
        ), from_ready as (
            delete from outbox_ready as r
             where r.ctid = any (array(
                       select c.ctid
                         from outbox_ready as c
                        where c.id = outbox_replace.id
                          and v_due_at is not null
                          for update skip locked
                   ))
            returning r.lane, r.id, r.attempts, r.lost_leases, r.keyed, r.last_error
        ), from_scheduled as (
            delete from outbox_scheduled as s
             where s.ctid = any (array(
                       select c.ctid from outbox_scheduled as c where c.id = outbox_replace.id for update skip locked
                   ))
            returning s.lane, s.id, s.attempts, s.lost_leases, s.keyed, s.last_error
        ), from_blocked as (
            delete from outbox_blocked as b
             where b.ctid = any (array(
                       select c.ctid
                         from outbox_events as e
                         join outbox_blocked as c on c.topic = e.topic and c.ordering_key = e.ordering_key and c.id = e.id
                        where e.id = outbox_replace.id
                          for update of c skip locked
                   ))
            returning b.*
        ), moved as materialized (
            table from_ready union all table from_scheduled
        ), scheduled as (
            insert into outbox_scheduled (available_at, lane, id, attempts, lost_leases, keyed, last_error)
            select v_due_at, m.lane, m.id, m.attempts, m.lost_leases, m.keyed, m.last_error
              from moved as m
             where v_due_at is not null
        ), ready as (
            insert into outbox_ready (lane, id, attempts, lost_leases, keyed, last_error)
            select m.lane, m.id, m.attempts, m.lost_leases, m.keyed, m.last_error
              from moved as m
             where v_due_at is null
        ), blocked as (
            insert into outbox_blocked (topic, ordering_key, id, lane, attempts, lost_leases, available_at, last_error)
            select b.topic, b.ordering_key, b.id, b.lane, b.attempts, b.lost_leases, v_due_at, b.last_error
              from from_blocked as b
        )
        select exists (select from kept) or exists (select from moved) or exists (select from from_blocked)
          into v_found;
        exit when v_found or current_setting('transaction_isolation') <> 'read committed';
        exit when not exists (select from outbox_ready as r where r.id = outbox_replace.id)
            and not exists (select from outbox_scheduled as s where s.id = outbox_replace.id)
            and not exists (
                    select
                      from outbox_events as e
                      join outbox_blocked as b on b.topic = e.topic and b.ordering_key = e.ordering_key and b.id = e.id
                     where e.id = outbox_replace.id
                );
        perform pg_sleep(0.01);
    end loop;

    if v_found then
        update outbox_events as e
           set payload = outbox_replace.payload,
               headers = outbox_replace.headers,
               available_at = v_due_at
         where e.id = outbox_replace.id;
    end if;
    return v_found;
end;
$$;

comment on function outbox_replace(bigint, jsonb, jsonb, timestamptz) is
    'Internal. Overwrites payload, headers and time of an event that waits; false when it does not wait, null when it is gone.';

revoke all on function outbox_replace(bigint, jsonb, jsonb, timestamptz) from public;
-- end sql/functions/outbox_replace.sql

-- begin sql/functions/outbox_requeue.sql
create or replace function outbox_requeue(
    id bigint,
    available_at timestamptz
)
returns boolean
language plpgsql
volatile
set search_path from current
as $$
declare
    v_due_at timestamptz := case when outbox_requeue.available_at > clock_timestamp() then outbox_requeue.available_at end;
    v_topic text;
    v_key text;
    v_priority integer;
    v_changed boolean;
begin
    -- The key's row comes before the log's row, as in an enqueue.
    select e.topic, e.ordering_key, e.priority
      into v_topic, v_key, v_priority
      from outbox_events as e
     where e.id = outbox_requeue.id;
    perform outbox_lock_keys(array[v_topic], array[v_key]);

    -- 'Done' is an absence, and the prune acts on it too: both lock the log's row and look in a later statement.
    perform from outbox_events as e where e.id = outbox_requeue.id for update;
    if not found then
        perform outbox_reseat(array[v_topic], array[v_key]);
        return null;
    end if;

    -- A row that somebody holds is looked for again, as in outbox_replace.
    for v_look in 1 .. 100 loop
        with from_scheduled as (
            delete from outbox_scheduled as s
             where s.ctid = any (array(
                       select c.ctid
                         from outbox_scheduled as c
                        where c.id = outbox_requeue.id
                          and c.attempts > 0
                          for update skip locked
                   ))
            returning s.lane, s.id, s.attempts, s.lost_leases, s.keyed, s.last_error
        ), from_ready as (
            delete from outbox_ready as r
             where r.ctid = any (array(
                       select c.ctid
                         from outbox_ready as c
                        where c.id = outbox_requeue.id
                          and c.attempts > 0
                          and v_due_at is not null
                          for update skip locked
                   ))
            returning r.lane, r.id, r.attempts, r.lost_leases, r.keyed, r.last_error
        ), moved as materialized (
            table from_scheduled union all table from_ready
        ), scheduled as (
            insert into outbox_scheduled (available_at, lane, id, attempts, lost_leases, keyed, last_error)
            select v_due_at, m.lane, m.id, m.attempts, m.lost_leases, m.keyed, m.last_error
              from moved as m
             where v_due_at is not null
        ), ready as (
            insert into outbox_ready (lane, id, attempts, lost_leases, keyed, last_error)
            select m.lane, m.id, m.attempts, m.lost_leases, m.keyed, m.last_error
              from moved as m
             where v_due_at is null
        )
        select exists (select from moved)
            or v_due_at is null
               and exists (select from outbox_ready as r where r.id = outbox_requeue.id and r.attempts > 0)
          into v_changed;
        exit when v_changed or current_setting('transaction_isolation') <> 'read committed';
        exit when not exists (select from outbox_ready as r where r.id = outbox_requeue.id and r.attempts > 0)
            and not exists (select from outbox_scheduled as s where s.id = outbox_requeue.id and s.attempts > 0);
        perform pg_sleep(0.01);
    end loop;

    if not v_changed
        and not exists (select from outbox_ready as r where r.id = outbox_requeue.id)
        and not exists (select from outbox_scheduled as s where s.id = outbox_requeue.id)
        and not exists (select from outbox_leases as l where l.id = outbox_requeue.id)
        and not exists (select from outbox_dead as d where d.id = outbox_requeue.id)
        and not exists (
            select from outbox_blocked as b where b.topic = v_topic and b.ordering_key = v_key and b.id = outbox_requeue.id
        )
    then
        v_changed := true;
        if v_key is not null then
            insert into outbox_blocked (topic, ordering_key, id, lane, available_at)
            values (v_topic, v_key, outbox_requeue.id, outbox_lane(v_topic, v_priority, false), v_due_at);
        elsif v_due_at is not null then
            insert into outbox_scheduled (available_at, lane, id)
            values (v_due_at, outbox_lane(v_topic, v_priority, false), outbox_requeue.id);
        else
            insert into outbox_ready (lane, id)
            values (outbox_lane(v_topic, v_priority, false), outbox_requeue.id);
        end if;
        -- Writes the row: a requeue with an older snapshot raises 40001 instead of delivering the event twice.
        update outbox_events as e
           set available_at = v_due_at
         where e.id = outbox_requeue.id;
    end if;
    if v_key is not null then
        perform outbox_reseat(array[v_topic], array[v_key]);
    end if;
    return v_changed;
end;
$$;

comment on function outbox_requeue(bigint, timestamptz) is
    'Internal. A retry becomes due at that time, a done event is delivered again; false when it is neither, null when it is gone.';

revoke all on function outbox_requeue(bigint, timestamptz) from public;
-- end sql/functions/outbox_requeue.sql

-- begin sql/functions/outbox_enqueue.sql
create or replace function outbox_enqueue(
    topic text,
    payload jsonb,
    dedupe_key text default null,
    ordering_key text default null,
    headers jsonb default '{}',
    priority integer default 0,
    available_at timestamptz default null,
    max_attempts integer default null,
    on_duplicate text default 'ignore'
)
returns table (
    id bigint,
    created boolean,
    changed boolean
)
language plpgsql
volatile
security definer
rows 1
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_first_key text;
begin
    priority := coalesce(priority, 0);
    headers := coalesce(headers, '{}');
    on_duplicate := coalesce(on_duplicate, 'ignore');
    perform outbox_check_event(topic, payload, dedupe_key, ordering_key, priority, available_at, max_attempts, on_duplicate);
    if available_at <= clock_timestamp() then
        available_at := null;
    end if;

    loop
        -- Before the id is drawn: within the key, id order is then commit order. A requeue needs the key of the first
        -- event too, and takes both in one order.
        if ordering_key is not null or on_duplicate = 'requeue' then
            select e.ordering_key
              into v_first_key
              from outbox_events as e
             where e.topic = outbox_enqueue.topic
               and e.dedupe_key = outbox_enqueue.dedupe_key
               and outbox_enqueue.on_duplicate = 'requeue';
            perform outbox_lock_keys(array[topic, topic], array[ordering_key, v_first_key]);
        end if;
        insert into outbox_events as e (topic, payload, dedupe_key, ordering_key, headers, priority, available_at, max_attempts)
        values (
            outbox_enqueue.topic,
            outbox_enqueue.payload,
            outbox_enqueue.dedupe_key,
            outbox_enqueue.ordering_key,
            outbox_enqueue.headers,
            outbox_enqueue.priority,
            outbox_enqueue.available_at,
            outbox_enqueue.max_attempts
        )
        on conflict do nothing
        returning e.id into id;
        if id is not null then
            created := true;
            changed := true;
            return next;
            return;
        end if;

        -- A duplicate, unless the first event was removed between the two statements: then this one is the first.
        if ordering_key is not null then
            perform outbox_seat(array[topic], array[ordering_key]);
        end if;
        select e.id,
               case outbox_enqueue.on_duplicate
                   when 'replace' then outbox_replace(e.id, outbox_enqueue.payload, outbox_enqueue.headers, outbox_enqueue.available_at)
                   when 'requeue' then outbox_requeue(e.id, outbox_enqueue.available_at)
                   else false
               end
          into id, changed
          from outbox_events as e
         where e.topic = outbox_enqueue.topic
           and e.dedupe_key = outbox_enqueue.dedupe_key;
        if changed is not null then
            created := false;
            return next;
            return;
        end if;
        id := null;
        perform outbox_check_sequence();
    end loop;
end;
$$;

comment on function outbox_enqueue(text, jsonb, text, text, jsonb, integer, timestamptz, integer, text) is
    'Enqueues one event in the caller''s transaction. A dedupe key that the topic already has gives the first event''s id and created = false; on_duplicate then says what to do: ignore, replace (payload, headers and time of an event that waits) or requeue (a retry becomes due, a done event is delivered again). changed: what was asked for is in effect. Raises 22004 for a null topic or payload, 22023 for a value out of bounds.';

revoke all on function outbox_enqueue(text, jsonb, text, text, jsonb, integer, timestamptz, integer, text) from public;
-- end sql/functions/outbox_enqueue.sql

-- begin sql/functions/outbox_enqueue_many.sql
create or replace function outbox_enqueue_many(events jsonb)
returns table (
    ordinality integer,
    id bigint,
    created boolean,
    changed boolean
)
language plpgsql
volatile
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    c_known constant text[] := array[
        'topic', 'payload', 'dedupe_key', 'ordering_key', 'headers', 'priority', 'available_at', 'max_attempts', 'on_duplicate'
    ];
    v_now timestamptz := clock_timestamp();
    v_count integer;
    v_place bigint;
    v_fault text;
    v_code text;
    v_text text;
    v_ids bigint[];
    v_created bigint[];
    v_answers bigint[];
    v_topics text[];
    v_keys text[];
    v_event jsonb;
    v_answer record;
    v_was_created boolean[];
    v_was_changed boolean[];
begin
    if events is null then
        raise exception using
            errcode = 'null_value_not_allowed',
            message = 'events is null',
            hint = 'Give a JSON array of events; an empty one does nothing.';
    end if;
    if jsonb_typeof(events) <> 'array' then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = format('events is a JSON %s', jsonb_typeof(events)),
            hint = 'Give a JSON array of events.';
    end if;
    v_count := jsonb_array_length(events);
    if v_count > 10000 then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = format('events has %s elements', v_count),
            hint = 'Give at most 10,000 at a time; several calls in one transaction are still all or nothing.';
    end if;

    -- First the shape of each element, so that no cast below can fail without naming its position.
    select f.place, f.fault, f.code
      into v_place, v_fault, v_code
      from (
          select e.place,
                 case
                     when jsonb_typeof(e.event) <> 'object'
                         then format('is a JSON %s, not an object', jsonb_typeof(e.event))
                     when e.event - c_known <> '{}'
                         then (
                             select format('has an unknown key "%s"', left(k.key, 60))
                               from jsonb_object_keys(e.event - c_known) as k (key)
                              limit 1
                         )
                     when not e.event ? 'payload' then 'has no payload'
                     when coalesce(jsonb_typeof(e.event -> 'topic'), 'null') = 'null' then 'has no topic'
                     else (
                         select format('has %s as %s', left(t.value::text, 60), t.key)
                           from jsonb_each(e.event - array['payload', 'headers']) as t (key, value)
                          where case
                                    when jsonb_typeof(t.value) = 'null' then false
                                    when t.key not in ('priority', 'max_attempts') then jsonb_typeof(t.value) <> 'string'
                                    when jsonb_typeof(t.value) <> 'number' then true
                                    else abs(t.value::numeric) > 2147483647 or t.value::numeric % 1 <> 0
                                end
                          limit 1
                     )
                 end as fault,
                 case
                     when jsonb_typeof(e.event) = 'object'
                         and e.event - c_known = '{}'
                         and (not e.event ? 'payload' or coalesce(jsonb_typeof(e.event -> 'topic'), 'null') = 'null')
                         then 'null_value_not_allowed'
                     else 'invalid_parameter_value'
                 end as code
            from jsonb_array_elements(events) with ordinality as e (event, place)
      ) as f
     where f.fault is not null
     order by f.place
     limit 1;
    if v_fault is not null then
        raise exception using
            errcode = v_code,
            message = format('event %s %s', v_place, v_fault),
            hint = 'An event is an object with topic and payload, and may have dedupe_key, ordering_key, headers, priority (integer), available_at, max_attempts (integer) and on_duplicate.';
    end if;

    if jsonb_path_exists(events, '$[*].available_at ? (@ != null)') then
        begin
            for v_place, v_text in
                select e.place, e.event ->> 'available_at'
                  from jsonb_array_elements(events) with ordinality as e (event, place)
                 where e.event ->> 'available_at' is not null
            loop
                perform v_text::timestamptz;
            end loop;
        exception when data_exception then
            raise exception using
                errcode = 'invalid_parameter_value',
                message = format('event %s has "%s" as available_at', v_place, left(v_text, 60)),
                hint = 'Give a time with its zone, such as 2030-01-31T12:00:00Z.';
        end;
    end if;

    perform outbox_check_event(
                e.event ->> 'topic',
                e.event -> 'payload',
                e.event ->> 'dedupe_key',
                e.event ->> 'ordering_key',
                coalesce((e.event ->> 'priority')::numeric::integer, 0),
                (e.event ->> 'available_at')::timestamptz,
                (e.event ->> 'max_attempts')::numeric::integer,
                coalesce(e.event ->> 'on_duplicate', 'ignore'),
                format('event %s: ', e.place)
            )
       from jsonb_array_elements(events) with ordinality as e (event, place);

    -- Ordering keys are locked before the ids are drawn (those of first events that a requeue may need as well), and
    -- dedupe keys inserted in one order: statements that enqueue several keys cannot deadlock with each other.
    select array_agg(k.topic), array_agg(k.key)
      into v_topics, v_keys
      from (
          select e.event ->> 'topic', d.ordering_key
            from jsonb_array_elements(events) as e (event)
            left join lateral (
                     select q.ordering_key
                       from outbox_events as q
                      where q.topic = e.event ->> 'topic'
                        and q.dedupe_key = e.event ->> 'dedupe_key'
                        and e.event ->> 'on_duplicate' = 'requeue'
                      limit 1
                 ) as d on true
          union
          select e.event ->> 'topic', e.event ->> 'ordering_key'
            from jsonb_array_elements(events) as e (event)
      ) as k (topic, key)
     where k.key is not null;
    if v_keys is not null then
        perform outbox_lock_keys(v_topics, v_keys);
    end if;
    perform outbox_check_sequence();
    v_ids := array(select nextval('outbox_events_id_seq'::regclass) from generate_series(1, v_count));
    with made as (
        insert into outbox_events as e
               (id, topic, payload, dedupe_key, ordering_key, headers, priority, available_at, max_attempts)
        overriding system value
        select v_ids[e.place],
               e.event ->> 'topic',
               e.event -> 'payload',
               e.event ->> 'dedupe_key',
               e.event ->> 'ordering_key',
               coalesce(nullif(e.event -> 'headers', 'null'), '{}'),
               coalesce((e.event ->> 'priority')::numeric::integer, 0),
               case
                   when (e.event ->> 'available_at')::timestamptz > v_now then (e.event ->> 'available_at')::timestamptz
               end,
               (e.event ->> 'max_attempts')::numeric::integer
          from jsonb_array_elements(events) with ordinality as e (event, place)
         order by e.event ->> 'topic' collate "C", e.event ->> 'dedupe_key' collate "C", e.place
        on conflict (topic, dedupe_key) where dedupe_key is not null do nothing
        returning e.id
    )
    select array_agg(m.id) into v_created from made as m;

    if cardinality(v_created) = v_count then
        return query
        select i.place::integer, i.id, true, true
          from unnest(v_ids) with ordinality as i (id, place);
        return;
    end if;

    -- Duplicates, of earlier events or within the array: those to be ignored in one statement; the others, and those
    -- whose first event was removed meanwhile, one by one, in one order of the keys and then in the array's.
    if v_keys is not null then
        perform outbox_seat(v_topics, v_keys);
    end if;
    select array_agg(coalesce(c.id, d.id) order by i.place),
           array_agg(c.id is not null order by i.place)
      into v_answers, v_was_created
      from unnest(v_ids) with ordinality as i (id, place)
      left join unnest(v_created) as c (id) on c.id = i.id
      left join lateral (
               select q.id
                 from outbox_events as q
                where q.topic = events -> (i.place - 1)::integer ->> 'topic'
                  and q.dedupe_key = events -> (i.place - 1)::integer ->> 'dedupe_key'
                  and coalesce(events -> (i.place - 1)::integer ->> 'on_duplicate', 'ignore') = 'ignore'
                limit 1
           ) as d on c.id is null;
    v_was_changed := v_was_created;
    for v_place, v_event in
        select e.place, e.event
          from jsonb_array_elements(events) with ordinality as e (event, place)
         where v_answers[e.place] is null
         order by e.event ->> 'topic' collate "C", e.event ->> 'dedupe_key' collate "C", e.place
    loop
        select d.id, d.created, d.changed
          into v_answer
          from outbox_enqueue(
                   v_event ->> 'topic',
                   v_event -> 'payload',
                   v_event ->> 'dedupe_key',
                   v_event ->> 'ordering_key',
                   nullif(v_event -> 'headers', 'null'),
                   (v_event ->> 'priority')::numeric::integer,
                   (v_event ->> 'available_at')::timestamptz,
                   (v_event ->> 'max_attempts')::numeric::integer,
                   v_event ->> 'on_duplicate'
               ) as d;
        v_answers[v_place] := v_answer.id;
        v_was_created[v_place] := v_answer.created;
        v_was_changed[v_place] := v_answer.changed;
    end loop;
    return query
    select a.place::integer, a.id, a.created, a.changed
      from unnest(v_answers, v_was_created, v_was_changed) with ordinality as a (id, created, changed, place)
     order by a.place;
end;
$$;

comment on function outbox_enqueue_many(jsonb) is
    'Enqueues a JSON array of 0 to 10,000 events, objects with the parameters of outbox_enqueue as keys, all or nothing in the caller''s transaction. One row per element, aligned by ordinality from 1; new ids ascend in the array''s order. Raises 22004 or 22023 with the position of a bad element.';

revoke all on function outbox_enqueue_many(jsonb) from public;
-- end sql/functions/outbox_enqueue_many.sql

-- begin sql/functions/outbox_backoff.sql
create or replace function outbox_backoff(
    attempt integer,
    base interval,
    cap interval
)
returns interval
language sql
volatile
set search_path from current
as $$
    -- The exponent is bounded so that the power stays a finite number.
    select make_interval(secs => (0.5 + random() / 2) * least(
        extract(epoch from cap),
        extract(epoch from base) * power(2, least(attempt, 100) - 1)
    )::double precision)
$$;

comment on function outbox_backoff(integer, interval, interval) is
    'Internal. How long to wait after this attempt: least(cap, base * 2^(attempt - 1)) times a random 0.5 to 1.0.';

revoke all on function outbox_backoff(integer, interval, interval) from public;
-- end sql/functions/outbox_backoff.sql

-- begin sql/functions/outbox_settle_dead.sql
create or replace function outbox_settle_dead(ids bigint[])
returns void
language plpgsql
volatile
set search_path from current
as $$
declare
    v_gone bigint[];
begin
    if ids is null then
        return;
    end if;
    with keyed as materialized (
        select d.id, e.topic, e.ordering_key, p.on_dead
          from outbox_dead as d
         cross join lateral (
                   select q.topic, q.ordering_key from outbox_events as q where q.id = d.id limit 1
               ) as e
         cross join lateral (select q.on_dead from outbox_policies as q where q.lane = d.lane limit 1) as p
         where d.id = any (outbox_settle_dead.ids)
           and e.ordering_key is not null
    ), standing as (
        update outbox_dead as d
           set (standing_topic, standing_key) = (
                   select q.topic, q.ordering_key from outbox_events as q where q.id = d.id
               )
         where d.id = any (array(select k.id from keyed as k where k.on_dead = 'block'))
    )
    select array_agg(k.id) into v_gone from keyed as k where k.on_dead = 'skip';
    if v_gone is not null then
        perform outbox_unblock(v_gone);
    end if;
end;
$$;

comment on function outbox_settle_dead(bigint[]) is
    'Internal. These events have just died: where one has an ordering key, the key stands or goes on, as the topic''s on_dead says.';

revoke all on function outbox_settle_dead(bigint[]) from public;
-- end sql/functions/outbox_settle_dead.sql

-- begin sql/functions/outbox_bury_spent.sql
create or replace function outbox_bury_spent(
    ids bigint[],
    widely boolean
)
returns void
language plpgsql
volatile
set search_path from current
as $$
declare
    v_buried bigint[];
begin
    with lanes as materialized (
        select r.lane from outbox_ready as r where outbox_bury_spent.widely and r.id = any (outbox_bury_spent.ids)
        union
        select s.lane from outbox_scheduled as s where outbox_bury_spent.widely and s.id = any (outbox_bury_spent.ids)
    ), candidates as materialized (
        select w.id from unnest(outbox_bury_spent.ids) as w (id)
        union
        select q.id
          from lanes as l
         cross join lateral (
                   select r.id from outbox_ready as r where r.lane = l.lane order by r.xid, r.id limit 1000
               ) as q
        union
        select q.id
          from lanes as l
         cross join lateral (
                   select s.id from outbox_scheduled as s where s.lane = l.lane order by s.available_at, s.id limit 1000
               ) as q
    ), spent as materialized (
        select e.id
          from candidates as c
         cross join lateral (
                   select q.id, q.topic, q.max_attempts from outbox_events as q where q.id = c.id limit 1
               ) as e
         cross join outbox_defaults as d
          left join lateral (select q.max_attempts from outbox_topics as q where q.topic = e.topic limit 1) as t on true
         cross join lateral (
                   select r.attempts from outbox_ready as r where r.id = c.id
                   union all
                   select s.attempts from outbox_scheduled as s where s.id = c.id
               ) as w
         where w.attempts >= coalesce(e.max_attempts, t.max_attempts, d.max_attempts)
    ), ready as (
        delete from outbox_ready as r
         where r.ctid = any (array(
                   select c.ctid
                     from spent as s
                    cross join lateral (select q.ctid from outbox_ready as q where q.id = s.id for update skip locked) as c
               ))
        returning r.id, r.lane, r.attempts, r.lost_leases, r.last_error
    ), scheduled as (
        delete from outbox_scheduled as s
         where s.ctid = any (array(
                   select c.ctid
                     from spent as s
                    cross join lateral (select q.ctid from outbox_scheduled as q where q.id = s.id for update skip locked) as c
               ))
        returning s.id, s.lane, s.attempts, s.lost_leases, s.last_error
    ), buried as (
        insert into outbox_dead as d (id, lane, attempts, lost_leases, reason, last_error, dead_at)
        select w.id, w.lane, w.attempts, w.lost_leases, case when w.lost_leases > 0 then 'lost lease' else 'failed' end,
               w.last_error, clock_timestamp()
          from (table ready union all table scheduled) as w
        returning d.id
    )
    select array_agg(b.id) into v_buried from buried as b;
    perform outbox_settle_dead(v_buried);
end;
$$;

comment on function outbox_bury_spent(bigint[], boolean) is
    'Internal. Of these waiting events makes those dead whose attempts reach the limit as it is now; widely: and of the first thousand in each of their lanes. Never waits.';

revoke all on function outbox_bury_spent(bigint[], boolean) from public;
-- end sql/functions/outbox_bury_spent.sql

-- begin sql/functions/outbox_end_attempts.sql
create or replace function outbox_end_attempts(
    leases bigint[],
    ids bigint[],
    error text,
    retry_in interval,
    dead boolean,
    lost boolean
)
returns table (
    id bigint,
    status text,
    available_at timestamptz
)
language plpgsql
volatile
set search_path from current
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_keyed bigint[] := array(
        select e.id
          from outbox_events as e
         where e.id = any (outbox_end_attempts.ids)
           and e.ordering_key is not null
    );
begin
    return query
    with ended as (
        delete from outbox_leases as l
         where l.ctid = any (array(
                   select c.ctid
                     from unnest(outbox_end_attempts.leases, outbox_end_attempts.ids) as w (lease, id)
                    cross join lateral (
                              select q.ctid from outbox_leases as q where q.lease = w.lease and q.id = w.id limit 1
                          ) as c
               ))
        returning l.*
    ), judged as materialized (
        select x.id,
               case
                   when outbox_end_attempts.lost and x.attempts < coalesce(e.max_attempts, p.max_attempts)
                       then outbox_lane(p.topic, p.priority, true)
                   else x.lane
               end as lane,
               x.attempts,
               x.lost_leases + outbox_end_attempts.lost::integer as lost_leases,
               x.keyed,
               case
                   when outbox_end_attempts.lost
                       then format('lost lease: worker "%s" had not answered by %s', x.locked_by, x.expires_at)
                   else coalesce(outbox_end_attempts.error, x.last_error)
               end as last_error,
               outbox_end_attempts.dead or x.attempts >= coalesce(e.max_attempts, p.max_attempts) as dead,
               v_now + coalesce(
                   outbox_end_attempts.retry_in,
                   outbox_backoff(x.attempts, p.backoff_base, p.backoff_cap)
               ) as due_at
          from ended as x
         cross join lateral (select q.max_attempts from outbox_events as q where q.id = x.id limit 1) as e
         cross join lateral (select q.* from outbox_policies as q where q.lane = x.lane limit 1) as p
    ), buried as (
        insert into outbox_dead (id, lane, attempts, lost_leases, reason, last_error, dead_at)
        select j.id, j.lane, j.attempts, j.lost_leases,
               case
                   when outbox_end_attempts.dead then 'discarded'
                   when outbox_end_attempts.lost then 'lost lease'
                   else 'failed'
               end,
               j.last_error, v_now
          from judged as j
         where j.dead
    ), scheduled as (
        insert into outbox_scheduled (available_at, lane, id, attempts, lost_leases, keyed, last_error)
        select j.due_at, j.lane, j.id, j.attempts, j.lost_leases, j.keyed, j.last_error
          from judged as j
         where not j.dead
           and j.due_at > v_now
    ), ready as (
        insert into outbox_ready (lane, id, attempts, lost_leases, keyed, last_error)
        select j.lane, j.id, j.attempts, j.lost_leases, j.keyed, j.last_error
          from judged as j
         where not j.dead
           and j.due_at <= v_now
    )
    select j.id,
           case when j.dead then 'dead' else 'retry' end,
           case when not j.dead then j.due_at end
      from judged as j;

    if cardinality(v_keyed) > 0 then
        perform outbox_settle_dead(array(
            select d.id from outbox_dead as d where d.id = any (v_keyed) and d.dead_at = v_now
        ));
        perform outbox_give_way(v_keyed);
    end if;
end;
$$;

comment on function outbox_end_attempts(bigint[], bigint[], text, interval, boolean, boolean) is
    'Internal. Ends the attempts of these (lease, id) pairs, whose rows the caller has locked, as failed or as lost: each event waits for its retry or is dead.';

revoke all on function outbox_end_attempts(bigint[], bigint[], text, interval, boolean, boolean) from public;
-- end sql/functions/outbox_end_attempts.sql

-- begin sql/functions/outbox_reclaim.sql
create or replace function outbox_reclaim(
    n integer,
    expired_by timestamptz,
    topics text[] default null
)
returns table (
    expired integer,
    dead integer
)
language plpgsql
volatile
rows 1
set search_path from current
as $$
declare
    v_leases bigint[];
    v_ids bigint[];
begin
    -- The lock re-checks the expiry: a heartbeat that came first keeps its lease. Who holds the row is not waited for.
    select array_agg(x.lease), array_agg(x.id)
      into v_leases, v_ids
      from (
          select l.lease, l.id
            from outbox_leases as l
           where l.expires_at <= outbox_reclaim.expired_by
             and (
                 outbox_reclaim.topics is null
                 or exists (select from outbox_lanes as q where q.lane = l.lane and q.topic = any (outbox_reclaim.topics))
             )
           order by l.expires_at
           limit outbox_reclaim.n
             for update skip locked
      ) as x;
    return query
    select count(*)::integer, count(*) filter (where f.status = 'dead')::integer
      from outbox_end_attempts(v_leases, v_ids, null, null, false, true) as f;
end;
$$;

comment on function outbox_reclaim(integer, timestamptz, text[]) is
    'Internal. Takes back at most n events whose lease had expired by then (topics null: of all); answers how many, and how many of them are dead. Never waits.';

revoke all on function outbox_reclaim(integer, timestamptz, text[]) from public;
-- end sql/functions/outbox_reclaim.sql

-- begin sql/functions/outbox_move_heads.sql
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
-- end sql/functions/outbox_move_heads.sql

-- begin sql/functions/outbox_claim.sql
create or replace function outbox_claim(
    worker text,
    n integer default 1,
    topics text[] default null,
    lease_for interval default null
)
returns setof outbox_delivery
language plpgsql
volatile
security definer
rows 100
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_walk record;
    v_early tid[];
    v_ready tid[];
    v_late tid[];
    v_ids bigint[];
    v_retried boolean;
    v_spent boolean := false;
    v_lease bigint;
    v_delivered bigint;
    v_suspects_turn boolean := coalesce(nullif(current_setting('outbox.suspects_turn', true), '') = 'true', random() < 0.5);
    v_late_by interval;
    v_tidied boolean := false;
begin
    -- A check is called where it will raise: each call costs as much as a part of the claim.
    if worker is null or octet_length(worker) not between 1 and 200 then
        perform outbox_check_text('worker', worker, 200);
    end if;
    if n is null or n not between 1 and 10000 then
        perform outbox_check_integer('n', n, 1, 10000);
    end if;
    if cardinality(topics) = 0 then
        perform outbox_check_topics(topics);
    end if;
    if lease_for is not null then
        lease_for := outbox_check_interval('lease_for', lease_for, interval '0.1 seconds', interval '30 days');
    end if;

    -- Often enough that few dead entries lie before the first row, seldom enough to cost little.
    if random() < n / 1000.0 then
        perform outbox_move_heads();
    end if;
    loop
        -- Suspects are delivered alone and take turns with the others of their priority. The turn is the session's: one
        -- that is shared could give all of them to one of two workers with different topics.
        for v_walk in
            select w.suspect, w.lowest, w.step
              from (
                  select distinct s.priority
                    from outbox_policies as s
                   where s.suspect
                     and not s.paused
                     and (outbox_claim.topics is null or s.topic = any (outbox_claim.topics))
                     and (
                         exists (select from outbox_fronts as f where f.lane = s.lane offset 0)
                         or exists (
                                select from outbox_scheduled as d where d.lane = s.lane and d.available_at <= v_now offset 0
                            )
                     )
              ) as s
             cross join lateral (
                       values (false, s.priority + v_suspects_turn::integer, s.priority * 2 + 1), (true, s.priority, s.priority * 2)
                   ) as w (suspect, lowest, step)
            union all
            select false, -10, null
            order by step desc nulls last
        loop
            -- The walk: highest priority first, topics of one priority in random order, and in each lane what is ready
            -- and what is due. Rows are locked only as the limit lets them through, and what somebody else holds is
            -- skipped: no claim waits for another. Due events come before the ready ones when their time was before the
            -- first of these was enqueued, so that a backlog does not keep retries waiting.
            select array_agg(c.tid) filter (where c.stage = 1),
                   array_agg(c.tid) filter (where c.stage = 2),
                   array_agg(c.tid) filter (where c.stage = 3),
                   array_agg(c.id),
                   bool_or(c.attempts > 0)
              into v_early, v_ready, v_late, v_ids, v_retried
              from (
                  select c.*
                    from (
                        select l.lane
                          from outbox_policies as l
                         where l.suspect = v_walk.suspect
                           and l.priority >= v_walk.lowest
                           and not l.paused
                           and (outbox_claim.topics is null or l.topic = any (outbox_claim.topics))
                         order by l.priority desc, random()
                    ) as o
                   cross join lateral (
                             select w.lane, w.head_xid, w.head_id, w.stragglers, w.straggler_ids
                               from outbox_walks as w
                              where w.lane = o.lane
                              limit 1
                         ) as l
                   cross join lateral (
                             select case
                                        when exists (
                                            select
                                              from outbox_scheduled as s
                                             where s.lane = l.lane
                                               and s.available_at <= v_now
                                            offset 0
                                        ) then least(v_now, (
                                            select e.created_at
                                              from outbox_fronts as f
                                              join outbox_events as e on e.id = f.id
                                             where f.lane = l.lane
                                        ))
                                    end as early_by
                         ) as f
                   cross join lateral (
                             select *
                               from (
                                   select 1 as stage, s.ctid as tid, s.id, s.attempts
                                     from outbox_scheduled as s
                                    where s.lane = l.lane
                                      and s.available_at <= f.early_by
                                    order by s.available_at, s.id
                                    limit outbox_claim.n
                                      for update skip locked
                               ) as early
                             union all
                             select *
                               from (
                                   select 2, r.ctid, r.id, r.attempts
                                     from unnest(l.stragglers, l.straggler_ids) as s (xid, id)
                                    cross join lateral (
                                              select r.ctid, r.id, r.attempts
                                                from outbox_ready as r
                                               where r.lane = l.lane
                                                 and r.xid = s.xid
                                                 and r.id >= s.id
                                               order by r.id
                                               limit outbox_claim.n
                                                 for update skip locked
                                          ) as r
                                    where pg_visible_in_snapshot(s.xid, pg_current_snapshot())
                               ) as straggling
                             union all
                             select *
                               from (
                                   select 2, r.ctid, r.id, r.attempts
                                     from outbox_ready as r
                                    where r.lane = l.lane
                                      and (r.xid, r.id) >= (l.head_xid, l.head_id)
                                    order by r.xid, r.id
                                    limit outbox_claim.n
                                      for update skip locked
                               ) as ready
                             union all
                             select *
                               from (
                                   select 3, s.ctid, s.id, s.attempts
                                     from outbox_scheduled as s
                                    where s.lane = l.lane
                                      and s.available_at > f.early_by
                                      and s.available_at <= v_now
                                    order by s.available_at, s.id
                                    limit outbox_claim.n
                                      for update skip locked
                               ) as late
                         ) as c
                   limit case when v_walk.suspect then 1 else outbox_claim.n end
              ) as c;
            exit when v_ids is not null;
        end loop;

        v_delivered := 0;
        if v_ids is not null then
            -- The limit of a topic may have been lowered since an event's last attempt. When all that was found had to
            -- be buried, more is at once: one by one, the claim would walk over the buried again and again.
            if v_retried then
                perform outbox_bury_spent(v_ids, v_spent);
                v_spent := true;
            end if;
            -- A later statement than the locks: it delivers the payload as the last replace left it. With an older
            -- snapshot it could not, and raises 40001.
            if current_setting('transaction_isolation') <> 'read committed' then
                perform from outbox_events as e where e.id = any (v_ids) for share;
            end if;
            v_lease := nextval('outbox_lease_seq'::regclass) << 20 | floor(random() * 1048576)::bigint;
            return query
            with early as (
                delete from outbox_scheduled as s
                 where s.ctid = any (v_early)
                returning 1 as stage, s.available_at, null::xid8 as xid, s.id, s.lane, s.attempts, s.lost_leases, s.keyed, s.last_error
            ), ready as (
                delete from outbox_ready as r
                 where r.ctid = any (v_ready)
                returning 2, null::timestamptz, r.xid, r.id, r.lane, r.attempts, r.lost_leases, r.keyed, r.last_error
            ), late as (
                delete from outbox_scheduled as s
                 where s.ctid = any (v_late)
                returning 3, s.available_at, null::xid8, s.id, s.lane, s.attempts, s.lost_leases, s.keyed, s.last_error
            ), claimed as materialized (
                select w.*, p.max_attempts, v_now + coalesce(outbox_claim.lease_for, p.lease_for) as expires_at
                  from (table early union all table ready union all table late) as w
                 cross join lateral (select q.* from outbox_policies as q where q.lane = w.lane limit 1) as p
            ), leased as (
                insert into outbox_leases
                       (lease, id, locked_at, expires_at, lane, attempts, lost_leases, keyed, locked_by, last_error)
                select v_lease, c.id, v_now, c.expires_at, c.lane, c.attempts + 1, c.lost_leases, c.keyed,
                       outbox_claim.worker, c.last_error
                  from claimed as c
            )
            select v_lease, e.id, e.topic, e.payload, e.headers, e.dedupe_key, e.ordering_key, e.priority,
                   c.attempts + 1, coalesce(e.max_attempts, c.max_attempts), e.created_at, c.expires_at
              from claimed as c
              join outbox_events as e on e.id = c.id
             order by e.priority desc, c.lane, c.stage, c.available_at, c.xid, c.id;
            get diagnostics v_delivered = row_count;
            if v_walk.step is not null then
                perform set_config('outbox.suspects_turn', (not v_walk.suspect)::text, false);
            end if;
        end if;

        -- Where nobody reaps, claims do a share of it. What they touch stays out of others' reach until their transaction
        -- ends, so they touch no more than they could deliver: of expired leases one, since its event is a suspect now.
        -- A claim that found something leaves it alone until it is late.
        v_late_by := case when v_delivered = 0 then interval '0' else interval '5 seconds' end;
        if not v_tidied and (
            exists (select from outbox_leases as l where l.expires_at <= v_now - v_late_by)
            or exists (select from outbox_handovers as h where h.noted_at <= v_now - v_late_by)
        ) then
            v_tidied := true;
            perform outbox_hand_over(case when v_delivered = 0 then n else 1 end, v_now - v_late_by, topics);
            perform outbox_reclaim(1, v_now - v_late_by, topics);
            continue when v_delivered = 0;
        end if;
        exit when v_delivered > 0 or v_ids is null;
    end loop;
end;
$$;

comment on function outbox_claim(text, integer, text[], interval) is
    'Gives this worker up to n (1 to 10,000) ready events under one new lease, in delivery order; waits for nobody. Counts when its transaction commits: commit it before the work. topics: null for all. lease_for: 0.1 seconds to 30 days, null for the topic''s. Raises 22004 for a null worker, 22023 for a value out of bounds.';

revoke all on function outbox_claim(text, integer, text[], interval) from public;
-- end sql/functions/outbox_claim.sql

-- begin sql/functions/outbox_finish.sql
create or replace function outbox_finish(
    ids bigint[],
    keyed bigint[]
)
returns void
language plpgsql
volatile
set search_path from current
as $$
begin
    if keyed is not null then
        perform outbox_unblock(keyed);
    end if;
    -- A log row that a producer holds (a requeue or replace that has not committed) is left to the reaper.
    if exists (select from outbox_topics as t where t.retention = interval '0') then
        delete from outbox_events as e
         where e.ctid = any (array(
                   select c.ctid
                     from outbox_events as c
                     join outbox_topics as t on t.topic = c.topic and t.retention = interval '0'
                    where c.id = any (outbox_finish.ids)
                      for update of c skip locked
               ));
    end if;
end;
$$;

comment on function outbox_finish(bigint[], bigint[]) is
    'Internal. These events are done: lets the successors of the keyed ones in and removes those whose topic keeps nothing.';

revoke all on function outbox_finish(bigint[], bigint[]) from public;
-- end sql/functions/outbox_finish.sql

-- begin sql/functions/outbox_ack.sql
create or replace function outbox_ack(lease bigint)
returns setof bigint
language plpgsql
volatile
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_ids bigint[];
    v_keyed bigint[];
begin
    if lease is null then
        perform outbox_check_lease(lease);
    end if;
    -- By an index scan, so in the order of the ids, as outbox_extend and the others lock them.
    with acked as (
        delete from outbox_leases as l
         where l.lease = outbox_ack.lease
        returning l.id, l.keyed
    )
    select array_agg(a.id), array_agg(a.id) filter (where a.keyed)
      into v_ids, v_keyed
      from acked as a;
    if v_ids is not null then
        perform outbox_finish(v_ids, v_keyed);
    end if;
    return query select unnest(v_ids);
end;
$$;

comment on function outbox_ack(bigint) is
    'The whole lease is done. Answers the ids that were still held; what is missing was lost. A lease that has expired but was not taken back still holds. Raises 22004 for a null.';

revoke all on function outbox_ack(bigint) from public;
-- end sql/functions/outbox_ack.sql

-- begin sql/functions/outbox_ack_ids.sql
create or replace function outbox_ack(
    lease bigint,
    ids bigint[]
)
returns setof bigint
language plpgsql
volatile
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_ids bigint[];
    v_keyed bigint[];
begin
    perform outbox_check_lease(lease);
    if ids is null then
        raise exception using
            errcode = 'null_value_not_allowed',
            message = 'ids is null',
            hint = 'array_agg over no rows is null: call outbox_ack(lease) for the whole lease, or give ''{}'' for none.';
    end if;
    perform outbox_check_ids(ids);
    -- By an index scan, so in the order of the ids, as outbox_extend and the others lock them.
    with acked as (
        delete from outbox_leases as l
         where l.lease = outbox_ack.lease
           and l.id = any (outbox_ack.ids)
        returning l.id, l.keyed
    )
    select array_agg(a.id), array_agg(a.id) filter (where a.keyed)
      into v_ids, v_keyed
      from acked as a;
    if v_ids is not null then
        perform outbox_finish(v_ids, v_keyed);
    end if;
    return query select unnest(v_ids);
end;
$$;

comment on function outbox_ack(bigint, bigint[]) is
    'Exactly these events of the lease are done; an empty array does nothing. Answers the ids that were still held; what is missing was lost. Raises 22004 for a null lease, null ids, or a null among them.';

revoke all on function outbox_ack(bigint, bigint[]) from public;
-- end sql/functions/outbox_ack_ids.sql

-- begin sql/functions/outbox_fail.sql
create or replace function outbox_fail(
    lease bigint,
    ids bigint[] default null,
    error text default null,
    retry_in interval default null,
    dead boolean default false
)
returns table (
    id bigint,
    status text,
    available_at timestamptz
)
language plpgsql
volatile
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_ids bigint[];
begin
    perform outbox_check_lease(lease);
    perform outbox_check_ids(ids);
    retry_in := outbox_check_interval('retry_in', retry_in, interval '0', interval '1 year');

    -- Locked by id, as in outbox_ack: a heartbeat from another connection cannot deadlock with what ends its events.
    v_ids := array(
        select l.id
          from outbox_leases as l
         where l.lease = outbox_fail.lease
           and (outbox_fail.ids is null or l.id = any (outbox_fail.ids))
         order by l.id
           for update
    );
    return query
    select f.id, f.status, f.available_at
      from outbox_end_attempts(
               array_fill(outbox_fail.lease, array[cardinality(v_ids)]),
               v_ids,
               left(outbox_fail.error, 8000),
               outbox_fail.retry_in,
               coalesce(outbox_fail.dead, false),
               false
           ) as f;
end;
$$;

comment on function outbox_fail(bigint, bigint[], text, interval, boolean) is
    'Ends the attempt of these events of the lease (null: all of it) as failed. Each waits for a retry, after the topic''s backoff or retry_in (0 to 1 year), or is dead once its attempts are spent or dead is true; a row says which (status retry or dead) and when it is due. error is kept to 8,000 characters. Ids that are missing from the answer were lost. Raises 22004 for a null lease or a null among the ids, 22023 for a retry_in out of bounds.';

revoke all on function outbox_fail(bigint, bigint[], text, interval, boolean) from public;
-- end sql/functions/outbox_fail.sql

-- begin sql/functions/outbox_extend.sql
create or replace function outbox_extend(
    lease bigint,
    ids bigint[] default null,
    lease_for interval default null
)
returns table (
    id bigint,
    lease_expires_at timestamptz
)
language plpgsql
volatile
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_ids bigint[];
begin
    perform outbox_check_lease(lease);
    perform outbox_check_ids(ids);
    lease_for := outbox_check_interval('lease_for', lease_for, interval '0.1 seconds', interval '30 days');

    -- Locked by id, as in outbox_ack: a heartbeat from another connection cannot deadlock with what ends its events.
    v_ids := array(
        select l.id
          from outbox_leases as l
         where l.lease = outbox_extend.lease
           and (outbox_extend.ids is null or l.id = any (outbox_extend.ids))
         order by l.id
           for update
    );
    return query
    update outbox_leases as l
       set expires_at = greatest(l.expires_at, clock_timestamp() + coalesce(outbox_extend.lease_for, p.lease_for))
      from outbox_policies as p
     where l.lease = outbox_extend.lease
       and l.id = any (v_ids)
       and p.lane = l.lane
    returning l.id, l.expires_at;
end;
$$;

comment on function outbox_extend(bigint, bigint[], interval) is
    'A heartbeat: these events of the lease (null: all of it) are held until the later of their present expiry and now + lease_for (0.1 seconds to 30 days; null: the topic''s). Ids that are missing from the answer were lost. Raises 22004 for a null lease or a null among the ids, 22023 for a lease_for out of bounds.';

revoke all on function outbox_extend(bigint, bigint[], interval) from public;
-- end sql/functions/outbox_extend.sql

-- begin sql/functions/outbox_release.sql
create or replace function outbox_release(
    lease bigint,
    ids bigint[] default null
)
returns setof bigint
language plpgsql
volatile
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_ids bigint[];
    v_keyed bigint[];
begin
    perform outbox_check_lease(lease);
    perform outbox_check_ids(ids);

    -- Locked by id, as in outbox_ack: a heartbeat from another connection cannot deadlock with what ends its events.
    v_ids := array(
        select l.id
          from outbox_leases as l
         where l.lease = outbox_release.lease
           and (outbox_release.ids is null or l.id = any (outbox_release.ids))
         order by l.id
           for update
    );
    with released as (
        delete from outbox_leases as l
         where l.lease = outbox_release.lease
           and l.id = any (v_ids)
        returning l.*
    ), ready as (
        insert into outbox_ready as r (lane, id, attempts, lost_leases, keyed, last_error)
        select x.lane, x.id, x.attempts - 1, x.lost_leases, x.keyed, x.last_error
          from released as x
        returning r.id, r.keyed
    )
    select array_agg(r.id), array_agg(r.id) filter (where r.keyed)
      into v_ids, v_keyed
      from ready as r;
    if v_keyed is not null then
        perform outbox_give_way(v_keyed);
    end if;
    return query select unnest(v_ids);
end;
$$;

comment on function outbox_release(bigint, bigint[]) is
    'Gives these events of the lease (null: all of it) back at once and un-counts the attempt. Answers the ids that were still held. Raises 22004 for a null lease or a null among the ids.';

revoke all on function outbox_release(bigint, bigint[]) from public;
-- end sql/functions/outbox_release.sql

-- begin sql/functions/outbox_next_due.sql
create or replace function outbox_next_due(topics text[] default null)
returns timestamptz
language plpgsql
stable
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_lanes integer[];
    v_due timestamptz;
begin
    perform outbox_check_topics(topics);
    v_lanes := array(
        select p.lane
          from outbox_policies as p
         where not p.paused
           and (outbox_next_due.topics is null or p.topic = any (outbox_next_due.topics))
    );
    if exists (
        select from unnest(v_lanes) as l (lane)
         where exists (select from outbox_fronts as f where f.lane = l.lane offset 0)
    ) then
        return v_now;
    end if;
    -- A turn that waits to be passed on, to an event that can be seen.
    if exists (
        select
          from outbox_handovers as h
          join outbox_blocked as b on b.topic = h.topic and b.ordering_key = h.ordering_key
         where b.available_at is null
           and (b.lane in (select unnest(v_lanes))) is true
    ) then
        return v_now;
    end if;
    select least(
               (select min(s.available_at)
                  from unnest(v_lanes) as l (lane)
                 cross join lateral (
                           select s.available_at
                             from outbox_scheduled as s
                            where s.lane = l.lane
                            order by s.available_at
                            limit 1
                       ) as s),
               (select l.expires_at
                  from outbox_leases as l
                 where (l.lane in (select unnest(v_lanes))) is true
                 order by l.expires_at
                 limit 1)
           )
      into v_due;
    return case when v_due < v_now then v_now else v_due end;
end;
$$;

comment on function outbox_next_due(text[]) is
    'When something already there can next be claimed: now if an event is ready, else the earliest due time or lease expiry; blocked events and paused topics do not count; null when there is nothing. Subtract clock_timestamp() in SQL: the client''s clock may differ. Raises 22023 for an empty array.';

revoke all on function outbox_next_due(text[]) from public;
-- end sql/functions/outbox_next_due.sql

-- begin sql/functions/outbox_prune.sql
create or replace function outbox_prune(n integer)
returns integer
language plpgsql
volatile
set search_path from current
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_shortest interval;
    v_start bigint := (select q.last_value from outbox_prune_seq as q);
    v_from bigint := v_start;
    v_last bigint;
    v_young boolean;
    v_candidates bigint[];
    v_ids bigint[];
    v_full boolean;
    v_pruned integer;
    v_total integer := 0;
begin
    select least(min(coalesce(t.retention, d.retention)), min(d.retention))
      into v_shortest
      from outbox_defaults as d
      left join outbox_topics as t on true;

    -- A round goes through the log by id, ten events examined for one that may be removed, until it meets one that is
    -- too young for every topic; then it begins anew, within this call if this call did not begin the round.
    loop
        select max(w.id),
               coalesce(bool_or(w.created_at > v_now - v_shortest), true),
               array_agg(w.id) filter (where w.created_at <= v_now - w.retention)
          into v_last, v_young, v_candidates
          from (
              select e.id, e.created_at, coalesce(t.retention, d.retention) as retention
                from outbox_events as e
               cross join outbox_defaults as d
                left join outbox_topics as t on t.topic = e.topic
               where e.id > v_from
               order by e.id
               limit n * 10
          ) as w;

        if v_candidates is not null then
            -- 'Done' is an absence, and a requeue ends it: both lock the log's row and look in a later statement.
            v_ids := array(
                select e.id
                  from outbox_events as e
                 where e.id = any (v_candidates)
                   and not exists (select from outbox_ready as r where r.id = e.id offset 0)
                   and not exists (select from outbox_scheduled as s where s.id = e.id offset 0)
                   and not exists (select from outbox_dead as d where d.id = e.id offset 0)
                   and not exists (
                           select from outbox_blocked as b
                            where b.topic = e.topic and b.ordering_key = e.ordering_key and b.id = e.id
                           offset 0
                       )
                   and e.id not in (select l.id from outbox_leases as l)
                 order by e.id
                 limit n - v_total
                   for update skip locked
            );
            v_full := cardinality(v_ids) = n - v_total;
            delete from outbox_events as e
             where e.id = any (v_ids)
               and not exists (select from outbox_ready as r where r.id = e.id offset 0)
               and not exists (select from outbox_scheduled as s where s.id = e.id offset 0)
               and not exists (select from outbox_dead as d where d.id = e.id offset 0)
               and not exists (
                       select from outbox_blocked as b
                        where b.topic = e.topic and b.ordering_key = e.ordering_key and b.id = e.id
                       offset 0
                   )
               and e.id not in (select l.id from outbox_leases as l);
            get diagnostics v_pruned = row_count;
            v_total := v_total + v_pruned;
            if v_full then
                v_from := v_ids[cardinality(v_ids)];
                exit;
            end if;
        end if;
        v_from := case when v_young then 0 else v_last end;
        exit when not v_young or v_start = 0;
        v_start := 0;
    end loop;
    perform setval('outbox_prune_seq'::regclass, v_from);
    return v_total;
end;
$$;

comment on function outbox_prune(integer) is
    'Internal. Removes at most n done events that are past their topic''s retention; answers how many. Never waits.';

revoke all on function outbox_prune(integer) from public;
-- end sql/functions/outbox_prune.sql

-- begin sql/functions/outbox_reap.sql
create or replace function outbox_reap(n integer default 1000)
returns table (
    expired integer,
    dead integer,
    promoted integer,
    pruned integer
)
language plpgsql
volatile
security definer
rows 1
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    perform outbox_check_integer('n', n, 1, 100000);

    -- First, while the transaction has written nothing: some workers always have an xid when they claim. Every head
    -- but the last of its lane has served; a head is never lowered.
    perform outbox_move_heads();
    delete from outbox_heads as h
     where h.ctid = any (array(
               select c.ctid
                 from outbox_lanes as l
                cross join lateral (
                          select q.ctid
                            from outbox_heads as q
                           where q.lane = l.lane
                             and q.made = q.stamp
                           order by q.xid desc, q.id desc, q.made desc
                          offset 1
                      ) as o
                 join outbox_heads as c on c.ctid = o.ctid
                  for update of c skip locked
           ));

    select r.expired, r.dead into expired, dead from outbox_reclaim(n, v_now) as r;
    perform outbox_hand_over(n, v_now);

    with due as (
        delete from outbox_scheduled as s
         where s.ctid = any (array(
                   select c.ctid
                     from outbox_lanes as l
                    cross join lateral (
                              select q.ctid
                                from outbox_scheduled as q
                               where q.lane = l.lane
                                 and q.available_at <= v_now
                               order by q.available_at, q.id
                               limit outbox_reap.n
                                 for update skip locked
                          ) as c
                    limit outbox_reap.n
               ))
        returning s.*
    )
    insert into outbox_ready (lane, id, attempts, lost_leases, keyed, last_error)
    select d.lane, d.id, d.attempts, d.lost_leases, d.keyed, d.last_error
      from due as d;
    get diagnostics promoted = row_count;

    pruned := outbox_prune(n);
    return next;
end;
$$;

comment on function outbox_reap(integer) is
    'Bounded housekeeping, at most n (1 to 100,000) of each kind: takes back events whose lease has expired (expired; of these, dead), makes due events ready (promoted), removes done events past their topic''s retention (pruned). Never waits; safe at any rate, by any number of callers. Raises 22023 for an n out of bounds.';

revoke all on function outbox_reap(integer) from public;
-- end sql/functions/outbox_reap.sql

-- begin sql/functions/outbox_redrive.sql
create or replace function outbox_redrive(
    ids bigint[] default null,
    topic text default null,
    n integer default 1000
)
returns setof bigint
language plpgsql
volatile
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_ids bigint[];
    v_topics text[];
    v_keys text[];
begin
    if ids is null and topic is null then
        raise exception using
            errcode = 'null_value_not_allowed',
            message = 'ids and topic are null',
            hint = 'Give the ids of dead letters, or a topic to redrive n of its dead letters.';
    end if;
    perform outbox_check_ids(ids);
    if topic is not null then
        perform outbox_check_text('topic', topic, 200);
    end if;
    perform outbox_check_integer('n', n, 1, 10000);

    v_ids := array(
        select d.id
          from outbox_dead as d
          join outbox_lanes as l on l.lane = d.lane
         where (outbox_redrive.ids is null or d.id = any (outbox_redrive.ids))
           and (outbox_redrive.topic is null or l.topic = outbox_redrive.topic)
         order by d.id
         limit outbox_redrive.n
           for update of d skip locked
    );
    select array_agg(e.topic), array_agg(e.ordering_key)
      into v_topics, v_keys
      from outbox_events as e
     where e.id = any (v_ids)
       and e.ordering_key is not null;
    if v_keys is not null then
        perform outbox_lock_keys(v_topics, v_keys);
        perform
           from (
               select u.topic, u.key
                 from unnest(v_topics, v_keys) as u (topic, key)
                group by u.topic, u.key
                order by u.topic collate "C", u.key collate "C"
           ) as u
          cross join lateral (
                    select from outbox_turns as q where q.topic = u.topic and q.ordering_key = u.key for update
                ) as t;
    end if;

    -- A keyed event enters behind its key's row, at the place of its id.
    with redriven as (
        delete from outbox_dead as d
         where d.id = any (v_ids)
        returning d.id, d.last_error
    ), placed as materialized (
        select r.id, r.last_error, e.topic, e.ordering_key, outbox_lane(e.topic, e.priority, false) as lane
          from redriven as r
         cross join lateral (
                   select q.topic, q.ordering_key, q.priority from outbox_events as q where q.id = r.id limit 1
               ) as e
    ), blocked as (
        insert into outbox_blocked (topic, ordering_key, id, lane, last_error)
        select p.topic, p.ordering_key, p.id, p.lane, p.last_error
          from placed as p
         where p.ordering_key is not null
    ), vacated as (
        update outbox_turns as t
           set head = null
         where t.ctid = any (array(
                   select c.ctid
                     from placed as p
                    cross join lateral (
                              select q.ctid
                                from outbox_turns as q
                               where q.topic = p.topic and q.ordering_key = p.ordering_key and q.head = p.id
                               limit 1
                          ) as c
               ))
    )
    insert into outbox_ready (lane, id, last_error)
    select p.lane, p.id, p.last_error
      from placed as p
     where p.ordering_key is null;
    if v_keys is not null then
        perform outbox_reseat(v_topics, v_keys);
    end if;
    return query select unnest(v_ids);
end;
$$;

comment on function outbox_redrive(bigint[], text, integer) is
    'Puts dead letters back to pending, their attempts from 0: those with these ids, those of this topic, or both, at most n (1 to 10,000), lowest ids first. Answers their ids. Raises 22004 when neither is given or for a null among the ids, 22023 for an n out of bounds.';

revoke all on function outbox_redrive(bigint[], text, integer) from public;
-- end sql/functions/outbox_redrive.sql

-- begin sql/functions/outbox_cancel.sql
create or replace function outbox_cancel(ids bigint[])
returns setof bigint
language plpgsql
volatile
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_ids bigint[];
begin
    if ids is null then
        raise exception using
            errcode = 'null_value_not_allowed',
            message = 'ids is null',
            hint = 'Give the ids of events that wait or are dead.';
    end if;
    perform outbox_check_ids(ids);

    -- Whoever acts on a log row (requeue, replace, prune) locks it first, so its waiting row is looked for in a later
    -- statement. What somebody holds right now, row or log row, counts as in flight and is left.
    v_ids := array(
        select e.id from outbox_events as e where e.id = any (outbox_cancel.ids) order by e.id for update skip locked
    );
    with ready as (
        delete from outbox_ready as r
         where r.ctid = any (array(
                   select c.ctid from outbox_ready as c where c.id = any (v_ids) for update skip locked
               ))
        returning r.id
    ), scheduled as (
        delete from outbox_scheduled as s
         where s.ctid = any (array(
                   select c.ctid from outbox_scheduled as c where c.id = any (v_ids) for update skip locked
               ))
        returning s.id
    ), blocked as (
        delete from outbox_blocked as b
         where b.ctid = any (array(
                   select c.ctid
                     from outbox_events as e
                    cross join lateral (
                              select q.ctid
                                from outbox_blocked as q
                               where q.topic = e.topic and q.ordering_key = e.ordering_key and q.id = e.id
                                 for update skip locked
                          ) as c
                    where e.id = any (v_ids)
               ))
        returning b.id
    ), dead as (
        delete from outbox_dead as d
         where d.ctid = any (array(
                   select c.ctid from outbox_dead as c where c.id = any (v_ids) for update skip locked
               ))
        returning d.id
    )
    select array_agg(x.id)
      into v_ids
      from (table ready union all table scheduled union all table blocked union all table dead) as x;
    if v_ids is not null then
        perform outbox_unblock(v_ids);
        delete from outbox_events as e where e.id = any (v_ids);
    end if;
    return query select unnest(v_ids);
end;
$$;

comment on function outbox_cancel(bigint[]) is
    'Removes events that wait or are dead, their log rows included: the dedupe key is free again and a keyed successor moves up. Never waits: what is in flight, held by somebody right now, or done is left and missing from the answer. Raises 22004 for null ids or a null among them.';

revoke all on function outbox_cancel(bigint[]) from public;
-- end sql/functions/outbox_cancel.sql

-- begin sql/functions/outbox_configure.sql
-- Returns a composite, since a column of "returns table" cannot share the name of a parameter.
create or replace function outbox_configure(
    topic text,
    max_attempts integer default null,
    lease_for interval default null,
    backoff_base interval default null,
    backoff_cap interval default null,
    retention interval default null,
    notify boolean default null,
    on_dead text default null
)
returns setof outbox_policy
language plpgsql
volatile
security definer
rows 1
set search_path from current
as $$
declare
    v_policy outbox_policy;
begin
    perform outbox_check_text('topic', topic, 200);
    if max_attempts is not null then
        perform outbox_check_integer('max_attempts', max_attempts, 1, 1000);
    end if;
    lease_for := outbox_check_interval('lease_for', lease_for, interval '0.1 seconds', interval '30 days');
    backoff_base := outbox_check_interval('backoff_base', backoff_base, interval '0', interval '1 year');
    backoff_cap := outbox_check_interval('backoff_cap', backoff_cap, interval '0', interval '1 year');
    retention := outbox_check_interval('retention', retention, interval '0', interval '100 years');
    if on_dead not in ('skip', 'block') then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = format('on_dead is "%s"', left(on_dead, 60)),
            hint = 'Give skip or block.';
    end if;

    insert into outbox_topics as t (topic, max_attempts, lease_for, backoff_base, backoff_cap, retention, notify, on_dead)
    values (
        outbox_configure.topic,
        outbox_configure.max_attempts,
        outbox_configure.lease_for,
        outbox_configure.backoff_base,
        outbox_configure.backoff_cap,
        outbox_configure.retention,
        outbox_configure.notify,
        outbox_configure.on_dead
    )
    on conflict on constraint outbox_topics_pkey do update
       set max_attempts = coalesce(excluded.max_attempts, t.max_attempts),
           lease_for = coalesce(excluded.lease_for, t.lease_for),
           backoff_base = coalesce(excluded.backoff_base, t.backoff_base),
           backoff_cap = coalesce(excluded.backoff_cap, t.backoff_cap),
           retention = coalesce(excluded.retention, t.retention),
           notify = coalesce(excluded.notify, t.notify),
           on_dead = coalesce(excluded.on_dead, t.on_dead);

    select t.topic,
           coalesce(t.max_attempts, d.max_attempts),
           coalesce(t.lease_for, d.lease_for),
           coalesce(t.backoff_base, d.backoff_base),
           coalesce(t.backoff_cap, d.backoff_cap),
           coalesce(t.retention, d.retention),
           coalesce(t.notify, d.notify),
           coalesce(t.on_dead, d.on_dead),
           t.paused
      into v_policy
      from outbox_topics as t
     cross join outbox_defaults as d
     where t.topic = outbox_configure.topic;
    if v_policy.backoff_base > v_policy.backoff_cap then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = format('backoff_base is %s and backoff_cap is %s', v_policy.backoff_base, v_policy.backoff_cap),
            hint = 'Give a base that is not longer than the cap.';
    end if;
    return next v_policy;
end;
$$;

comment on function outbox_configure(text, integer, interval, interval, interval, interval, boolean, text) is
    'Sets the policy of a topic; null leaves a setting as it is. Answers the policy as it then is, the defaults filled in. Settings are read when they are used: no event is touched. Bounds: max_attempts 1 to 1,000, lease_for 0.1 seconds to 30 days, backoff_base and backoff_cap 0 to 1 year, base not above cap, retention 0 to 100 years, on_dead skip or block. Raises 22004 for a null topic, 22023 for a value out of bounds.';

revoke all on function outbox_configure(text, integer, interval, interval, interval, interval, boolean, text) from public;
-- end sql/functions/outbox_configure.sql

-- begin sql/functions/outbox_pause.sql
create or replace function outbox_pause(topic text)
returns void
language plpgsql
volatile
security definer
set search_path from current
as $$
begin
    perform outbox_check_text('topic', topic, 200);
    insert into outbox_topics as t (topic, paused)
    values (outbox_pause.topic, true)
    on conflict on constraint outbox_topics_pkey do update
       set paused = true;
end;
$$;

comment on function outbox_pause(text) is
    'Stops delivery of a topic, known or not, for claims that start after the commit. Enqueue goes on; leases in flight end as usual. Raises 22004 for a null topic.';

revoke all on function outbox_pause(text) from public;
-- end sql/functions/outbox_pause.sql

-- begin sql/functions/outbox_resume.sql
create or replace function outbox_resume(topic text)
returns void
language plpgsql
volatile
security definer
set search_path from current
as $$
begin
    perform outbox_check_text('topic', topic, 200);
    update outbox_topics as t
       set paused = false
     where t.topic = outbox_resume.topic;
end;
$$;

comment on function outbox_resume(text) is
    'Resumes delivery of a topic for claims that start after the commit. Raises 22004 for a null topic.';

revoke all on function outbox_resume(text) from public;
-- end sql/functions/outbox_resume.sql

-- begin sql/views/outbox_event_status.sql
create or replace view outbox_event_status as
select
    e.id,
    e.topic,
    e.dedupe_key,
    e.ordering_key,
    e.payload,
    e.headers,
    e.priority,
    case
        when l.id is not null then 'processing'
        when b.id is not null then 'blocked'
        when d.id is not null then 'dead'
        when r.attempts > 0 or s.attempts > 0 then 'retry'
        when r.id is not null or s.id is not null then 'pending'
        else 'done'
    end as status,
    coalesce(r.attempts, s.attempts, l.attempts, b.attempts, d.attempts)::integer as attempts,
    coalesce(e.max_attempts, t.max_attempts, f.max_attempts) as max_attempts,
    case
        when s.id is not null then s.available_at
        when b.id is not null then coalesce(b.available_at, e.created_at)
        when r.id is not null then coalesce(e.available_at, e.created_at)
    end as available_at,
    l.locked_by,
    l.locked_at,
    l.expires_at as lease_expires_at,
    coalesce(r.last_error, s.last_error, l.last_error, b.last_error, d.last_error) as last_error,
    e.created_at
from outbox_events as e
left join outbox_ready as r on r.id = e.id
left join outbox_scheduled as s on s.id = e.id
left join outbox_leases as l on l.id = e.id
left join outbox_blocked as b on b.topic = e.topic and b.ordering_key = e.ordering_key and b.id = e.id
left join outbox_dead as d on d.id = e.id
left join outbox_topics as t on t.topic = e.topic
cross join outbox_defaults as f;

comment on view outbox_event_status is
    'One row per event with its status, which is always derived from where its row is.';
comment on column outbox_event_status.id is 'The event.';
comment on column outbox_event_status.topic is 'Its topic.';
comment on column outbox_event_status.dedupe_key is 'Its dedupe key, or null.';
comment on column outbox_event_status.ordering_key is 'Its ordering key, or null.';
comment on column outbox_event_status.payload is 'Its payload.';
comment on column outbox_event_status.headers is 'Its headers.';
comment on column outbox_event_status.priority is '-10 to 10, higher first.';
comment on column outbox_event_status.status is 'pending, retry, blocked, processing, done or dead.';
comment on column outbox_event_status.attempts is 'Attempts so far; null once the event is done.';
comment on column outbox_event_status.max_attempts is 'The event''s own limit, or its topic''s as it is now.';
comment on column outbox_event_status.available_at is 'From when the event can be claimed, if its turn has come; null unless it waits.';
comment on column outbox_event_status.locked_by is 'The worker that holds it, as it called itself.';
comment on column outbox_event_status.locked_at is 'When that worker claimed it.';
comment on column outbox_event_status.lease_expires_at is 'Until when it holds it.';
comment on column outbox_event_status.last_error is 'What the last failed attempt said; null once the event is done.';
comment on column outbox_event_status.created_at is 'When it was enqueued.';

revoke all on table outbox_event_status from public;
-- end sql/views/outbox_event_status.sql

-- begin sql/views/outbox_stats.sql
create or replace view outbox_stats as
select
    k.topic,
    coalesce(r.ready, 0) + coalesce(s.due, 0) as ready,
    coalesce(s.scheduled, 0) as scheduled,
    coalesce(s.retry, 0) as retry,
    coalesce(b.blocked, 0) as blocked,
    coalesce(h.processing, 0) as processing,
    coalesce(h.expired, 0) as expired,
    coalesce(d.dead, 0) as dead,
    case when least(r.oldest, s.oldest) is not null
        then greatest(clock_timestamp() - least(r.oldest, s.oldest), interval '0')
    end as oldest_ready_age,
    coalesce(t.paused, false) as paused
from (
    select l.topic from outbox_lanes as l
    union
    select t.topic from outbox_topics as t
) as k
left join outbox_topics as t on t.topic = k.topic
left join (
    -- The first of a lane stands for its oldest.
    select l.topic, sum(r.ready)::bigint as ready, min(f.since) as oldest
    from (select q.lane, count(*) as ready from outbox_ready as q group by q.lane) as r
    join outbox_lanes as l on l.lane = r.lane
    cross join lateral (
        select greatest(e.created_at, e.available_at) as since
        from outbox_ready as q
        join outbox_events as e on e.id = q.id
        where q.lane = r.lane
        order by q.xid, q.id
        limit 1
    ) as f
    group by l.topic
) as r on r.topic = k.topic
left join (
    select
        l.topic,
        count(*) filter (where q.available_at <= clock_timestamp()) as due,
        count(*) filter (where q.available_at > clock_timestamp() and q.attempts = 0) as scheduled,
        count(*) filter (where q.available_at > clock_timestamp() and q.attempts > 0) as retry,
        min(q.available_at) filter (where q.available_at <= clock_timestamp()) as oldest
    from outbox_scheduled as q
    join outbox_lanes as l on l.lane = q.lane
    group by l.topic
) as s on s.topic = k.topic
left join (
    select q.topic, count(*) as blocked from outbox_blocked as q group by q.topic
) as b on b.topic = k.topic
left join (
    select
        l.topic,
        count(*) filter (where q.expires_at > clock_timestamp()) as processing,
        count(*) filter (where q.expires_at <= clock_timestamp()) as expired
    from outbox_leases as q
    join outbox_lanes as l on l.lane = q.lane
    group by l.topic
) as h on h.topic = k.topic
left join (
    select l.topic, count(*) as dead
    from outbox_dead as q
    join outbox_lanes as l on l.lane = q.lane
    group by l.topic
) as d on d.topic = k.topic;

comment on view outbox_stats is
    'Exact counts per topic; each event that waits, is in flight or dead is counted once. The cost is linear in what waits.';
comment on column outbox_stats.topic is 'The topic.';
comment on column outbox_stats.ready is 'Can be claimed now, retries that are due included.';
comment on column outbox_stats.scheduled is 'Wait for the time of their first attempt.';
comment on column outbox_stats.retry is 'Wait after a failed or lost attempt.';
comment on column outbox_stats.blocked is 'Wait behind an earlier event with the same ordering key.';
comment on column outbox_stats.processing is 'In flight under a lease that has not expired.';
comment on column outbox_stats.expired is 'In flight under a lease that has expired and was not taken back yet.';
comment on column outbox_stats.dead is 'Dead letters.';
comment on column outbox_stats.oldest_ready_age is 'How long the first ready event has been waiting; null when none is ready.';
comment on column outbox_stats.paused is 'Whether claims pass the topic over.';

revoke all on table outbox_stats from public;
-- end sql/views/outbox_stats.sql

-- begin sql/views/outbox_dead_letters.sql
create or replace view outbox_dead_letters as
select
    e.id,
    e.topic,
    e.dedupe_key,
    e.ordering_key,
    e.payload,
    e.headers,
    d.attempts::integer as attempts,
    d.lost_leases::integer as lost_leases,
    d.reason,
    d.last_error,
    d.dead_at,
    e.created_at
from outbox_dead as d
join outbox_events as e on e.id = d.id;

comment on view outbox_dead_letters is
    'Events that will not be tried again until outbox_redrive puts them back; outbox_cancel removes them.';
comment on column outbox_dead_letters.id is 'The event.';
comment on column outbox_dead_letters.topic is 'Its topic.';
comment on column outbox_dead_letters.dedupe_key is 'Its dedupe key, or null.';
comment on column outbox_dead_letters.ordering_key is 'Its ordering key, or null.';
comment on column outbox_dead_letters.payload is 'Its payload.';
comment on column outbox_dead_letters.headers is 'Its headers.';
comment on column outbox_dead_letters.attempts is 'Attempts made.';
comment on column outbox_dead_letters.lost_leases is 'How many of them ended with a lost lease.';
comment on column outbox_dead_letters.reason is 'failed, discarded or lost lease.';
comment on column outbox_dead_letters.last_error is 'What the last failed attempt said.';
comment on column outbox_dead_letters.dead_at is 'When it died.';
comment on column outbox_dead_letters.created_at is 'When it was enqueued.';

revoke all on table outbox_dead_letters from public;
-- end sql/views/outbox_dead_letters.sql

-- begin sql/privileges.sql
-- Hosted services grant to roles of theirs by default privileges, which a revoke from PUBLIC leaves in place.
do $$
declare
    c_relations constant text[] := array[
        'outbox_blocked', 'outbox_dead', 'outbox_dead_letters', 'outbox_defaults', 'outbox_event_status',
        'outbox_events', 'outbox_events_id_seq', 'outbox_fronts', 'outbox_handovers',
        'outbox_handovers_handover_seq', 'outbox_heads', 'outbox_keys', 'outbox_lanes', 'outbox_lanes_lane_seq',
        'outbox_lease_seq', 'outbox_leases', 'outbox_policies', 'outbox_prune_seq', 'outbox_ready',
        'outbox_scheduled', 'outbox_stats', 'outbox_topics', 'outbox_turn_seq', 'outbox_turns', 'outbox_walks'
    ];
    c_functions constant text[] := array[
        'outbox_ack', 'outbox_backoff', 'outbox_bury_spent', 'outbox_cancel', 'outbox_channel', 'outbox_check_event',
        'outbox_check_ids', 'outbox_check_integer', 'outbox_check_interval', 'outbox_check_lease',
        'outbox_check_sequence', 'outbox_check_text', 'outbox_check_topics', 'outbox_claim', 'outbox_configure',
        'outbox_end_attempts', 'outbox_enqueue', 'outbox_enqueue_many', 'outbox_extend', 'outbox_fail',
        'outbox_finish', 'outbox_give_way', 'outbox_hand_over', 'outbox_lane', 'outbox_lock_keys', 'outbox_made',
        'outbox_move_heads', 'outbox_next_due', 'outbox_pause', 'outbox_prune', 'outbox_reap', 'outbox_reclaim',
        'outbox_redrive', 'outbox_release', 'outbox_replace', 'outbox_requeue', 'outbox_reseat', 'outbox_resume',
        'outbox_route', 'outbox_seat', 'outbox_settle_dead', 'outbox_stamp', 'outbox_unblock', 'outbox_version'
    ];
    v_grant record;
begin
    for v_grant in
        select distinct o.kind, o.name, case when a.grantee = 0 then 'public' else a.grantee::regrole::text end as grantee
          from (
              select case r.relkind when 'S' then 'sequence' else 'table' end as kind, r.oid::regclass::text as name,
                     r.relacl as acl, r.relowner as owner
                from pg_class as r
               where r.relnamespace = quote_ident(current_schema())::regnamespace
                 and r.relname = any (c_relations)
              union all
              select 'function', f.oid::regprocedure::text, f.proacl, f.proowner
                from pg_proc as f
               where f.pronamespace = quote_ident(current_schema())::regnamespace
                 and f.proname = any (c_functions)
          ) as o
         cross join lateral aclexplode(o.acl) as a
         where a.grantee <> o.owner
    loop
        execute format('revoke all on %s %s from %s cascade', v_grant.kind, v_grant.name, v_grant.grantee);
    end loop;
end;
$$;
-- end sql/privileges.sql
