create or replace function outbox_bury_spent(ids bigint[])
returns void
language plpgsql
volatile
set search_path from current
as $$
declare
    v_buried bigint[];
begin
    with ready as (
        delete from outbox_ready as r
         using outbox_events as e, outbox_policies as p
         where r.id = any (outbox_bury_spent.ids)
           and e.id = r.id
           and p.lane = r.lane
           and r.attempts >= coalesce(e.max_attempts, p.max_attempts)
        returning r.id, r.lane, r.attempts, r.lost_leases, r.last_error, p.suspect
    ), scheduled as (
        delete from outbox_scheduled as s
         using outbox_events as e, outbox_policies as p
         where s.id = any (outbox_bury_spent.ids)
           and e.id = s.id
           and p.lane = s.lane
           and s.attempts >= coalesce(e.max_attempts, p.max_attempts)
        returning s.id, s.lane, s.attempts, s.lost_leases, s.last_error, p.suspect
    ), buried as (
        insert into outbox_dead as d (id, lane, attempts, lost_leases, reason, last_error, dead_at)
        select w.id, w.lane, w.attempts, w.lost_leases, case when w.suspect then 'lost lease' else 'failed' end,
               w.last_error, clock_timestamp()
          from (table ready union all table scheduled) as w
        returning d.id
    )
    select array_agg(b.id) into v_buried from buried as b;
    perform outbox_settle_dead(v_buried);
end;
$$;

comment on function outbox_bury_spent(bigint[]) is
    'Internal. Of these waiting events, which the caller has locked, makes those dead whose attempts reach the limit as it is now.';

revoke all on function outbox_bury_spent(bigint[]) from public;
