create or replace function outbox_check_integer(
    argument text,
    value integer,
    lowest integer,
    highest integer
)
returns void
language plpgsql
immutable
set search_path from current
as $$
begin
    if outbox_check_integer.value is null then
        raise exception using
            errcode = 'null_value_not_allowed',
            message = format('%s is null', argument),
            hint = format('Give a number from %s to %s.', lowest, highest);
    end if;
    if outbox_check_integer.value not between lowest and highest then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = format('%s is %s', argument, outbox_check_integer.value),
            hint = format('Give a number from %s to %s.', lowest, highest);
    end if;
end;
$$;

comment on function outbox_check_integer(text, integer, integer, integer) is
    'Internal. Raises 22004 for a null and 22023 for a number outside the bounds.';

revoke all on function outbox_check_integer(text, integer, integer, integer) from public;
