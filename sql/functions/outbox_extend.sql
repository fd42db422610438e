create or replace function outbox_extend(
    lease bigint,
    ids bigint[] default null,
    lease_for interval default null
)
returns table (
    id bigint,
    lease_expires_at timestamptz
)
language plpgsql
volatile
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_ids bigint[];
begin
    perform outbox_check_lease(lease);
    perform outbox_check_ids(ids);
    lease_for := outbox_check_interval('lease_for', lease_for, interval '0.1 seconds', interval '30 days');

    -- Locked by id, as in outbox_ack: a heartbeat from another connection cannot deadlock with what ends its events.
    v_ids := array(
        select l.id
          from outbox_leases as l
         where l.lease = outbox_extend.lease
           and (outbox_extend.ids is null or l.id = any (outbox_extend.ids))
         order by l.id
           for update
    );
    return query
    update outbox_leases as l
       set expires_at = greatest(l.expires_at, clock_timestamp() + coalesce(outbox_extend.lease_for, p.lease_for))
      from outbox_policies as p
     where l.lease = outbox_extend.lease
       and l.id = any (v_ids)
       and p.lane = l.lane
    returning l.id, l.expires_at;
end;
$$;

comment on function outbox_extend(bigint, bigint[], interval) is
    'A heartbeat: these events of the lease (null: all of it) are held until the later of their present expiry and now + lease_for (0.1 seconds to 30 days; null: the topic''s). Ids that are missing from the answer were lost. Raises 22004 for a null lease or a null among the ids, 22023 for a lease_for out of bounds.';

revoke all on function outbox_extend(bigint, bigint[], interval) from public;
