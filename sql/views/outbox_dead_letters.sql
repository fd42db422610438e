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
