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
    perform
       from (
           select u.topic, u.key
             from unnest(outbox_reseat.topics, outbox_reseat.keys) as u (topic, key)
            group by u.topic, u.key
            order by u.topic collate "C", u.key collate "C"
       ) as u
      cross join lateral (
                select from outbox_turns as q where q.topic = u.topic and q.ordering_key = u.key for update
            ) as t;

    -- A head that a claim holds (locked, or already leased) stays: the lower id comes next after the one in flight.
    with overtaken as materialized (
        select t.ctid, t.topic, t.ordering_key, t.head
          from (
              select distinct u.topic, u.key from unnest(outbox_reseat.topics, outbox_reseat.keys) as u (topic, key)
          ) as u
         cross join lateral (
                   select q.ctid, q.topic, q.ordering_key, q.head
                     from outbox_turns as q
                    where q.topic = u.topic and q.ordering_key = u.key
                    limit 1
               ) as t
         where t.head > (select min(b.id) from outbox_blocked as b where b.topic = t.topic and b.ordering_key = t.ordering_key)
    ), from_ready as (
        delete from outbox_ready as r
         where r.ctid = any (array(
                   select c.ctid
                     from overtaken as o
                    cross join lateral (select q.ctid from outbox_ready as q where q.id = o.head for update skip locked) as c
               ))
        returning r.lane, r.id, r.attempts, r.lost_leases, null::timestamptz as available_at, r.last_error
    ), from_scheduled as (
        delete from outbox_scheduled as s
         where s.ctid = any (array(
                   select c.ctid
                     from overtaken as o
                    cross join lateral (select q.ctid from outbox_scheduled as q where q.id = o.head for update skip locked) as c
               ))
        returning s.lane, s.id, s.attempts, s.lost_leases, s.available_at, s.last_error
    ), back as (
        insert into outbox_blocked (topic, ordering_key, lane, id, attempts, lost_leases, available_at, last_error)
        select o.topic, o.ordering_key, w.lane, w.id, w.attempts, w.lost_leases, w.available_at, w.last_error
          from overtaken as o
          join (table from_ready union all table from_scheduled) as w on w.id = o.head
        returning id
    )
    update outbox_turns as t
       set head = null
     where t.ctid = any (array(
               select o.ctid
                 from overtaken as o
                where o.head in (select b.id from back as b)
                   or exists (select from outbox_dead as d where d.id = o.head offset 0)
           ));

    perform outbox_seat(outbox_reseat.topics, outbox_reseat.keys);
end;
$$;

comment on function outbox_reseat(text[], text[]) is
    'Internal. After an event with a lower id has entered one of these keys: a head that still waits gives its place back to the lowest id. Waits for who changes a turn just now.';

revoke all on function outbox_reseat(text[], text[]) from public;
