create or replace function outbox_check_text(
    argument text,
    value text,
    longest integer
)
returns void
language plpgsql
immutable
set search_path from current
as $$
begin
    if outbox_check_text.value is null then
        raise exception using
            errcode = 'null_value_not_allowed',
            message = format('%s is null', argument),
            hint = format('Give a text of 1 to %s bytes.', longest);
    end if;
    if octet_length(outbox_check_text.value) not between 1 and longest then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = format('%s has %s bytes: "%s"', argument, octet_length(outbox_check_text.value), left(outbox_check_text.value, 60)),
            hint = format('Give a text of 1 to %s bytes.', longest);
    end if;
end;
$$;

comment on function outbox_check_text(text, text, integer) is
    'Internal. Raises 22004 for a null and 22023 for a text that is empty or longer than so many bytes.';

revoke all on function outbox_check_text(text, text, integer) from public;
