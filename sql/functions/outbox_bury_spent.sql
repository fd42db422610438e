create or replace function outbox_bury_spent(
    ids bigint[],
    widely boolean
)
returns void
language plpgsql
volatile
set search_path from current
as $$
declare
    v_buried bigint[];
begin
    with lanes as materialized (
        select r.lane from outbox_ready as r where outbox_bury_spent.widely and r.id = any (outbox_bury_spent.ids)
        union
        select s.lane from outbox_scheduled as s where outbox_bury_spent.widely and s.id = any (outbox_bury_spent.ids)
    ), candidates as materialized (
        select w.id from unnest(outbox_bury_spent.ids) as w (id)
        union
        select q.id
          from lanes as l
         cross join lateral (
                   select r.id from outbox_ready as r where r.lane = l.lane order by r.xid, r.id limit 1000
               ) as q
        union
        select q.id
          from lanes as l
         cross join lateral (
                   select s.id from outbox_scheduled as s where s.lane = l.lane order by s.available_at, s.id limit 1000
               ) as q
    ), spent as materialized (
        select e.id
          from candidates as c
         cross join lateral (
                   select q.id, q.topic, q.max_attempts from outbox_events as q where q.id = c.id limit 1
               ) as e
         cross join outbox_defaults as d
          left join lateral (select q.max_attempts from outbox_topics as q where q.topic = e.topic limit 1) as t on true
         cross join lateral (
                   select r.attempts from outbox_ready as r where r.id = c.id
                   union all
                   select s.attempts from outbox_scheduled as s where s.id = c.id
               ) as w
         where w.attempts >= coalesce(e.max_attempts, t.max_attempts, d.max_attempts)
    ), ready as (
        delete from outbox_ready as r
         where r.ctid = any (array(
                   select c.ctid
                     from spent as s
                    cross join lateral (select q.ctid from outbox_ready as q where q.id = s.id for update skip locked) as c
               ))
        returning r.id, r.lane, r.attempts, r.lost_leases, r.last_error
    ), scheduled as (
        delete from outbox_scheduled as s
         where s.ctid = any (array(
                   select c.ctid
                     from spent as s
                    cross join lateral (select q.ctid from outbox_scheduled as q where q.id = s.id for update skip locked) as c
               ))
        returning s.id, s.lane, s.attempts, s.lost_leases, s.last_error
    ), buried as (
        insert into outbox_dead as d (id, lane, attempts, lost_leases, reason, last_error, dead_at)
        select w.id, w.lane, w.attempts, w.lost_leases, case when w.lost_leases > 0 then 'lost lease' else 'failed' end,
               w.last_error, clock_timestamp()
          from (table ready union all table scheduled) as w
        returning d.id
    )
    select array_agg(b.id) into v_buried from buried as b;
    perform outbox_settle_dead(v_buried);
end;
$$;

comment on function outbox_bury_spent(bigint[], boolean) is
    'Internal. Of these waiting events makes those dead whose attempts reach the limit as it is now; widely: and of the first thousand in each of their lanes. Never waits.';

revoke all on function outbox_bury_spent(bigint[], boolean) from public;
