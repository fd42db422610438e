create or replace function outbox_reap(n integer default 1000)
returns table (
    expired integer,
    dead integer,
    promoted integer,
    pruned integer
)
language plpgsql
volatile
security definer
rows 1
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    perform outbox_check_integer('n', n, 1, 100000);

    -- First, while the transaction has written nothing: some workers always have an xid when they claim. Every head
    -- but the last of its lane has served; a head is never lowered.
    perform outbox_move_heads();
    delete from outbox_heads as h
     where h.ctid = any (array(
               select c.ctid
                 from outbox_lanes as l
                cross join lateral (
                          select q.ctid
                            from outbox_heads as q
                           where q.lane = l.lane
                             and q.made = q.stamp
                           order by q.xid desc, q.id desc, q.made desc
                          offset 1
                      ) as o
                 join outbox_heads as c on c.ctid = o.ctid
                  for update of c skip locked
           ));

    select r.expired, r.dead into expired, dead from outbox_reclaim(n, v_now) as r;
    perform outbox_hand_over(n, v_now);

    with due as (
        delete from outbox_scheduled as s
         where s.ctid = any (array(
                   select c.ctid
                     from outbox_lanes as l
                    cross join lateral (
                              select q.ctid
                                from outbox_scheduled as q
                               where q.lane = l.lane
                                 and q.available_at <= v_now
                               order by q.available_at, q.id
                               limit outbox_reap.n
                                 for update skip locked
                          ) as c
                    limit outbox_reap.n
               ))
        returning s.*
    )
    insert into outbox_ready (lane, id, attempts, lost_leases, keyed, last_error)
    select d.lane, d.id, d.attempts, d.lost_leases, d.keyed, d.last_error
      from due as d;
    get diagnostics promoted = row_count;

    pruned := outbox_prune(n);
    return next;
end;
$$;

comment on function outbox_reap(integer) is
    'Bounded housekeeping, at most n (1 to 100,000) of each kind: takes back events whose lease has expired (expired; of these, dead), makes due events ready (promoted), removes done events past their topic''s retention (pruned). Never waits; safe at any rate, by any number of callers. Raises 22023 for an n out of bounds.';

revoke all on function outbox_reap(integer) from public;
