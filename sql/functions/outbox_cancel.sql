create or replace function outbox_cancel(ids bigint[])
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
begin
    if ids is null then
        raise exception using
            errcode = 'null_value_not_allowed',
            message = 'ids is null',
            hint = 'Give the ids of events that wait or are dead.';
    end if;
    perform outbox_check_ids(ids);

    -- Whoever acts on a log row (requeue, replace, prune) locks it first, so its waiting row is looked for in a later
    -- statement. What somebody holds right now, row or log row, counts as in flight and is left.
    v_ids := array(
        select e.id from outbox_events as e where e.id = any (outbox_cancel.ids) order by e.id for update skip locked
    );
    with ready as (
        delete from outbox_ready as r
         where r.ctid = any (array(
                   select c.ctid from outbox_ready as c where c.id = any (v_ids) for update skip locked
               ))
        returning r.id
    ), scheduled as (
        delete from outbox_scheduled as s
         where s.ctid = any (array(
                   select c.ctid from outbox_scheduled as c where c.id = any (v_ids) for update skip locked
               ))
        returning s.id
    ), blocked as (
        delete from outbox_blocked as b
         where b.ctid = any (array(
                   select c.ctid
                     from outbox_events as e
                    cross join lateral (
                              select q.ctid
                                from outbox_blocked as q
                               where q.topic = e.topic and q.ordering_key = e.ordering_key and q.id = e.id
                                 for update skip locked
                          ) as c
                    where e.id = any (v_ids)
               ))
        returning b.id
    ), dead as (
        delete from outbox_dead as d
         where d.ctid = any (array(
                   select c.ctid from outbox_dead as c where c.id = any (v_ids) for update skip locked
               ))
        returning d.id
    )
    select array_agg(x.id)
      into v_ids
      from (table ready union all table scheduled union all table blocked union all table dead) as x;
    if v_ids is not null then
        perform outbox_unblock(v_ids);
        delete from outbox_events as e where e.id = any (v_ids);
    end if;
    return query select unnest(v_ids);
end;
$$;

comment on function outbox_cancel(bigint[]) is
    'Removes events that wait or are dead, their log rows included: the dedupe key is free again and a keyed successor moves up. Never waits: what is in flight, held by somebody right now, or done is left and missing from the answer. Raises 22004 for null ids or a null among them.';

revoke all on function outbox_cancel(bigint[]) from public;
