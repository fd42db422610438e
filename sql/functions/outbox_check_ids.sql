create or replace function outbox_check_ids(ids bigint[])
returns void
language plpgsql
immutable
set search_path from current
as $$
begin
    -- As text, whatever the dimensions.
    if position('*' in array_to_string(ids, ',', '*')) > 0 then
        raise exception using
            errcode = 'null_value_not_allowed',
            message = case
                when array_ndims(ids) = 1 then format('ids has a null at position %s', array_position(ids, null))
                else 'ids has a null'
            end,
            hint = 'Give the ids of events; leave out what is null.';
    end if;
end;
$$;

comment on function outbox_check_ids(bigint[]) is
    'Internal. Raises 22004 for a null among the ids; a null array passes.';

revoke all on function outbox_check_ids(bigint[]) from public;
