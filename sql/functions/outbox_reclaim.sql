create or replace function outbox_reclaim(
    n integer,
    expired_by timestamptz,
    topics text[] default null
)
returns table (
    expired integer,
    dead integer
)
language plpgsql
volatile
rows 1
set search_path from current
as $$
declare
    v_leases bigint[];
    v_ids bigint[];
begin
    -- The lock re-checks the expiry: a heartbeat that came first keeps its lease. Who holds the row is not waited for.
    select array_agg(x.lease), array_agg(x.id)
      into v_leases, v_ids
      from (
          select l.lease, l.id
            from outbox_leases as l
           where l.expires_at <= outbox_reclaim.expired_by
             and (
                 outbox_reclaim.topics is null
                 or exists (select from outbox_lanes as q where q.lane = l.lane and q.topic = any (outbox_reclaim.topics))
             )
           order by l.expires_at
           limit outbox_reclaim.n
             for update skip locked
      ) as x;
    return query
    select count(*)::integer, count(*) filter (where f.status = 'dead')::integer
      from outbox_end_attempts(v_leases, v_ids, null, null, false, true) as f;
end;
$$;

comment on function outbox_reclaim(integer, timestamptz, text[]) is
    'Internal. Takes back at most n events whose lease had expired by then (topics null: of all); answers how many, and how many of them are dead. Never waits.';

revoke all on function outbox_reclaim(integer, timestamptz, text[]) from public;
