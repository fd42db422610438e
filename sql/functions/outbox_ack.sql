create or replace function outbox_ack(lease bigint)
returns setof bigint
language plpgsql
volatile
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_ids bigint[];
    v_keyed bigint[];
begin
    if lease is null then
        perform outbox_check_lease(lease);
    end if;
    -- By an index scan, so in the order of the ids, as outbox_extend and the others lock them.
    with acked as (
        delete from outbox_leases as l
         where l.lease = outbox_ack.lease
        returning l.id, l.keyed
    )
    select array_agg(a.id), array_agg(a.id) filter (where a.keyed)
      into v_ids, v_keyed
      from acked as a;
    if v_ids is not null then
        perform outbox_finish(v_ids, v_keyed);
    end if;
    return query select unnest(v_ids);
end;
$$;

comment on function outbox_ack(bigint) is
    'The whole lease is done. Answers the ids that were still held; what is missing was lost. A lease that has expired but was not taken back still holds. Raises 22004 for a null.';

revoke all on function outbox_ack(bigint) from public;
