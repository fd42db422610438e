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
begin
    -- The caller locked the keys in an earlier statement: what others had written under that lock is visible here.
    -- A cancel deletes from outbox_blocked without the key's lock. Where it holds the next event, letting in the one
    -- behind would break the order if the cancel rolls back: the key stays vacant and a handover is left.
    with vacant as (
        select k.topic,
               k.ordering_key,
               k.turn,
               (select min(b.id) from outbox_blocked as b where b.topic = k.topic and b.ordering_key = k.ordering_key) as blocked_id,
               (select min(d.id) from outbox_dead as d where d.standing_topic = k.topic and d.standing_key = k.ordering_key) as standing_id
          from outbox_keys as k
         where (k.topic, k.ordering_key) in (
                   select w.topic, w.key from unnest(outbox_seat.topics, outbox_seat.keys) as w (topic, key)
               )
           and k.head is null
    ), next as materialized (
        select v.*,
               v.standing_id is not null and v.standing_id < coalesce(v.blocked_id, v.standing_id + 1) as stands
          from vacant as v
    ), moved as (
        delete from outbox_blocked as b
         where b.ctid = any (array(
                   select c.ctid
                     from next as n
                     join outbox_blocked as c on c.topic = n.topic and c.ordering_key = n.ordering_key and c.id = n.blocked_id
                    where not n.stands
                      for update of c skip locked
               ))
        returning b.*
    ), ready as (
        insert into outbox_ready (lane, id, attempts, lost_leases, keyed, last_error)
        select m.lane, m.id, m.attempts, m.lost_leases, true, m.last_error
          from moved as m
         where m.available_at is null or m.available_at <= v_now
         order by m.id
    ), scheduled as (
        insert into outbox_scheduled (available_at, lane, id, attempts, lost_leases, keyed, last_error)
        select m.available_at, m.lane, m.id, m.attempts, m.lost_leases, true, m.last_error
          from moved as m
         where m.available_at > v_now
    ), seated as (
        update outbox_keys as k
           set head = case when n.stands then n.standing_id else n.blocked_id end,
               turn = nextval('outbox_turn_seq')
          from next as n
         where k.topic = n.topic
           and k.ordering_key = n.ordering_key
           and (n.stands or exists (select from moved as m where m.id = n.blocked_id))
    ), left_vacant as (
        insert into outbox_handovers (topic, ordering_key, turn)
        select n.topic, n.ordering_key, n.turn
          from next as n
         where not n.stands
           and n.blocked_id is not null
           and not exists (select from moved as m where m.id = n.blocked_id)
    )
    delete from outbox_keys as k
     using next as n
     where k.topic = n.topic
       and k.ordering_key = n.ordering_key
       and n.blocked_id is null
       and n.standing_id is null;
end;
$$;

comment on function outbox_seat(text[], text[]) is
    'Internal. For each of these keys that has no head: lets its next event in, or removes the key when there is none. The caller holds the keys'' locks.';

revoke all on function outbox_seat(text[], text[]) from public;
