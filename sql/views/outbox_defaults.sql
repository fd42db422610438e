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

revoke all on table outbox_defaults from public;
