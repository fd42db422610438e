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
