create or replace function outbox_route()
returns trigger
language plpgsql
volatile
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_left bigint;
    v_notify boolean;
    v_topics text[];
    v_keys text[];
    v_reseat boolean;
begin
    -- The common event (no key, no time, a lane that exists) is routed by this statement alone.
    with routed as (
        insert into outbox_ready (lane, id)
        select l.lane, n.id
          from new_events as n
         cross join lateral (
                   select min(l.lane) as lane
                     from outbox_lanes as l
                    where l.topic = n.topic and l.priority = n.priority and not l.suspect
               ) as l
         where n.ordering_key is null
           and n.available_at is null
           and l.lane is not null
        returning id
    )
    select (select count(*) from new_events) - (select count(*) from routed),
           exists (
               select from outbox_topics as t where t.notify and t.topic in (select n.topic from new_events as n)
           )
      into v_left, v_notify;

    if v_left > 0 then
        perform outbox_lane(n.topic, n.priority, false)
           from (select distinct n.topic, n.priority from new_events as n) as n;

        with unrouted as materialized (
            select n.id, n.available_at, l.lane
              from new_events as n
             cross join lateral (
                       select min(l.lane) as lane
                         from outbox_lanes as l
                        where l.topic = n.topic and l.priority = n.priority and not l.suspect
                   ) as l
             where n.ordering_key is null
               and not exists (select from outbox_ready as r where r.id = n.id offset 0)
        ), scheduled as (
            insert into outbox_scheduled (available_at, lane, id)
            select u.available_at, u.lane, u.id from unrouted as u where u.available_at > v_now
        )
        insert into outbox_ready (lane, id)
        select u.lane, u.id from unrouted as u where u.available_at is null or u.available_at <= v_now;

        select array_agg(k.topic), array_agg(k.ordering_key)
          into v_topics, v_keys
          from (select distinct n.topic, n.ordering_key from new_events as n where n.ordering_key is not null) as k;
    end if;

    if v_topics is not null then
        perform outbox_lock_keys(v_topics, v_keys);

        -- Later statements than the lock: they see what the key's earlier holders committed. A key without a turn has
        -- nobody waiting.
        insert into outbox_turns (topic, ordering_key, head, turn)
        select a.topic, a.ordering_key, a.first_id, nextval('outbox_turn_seq'::regclass)
          from (
              select n.topic, n.ordering_key, min(n.id) as first_id
                from new_events as n
               where n.ordering_key is not null
               group by n.topic, n.ordering_key
          ) as a
         where not exists (
                   select from outbox_turns as t where t.topic = a.topic and t.ordering_key = a.ordering_key offset 0
               );

        with placed as materialized (
            select n.id, n.topic, n.ordering_key, n.available_at, t.head, l.lane
              from new_events as n
             cross join lateral (
                       select t.head
                         from outbox_turns as t
                        where t.topic = n.topic and t.ordering_key = n.ordering_key
                        limit 1
                   ) as t
             cross join lateral (
                       select min(l.lane) as lane
                         from outbox_lanes as l
                        where l.topic = n.topic and l.priority = n.priority and not l.suspect
                   ) as l
             where n.ordering_key is not null
        ), ready as (
            insert into outbox_ready (lane, id, keyed)
            select p.lane, p.id, true
              from placed as p
             where p.id = p.head and (p.available_at is null or p.available_at <= v_now)
        ), scheduled as (
            insert into outbox_scheduled (available_at, lane, id, keyed)
            select p.available_at, p.lane, p.id, true
              from placed as p
             where p.id = p.head and p.available_at > v_now
        ), blocked as (
            insert into outbox_blocked (topic, ordering_key, id, lane, available_at)
            select p.topic, p.ordering_key, p.id, p.lane, p.available_at
              from placed as p
             where p.id is distinct from p.head
        )
        select exists (select from placed as p where p.head is null or p.id < p.head)
          into v_reseat;
        if v_reseat then
            perform outbox_reseat(v_topics, v_keys);
        end if;
    end if;

    if v_notify then
        perform pg_notify(outbox_channel(), '');
    end if;
    return null;
end;
$$;

comment on function outbox_route() is
    'Internal. Trigger of outbox_events: puts each new event where it waits, in the inserting statement''s transaction.';

revoke all on function outbox_route() from public;

create or replace trigger outbox_events_route
after insert on outbox_events
referencing new table as new_events
for each statement execute function outbox_route();

comment on trigger outbox_events_route on outbox_events is
    'Routes new events; once a statement, whatever the number of rows.';
