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
