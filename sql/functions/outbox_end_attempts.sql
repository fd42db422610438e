create or replace function outbox_end_attempts(
    leases bigint[],
    ids bigint[],
    error text,
    retry_in interval,
    dead boolean,
    lost boolean
)
returns table (
    id bigint,
    status text,
    available_at timestamptz
)
language plpgsql
volatile
set search_path from current
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_keyed bigint[] := array(
        select e.id
          from outbox_events as e
         where e.id = any (outbox_end_attempts.ids)
           and e.ordering_key is not null
    );
begin
    return query
    with ended as (
        delete from outbox_leases as l
         where l.ctid = any (array(
                   select c.ctid
                     from unnest(outbox_end_attempts.leases, outbox_end_attempts.ids) as w (lease, id)
                    cross join lateral (
                              select q.ctid from outbox_leases as q where q.lease = w.lease and q.id = w.id limit 1
                          ) as c
               ))
        returning l.*
    ), judged as materialized (
        select x.id,
               case
                   when outbox_end_attempts.lost and x.attempts < coalesce(e.max_attempts, p.max_attempts)
                       then outbox_lane(p.topic, p.priority, true)
                   else x.lane
               end as lane,
               x.attempts,
               x.lost_leases + outbox_end_attempts.lost::integer as lost_leases,
               x.keyed,
               case
                   when outbox_end_attempts.lost
                       then format('lost lease: worker "%s" had not answered by %s', x.locked_by, x.expires_at)
                   else coalesce(outbox_end_attempts.error, x.last_error)
               end as last_error,
               outbox_end_attempts.dead or x.attempts >= coalesce(e.max_attempts, p.max_attempts) as dead,
               v_now + coalesce(
                   outbox_end_attempts.retry_in,
                   outbox_backoff(x.attempts, p.backoff_base, p.backoff_cap)
               ) as due_at
          from ended as x
         cross join lateral (select q.max_attempts from outbox_events as q where q.id = x.id limit 1) as e
         cross join lateral (select q.* from outbox_policies as q where q.lane = x.lane limit 1) as p
    ), buried as (
        insert into outbox_dead (id, lane, attempts, lost_leases, reason, last_error, dead_at)
        select j.id, j.lane, j.attempts, j.lost_leases,
               case
                   when outbox_end_attempts.dead then 'discarded'
                   when outbox_end_attempts.lost then 'lost lease'
                   else 'failed'
               end,
               j.last_error, v_now
          from judged as j
         where j.dead
    ), scheduled as (
        insert into outbox_scheduled (available_at, lane, id, attempts, lost_leases, keyed, last_error)
        select j.due_at, j.lane, j.id, j.attempts, j.lost_leases, j.keyed, j.last_error
          from judged as j
         where not j.dead
           and j.due_at > v_now
    ), ready as (
        insert into outbox_ready (lane, id, attempts, lost_leases, keyed, last_error)
        select j.lane, j.id, j.attempts, j.lost_leases, j.keyed, j.last_error
          from judged as j
         where not j.dead
           and j.due_at <= v_now
    )
    select j.id,
           case when j.dead then 'dead' else 'retry' end,
           case when not j.dead then j.due_at end
      from judged as j;

    if cardinality(v_keyed) > 0 then
        perform outbox_settle_dead(array(
            select d.id from outbox_dead as d where d.id = any (v_keyed) and d.dead_at = v_now
        ));
        perform outbox_give_way(v_keyed);
    end if;
end;
$$;

comment on function outbox_end_attempts(bigint[], bigint[], text, interval, boolean, boolean) is
    'Internal. Ends the attempts of these (lease, id) pairs, whose rows the caller has locked, as failed or as lost: each event waits for its retry or is dead.';

revoke all on function outbox_end_attempts(bigint[], bigint[], text, interval, boolean, boolean) from public;
