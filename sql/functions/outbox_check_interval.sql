create or replace function outbox_check_interval(
    argument text,
    value interval,
    shortest interval,
    longest interval
)
returns void
language plpgsql
immutable
set search_path from current
as $$
begin
    if outbox_check_interval.value not between shortest and longest then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = format('%s is %s', argument, outbox_check_interval.value),
            hint = format('Give an interval from %s to %s.', shortest, longest);
    end if;
end;
$$;

comment on function outbox_check_interval(text, interval, interval, interval) is
    'Internal. Raises 22023 for an interval outside the bounds; a null passes.';

revoke all on function outbox_check_interval(text, interval, interval, interval) from public;
