create or replace function outbox_fail(
    lease bigint,
    ids bigint[] default null,
    error text default null,
    retry_in interval default null,
    dead boolean default false
)
returns table (
    id bigint,
    status text,
    available_at timestamptz
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
    retry_in := outbox_check_interval('retry_in', retry_in, interval '0', interval '1 year');

    -- Locked by id, as in outbox_ack: a heartbeat from another connection cannot deadlock with what ends its events.
    v_ids := array(
        select l.id
          from outbox_leases as l
         where l.lease = outbox_fail.lease
           and (outbox_fail.ids is null or l.id = any (outbox_fail.ids))
         order by l.id
           for update
    );
    return query
    select f.id, f.status, f.available_at
      from outbox_end_attempts(
               array_fill(outbox_fail.lease, array[cardinality(v_ids)]),
               v_ids,
               left(outbox_fail.error, 8000),
               outbox_fail.retry_in,
               coalesce(outbox_fail.dead, false),
               false
           ) as f;
end;
$$;

comment on function outbox_fail(bigint, bigint[], text, interval, boolean) is
    'Ends the attempt of these events of the lease (null: all of it) as failed. Each waits for a retry, after the topic''s backoff or retry_in (0 to 1 year), or is dead once its attempts are spent or dead is true; a row says which (status retry or dead) and when it is due. error is kept to 8,000 characters. Ids that are missing from the answer were lost. Raises 22004 for a null lease or a null among the ids, 22023 for a retry_in out of bounds.';

revoke all on function outbox_fail(bigint, bigint[], text, interval, boolean) from public;
