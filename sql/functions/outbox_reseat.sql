create or replace function outbox_reseat(
    topics text[],
    keys text[]
)
returns void
language plpgsql
volatile
set search_path from current
as $$
begin
    -- A head that a claim holds (locked, or already leased) stays: the lower id comes next after the one in flight.
    with overtaken as materialized (
        select k.topic, k.ordering_key, k.head
          from outbox_keys as k
         where (k.topic, k.ordering_key) in (
                   select w.topic, w.key from unnest(outbox_reseat.topics, outbox_reseat.keys) as w (topic, key)
               )
           and k.head > (select min(b.id) from outbox_blocked as b where b.topic = k.topic and b.ordering_key = k.ordering_key)
    ), from_ready as (
        delete from outbox_ready as r
         where r.ctid = any (array(
                   select c.ctid from overtaken as o join outbox_ready as c on c.id = o.head for update of c skip locked
               ))
        returning r.lane, r.id, r.attempts, r.lost_leases, null::timestamptz as available_at, r.last_error
    ), from_scheduled as (
        delete from outbox_scheduled as s
         where s.ctid = any (array(
                   select c.ctid from overtaken as o join outbox_scheduled as c on c.id = o.head for update of c skip locked
               ))
        returning s.lane, s.id, s.attempts, s.lost_leases, s.available_at, s.last_error
    ), back as (
        insert into outbox_blocked (topic, ordering_key, lane, id, attempts, lost_leases, available_at, last_error)
        select o.topic, o.ordering_key, w.lane, w.id, w.attempts, w.lost_leases, w.available_at, w.last_error
          from (table from_ready union all table from_scheduled) as w
          join overtaken as o on o.head = w.id
        returning id
    )
    update outbox_keys as k
       set head = null
      from overtaken as o
     where k.topic = o.topic
       and k.ordering_key = o.ordering_key
       and (exists (select from back as b where b.id = o.head)
            or exists (select from outbox_dead as d where d.id = o.head));

    perform outbox_seat(outbox_reseat.topics, outbox_reseat.keys);
end;
$$;

comment on function outbox_reseat(text[], text[]) is
    'Internal. After an event with a lower id has entered one of these keys: a head that still waits gives its place back to the lowest id. The caller holds the keys'' locks.';

revoke all on function outbox_reseat(text[], text[]) from public;
