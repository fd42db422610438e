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
