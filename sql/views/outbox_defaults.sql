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
