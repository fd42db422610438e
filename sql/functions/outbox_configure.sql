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
