create or replace function outbox_prune(n integer)
returns integer
language plpgsql
volatile
set search_path from current
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_shortest interval;
    v_start bigint := (select q.last_value from outbox_prune_seq as q);
    v_from bigint := v_start;
    v_last bigint;
    v_young boolean;
    v_candidates bigint[];
    v_ids bigint[];
    v_full boolean;
    v_pruned integer;
    v_total integer := 0;
begin
    select least(min(coalesce(t.retention, d.retention)), min(d.retention))
      into v_shortest
      from outbox_defaults as d
      left join outbox_topics as t on true;

    -- A round goes through the log by id, ten events examined for one that may be removed, until it meets one that is
    -- too young for every topic; then it begins anew, within this call if this call did not begin the round.
    loop
        select max(w.id),
               coalesce(bool_or(w.created_at > v_now - v_shortest), true),
               array_agg(w.id) filter (where w.created_at <= v_now - w.retention)
          into v_last, v_young, v_candidates
          from (
              select e.id, e.created_at, coalesce(t.retention, d.retention) as retention
                from outbox_events as e
               cross join outbox_defaults as d
                left join outbox_topics as t on t.topic = e.topic
               where e.id > v_from
               order by e.id
               limit n * 10
          ) as w;

        if v_candidates is not null then
            -- 'Done' is an absence, and a requeue ends it: both lock the log's row and look in a later statement.
            v_ids := array(
                select e.id
                  from outbox_events as e
                 where e.id = any (v_candidates)
                   and not exists (select from outbox_ready as r where r.id = e.id offset 0)
                   and not exists (select from outbox_scheduled as s where s.id = e.id offset 0)
                   and not exists (select from outbox_dead as d where d.id = e.id offset 0)
                   and not exists (
                           select from outbox_blocked as b
                            where b.topic = e.topic and b.ordering_key = e.ordering_key and b.id = e.id
                           offset 0
                       )
                   and e.id not in (select l.id from outbox_leases as l)
                 order by e.id
                 limit n - v_total
                   for update skip locked
            );
            v_full := cardinality(v_ids) = n - v_total;
            delete from outbox_events as e
             where e.id = any (v_ids)
               and not exists (select from outbox_ready as r where r.id = e.id offset 0)
               and not exists (select from outbox_scheduled as s where s.id = e.id offset 0)
               and not exists (select from outbox_dead as d where d.id = e.id offset 0)
               and not exists (
                       select from outbox_blocked as b
                        where b.topic = e.topic and b.ordering_key = e.ordering_key and b.id = e.id
                       offset 0
                   )
               and e.id not in (select l.id from outbox_leases as l);
            get diagnostics v_pruned = row_count;
            v_total := v_total + v_pruned;
            if v_full then
                v_from := v_ids[cardinality(v_ids)];
                exit;
            end if;
        end if;
        v_from := case when v_young then 0 else v_last end;
        exit when not v_young or v_start = 0;
        v_start := 0;
    end loop;
    perform setval('outbox_prune_seq'::regclass, v_from);
    return v_total;
end;
$$;

comment on function outbox_prune(integer) is
    'Internal. Removes at most n done events that are past their topic''s retention; answers how many. Never waits.';

revoke all on function outbox_prune(integer) from public;
