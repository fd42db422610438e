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
