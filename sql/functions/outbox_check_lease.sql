create or replace function outbox_check_lease(lease bigint)
returns void
language plpgsql
immutable
set search_path from current
as $$
begin
    if lease is null then
        raise exception using
            errcode = 'null_value_not_allowed',
            message = 'lease is null',
            hint = 'Give the lease that outbox_claim answered.';
    end if;
end;
$$;

comment on function outbox_check_lease(bigint) is 'Internal. Raises 22004 for a null.';

revoke all on function outbox_check_lease(bigint) from public;
