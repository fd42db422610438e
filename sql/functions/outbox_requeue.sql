create or replace function outbox_requeue(
    id bigint,
    available_at timestamptz
)
returns boolean
language plpgsql
volatile
set search_path from current
as $$
declare
    v_due_at timestamptz := case when outbox_requeue.available_at > clock_timestamp() then outbox_requeue.available_at end;
    v_topic text;
    v_key text;
    v_priority integer;
    v_changed boolean;
begin
    -- The key's row comes before the log's row, as in an enqueue.
    select e.topic, e.ordering_key, e.priority
      into v_topic, v_key, v_priority
      from outbox_events as e
     where e.id = outbox_requeue.id;
    perform outbox_lock_keys(array[v_topic], array[v_key]);

    -- 'Done' is an absence, and the prune acts on it too: both lock the log's row and look in a later statement.
    perform from outbox_events as e where e.id = outbox_requeue.id for update;
    if not found then
        perform outbox_reseat(array[v_topic], array[v_key]);
        return null;
    end if;

    -- A row that somebody holds is looked for again, as in outbox_replace.
    for v_look in 1 .. 100 loop
        with from_scheduled as (
            delete from outbox_scheduled as s
             where s.ctid = any (array(
                       select c.ctid
                         from outbox_scheduled as c
                        where c.id = outbox_requeue.id
                          and c.attempts > 0
                          for update skip locked
                   ))
            returning s.lane, s.id, s.attempts, s.lost_leases, s.keyed, s.last_error
        ), from_ready as (
            delete from outbox_ready as r
             where r.ctid = any (array(
                       select c.ctid
                         from outbox_ready as c
                        where c.id = outbox_requeue.id
                          and c.attempts > 0
                          and v_due_at is not null
                          for update skip locked
                   ))
            returning r.lane, r.id, r.attempts, r.lost_leases, r.keyed, r.last_error
        ), moved as materialized (
            table from_scheduled union all table from_ready
        ), scheduled as (
            insert into outbox_scheduled (available_at, lane, id, attempts, lost_leases, keyed, last_error)
            select v_due_at, m.lane, m.id, m.attempts, m.lost_leases, m.keyed, m.last_error
              from moved as m
             where v_due_at is not null
        ), ready as (
            insert into outbox_ready (lane, id, attempts, lost_leases, keyed, last_error)
            select m.lane, m.id, m.attempts, m.lost_leases, m.keyed, m.last_error
              from moved as m
             where v_due_at is null
        )
        select exists (select from moved)
            or v_due_at is null
               and exists (select from outbox_ready as r where r.id = outbox_requeue.id and r.attempts > 0)
          into v_changed;
        exit when v_changed or current_setting('transaction_isolation') <> 'read committed';
        exit when not exists (select from outbox_ready as r where r.id = outbox_requeue.id and r.attempts > 0)
            and not exists (select from outbox_scheduled as s where s.id = outbox_requeue.id and s.attempts > 0);
        perform pg_sleep(0.01);
    end loop;

    if not v_changed
        and not exists (select from outbox_ready as r where r.id = outbox_requeue.id)
        and not exists (select from outbox_scheduled as s where s.id = outbox_requeue.id)
        and not exists (select from outbox_leases as l where l.id = outbox_requeue.id)
        and not exists (select from outbox_dead as d where d.id = outbox_requeue.id)
        and not exists (
            select from outbox_blocked as b where b.topic = v_topic and b.ordering_key = v_key and b.id = outbox_requeue.id
        )
    then
        v_changed := true;
        if v_key is not null then
            insert into outbox_blocked (topic, ordering_key, id, lane, available_at)
            values (v_topic, v_key, outbox_requeue.id, outbox_lane(v_topic, v_priority, false), v_due_at);
        elsif v_due_at is not null then
            insert into outbox_scheduled (available_at, lane, id)
            values (v_due_at, outbox_lane(v_topic, v_priority, false), outbox_requeue.id);
        else
            insert into outbox_ready (lane, id)
            values (outbox_lane(v_topic, v_priority, false), outbox_requeue.id);
        end if;
        -- Writes the row: a requeue with an older snapshot raises 40001 instead of delivering the event twice.
        update outbox_events as e
           set available_at = v_due_at
         where e.id = outbox_requeue.id;
    end if;
    if v_key is not null then
        perform outbox_reseat(array[v_topic], array[v_key]);
    end if;
    return v_changed;
end;
$$;

comment on function outbox_requeue(bigint, timestamptz) is
    'Internal. A retry becomes due at that time, a done event is delivered again; false when it is neither, null when it is gone.';

revoke all on function outbox_requeue(bigint, timestamptz) from public;
