create or replace function outbox_release(
    lease bigint,
    ids bigint[] default null
)
returns setof bigint
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
    v_keyed bigint[];
begin
    perform outbox_check_lease(lease);
    perform outbox_check_ids(ids);

    -- Locked by id, as in outbox_ack: a heartbeat from another connection cannot deadlock with what ends its events.
    v_ids := array(
        select l.id
          from outbox_leases as l
         where l.lease = outbox_release.lease
           and (outbox_release.ids is null or l.id = any (outbox_release.ids))
         order by l.id
           for update
    );
    with released as (
        delete from outbox_leases as l
         where l.lease = outbox_release.lease
           and l.id = any (v_ids)
        returning l.*
    ), ready as (
        insert into outbox_ready as r (lane, id, attempts, lost_leases, keyed, last_error)
        select x.lane, x.id, x.attempts - 1, x.lost_leases, x.keyed, x.last_error
          from released as x
        returning r.id, r.keyed
    )
    select array_agg(r.id), array_agg(r.id) filter (where r.keyed)
      into v_ids, v_keyed
      from ready as r;
    if v_keyed is not null then
        perform outbox_give_way(v_keyed);
    end if;
    return query select unnest(v_ids);
end;
$$;

comment on function outbox_release(bigint, bigint[]) is
    'Gives these events of the lease (null: all of it) back at once and un-counts the attempt. Answers the ids that were still held. Raises 22004 for a null lease or a null among the ids.';

revoke all on function outbox_release(bigint, bigint[]) from public;
