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
