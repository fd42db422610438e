create or replace function outbox_seat(
    topics text[],
    keys text[]
)
returns void
language plpgsql
volatile
set search_path from current
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_topics text[] := topics;
    v_keys text[] := keys;
begin
    -- First whoever visibly waits is let in, though a producer may hold the key's row. A key without anybody is taken
    -- down under the lock of that row, after a second look: it sees what the row's last holder committed. Where the row
    -- is held, its holder may be about to commit an event: a handover is left.
    -- A cancel deletes from outbox_blocked and outbox_dead without a lock on the key. Where it holds the next event, to
    -- pass it over would break the order if the cancel rolls back: a handover is left too.
    for v_pass in 1 .. 2 loop
        with vacant as materialized (
            select w.topic,
                   w.key,
                   coalesce(t.turn, 0) as turn,
                   (select min(b.id) from outbox_blocked as b where b.topic = w.topic and b.ordering_key = w.key) as blocked_id,
                   (select min(d.id) from outbox_dead as d where d.standing_topic = w.topic and d.standing_key = w.key) as standing_id
              from (select distinct u.topic, u.key from unnest(v_topics, v_keys) as u (topic, key)) as w
              left join lateral (
                       select q.head, q.turn from outbox_turns as q where q.topic = w.topic and q.ordering_key = w.key limit 1
                   ) as t on true
             where t.head is null
               and w.key is not null
        ), next as materialized (
            select v.*, v.standing_id is not null and v.standing_id < coalesce(v.blocked_id, v.standing_id + 1) as stands
              from vacant as v
        ), standing as materialized (
            select d.id
              from next as n
             cross join lateral (
                       select q.id from outbox_dead as q where q.id = n.standing_id for update skip locked
                   ) as d
             where n.stands
        ), moved as (
            delete from outbox_blocked as b
             where b.ctid = any (array(
                       select c.ctid
                         from next as n
                        cross join lateral (
                                  select q.ctid
                                    from outbox_blocked as q
                                   where q.topic = n.topic and q.ordering_key = n.key and q.id = n.blocked_id
                                     for update skip locked
                              ) as c
                        where not n.stands
                   ))
            returning b.*
        ), ready as (
            insert into outbox_ready (lane, id, attempts, lost_leases, keyed, last_error)
            select m.lane, m.id, m.attempts, m.lost_leases, true, m.last_error
              from moved as m
             where m.available_at is null or m.available_at <= v_now
        ), scheduled as (
            insert into outbox_scheduled (available_at, lane, id, attempts, lost_leases, keyed, last_error)
            select m.available_at, m.lane, m.id, m.attempts, m.lost_leases, true, m.last_error
              from moved as m
             where m.available_at > v_now
        ), seated as (
            insert into outbox_turns as t (topic, ordering_key, head, turn)
            select n.topic,
                   n.key,
                   case when n.stands then n.standing_id else n.blocked_id end,
                   nextval('outbox_turn_seq'::regclass)
              from next as n
             where n.standing_id in (select s.id from standing as s)
                or n.blocked_id in (select m.id from moved as m)
            on conflict on constraint outbox_turns_pkey do update
               set head = excluded.head,
                   turn = excluded.turn
        ), held as (
            insert into outbox_handovers (topic, ordering_key, turn)
            select n.topic, n.key, n.turn
              from next as n
             where case
                       when n.stands then n.standing_id not in (select s.id from standing as s)
                       when n.blocked_id is not null then n.blocked_id not in (select m.id from moved as m)
                       else false
                   end
        )
        select array_agg(n.topic), array_agg(n.key)
          into v_topics, v_keys
          from next as n
         where n.blocked_id is null
           and n.standing_id is null;
        exit when v_topics is null;

        if v_pass = 1 then
            with empty as materialized (
                select u.topic, u.key from unnest(v_topics, v_keys) as u (topic, key)
            ), locked as materialized (
                select k.topic, k.ordering_key
                  from empty as e
                 cross join lateral (
                           select q.topic, q.ordering_key
                             from outbox_keys as q
                            where q.topic = e.topic and q.ordering_key = e.key
                              for update skip locked
                       ) as k
            ), held as (
                insert into outbox_handovers (topic, ordering_key, turn)
                select t.topic, t.ordering_key, t.turn
                  from empty as e
                 cross join lateral (
                           select q.topic, q.ordering_key, q.turn
                             from outbox_turns as q
                            where q.topic = e.topic and q.ordering_key = e.key
                            limit 1
                       ) as t
                 where (e.topic, e.key) not in (select l.topic, l.ordering_key from locked as l)
            )
            select array_agg(l.topic), array_agg(l.ordering_key)
              into v_topics, v_keys
              from locked as l;
            exit when v_topics is null;
        else
            delete from outbox_turns as t
             where t.ctid = any (array(
                       select c.ctid
                         from unnest(v_topics, v_keys) as u (topic, key)
                        cross join lateral (
                                  select q.ctid from outbox_turns as q where q.topic = u.topic and q.ordering_key = u.key limit 1
                              ) as c
                   ));
            delete from outbox_keys as k
             where k.ctid = any (array(
                       select c.ctid
                         from unnest(v_topics, v_keys) as u (topic, key)
                        cross join lateral (
                                  select q.ctid from outbox_keys as q where q.topic = u.topic and q.ordering_key = u.key limit 1
                              ) as c
                   ));
        end if;
    end loop;
end;
$$;

comment on function outbox_seat(text[], text[]) is
    'Internal. For each of these keys that has no head: lets its next event in, or removes the key when there is none. The caller holds the keys'' rows in outbox_turns, or those in outbox_keys. Never waits.';

revoke all on function outbox_seat(text[], text[]) from public;
