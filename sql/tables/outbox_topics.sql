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
