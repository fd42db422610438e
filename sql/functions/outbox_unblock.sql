create or replace function outbox_unblock(ids bigint[])
returns void
language plpgsql
volatile
set search_path from current
as $$
declare
    v_topics text[];
    v_keys text[];
begin
    -- Whoever waits is looked for in a later statement than the lock.
    with ended as materialized (
        select t.topic, t.ordering_key, t.head, t.turn
          from outbox_events as e
         cross join lateral (
                   select q.topic, q.ordering_key, q.head, q.turn
                     from outbox_turns as q
                    where q.topic = e.topic and q.ordering_key = e.ordering_key and q.head = e.id
                    limit 1
               ) as t
         where e.id = any (outbox_unblock.ids)
    ), locked as materialized (
        select t.ctid, e.turn
          from ended as e
         cross join lateral (
                   select q.ctid
                     from outbox_turns as q
                    where q.topic = e.topic and q.ordering_key = e.ordering_key and q.turn = e.turn and q.head = e.head
                      for update skip locked
               ) as t
    ), held as (
        insert into outbox_handovers (topic, ordering_key, turn)
        select e.topic, e.ordering_key, e.turn
          from ended as e
         where e.turn not in (select l.turn from locked as l)
    ), vacated as (
        update outbox_turns as t
           set head = null
         where t.ctid = any (array(select l.ctid from locked as l))
        returning t.topic, t.ordering_key
    )
    select array_agg(v.topic), array_agg(v.ordering_key)
      into v_topics, v_keys
      from vacated as v;
    if v_topics is not null then
        perform outbox_seat(v_topics, v_keys);
    end if;
end;
$$;

comment on function outbox_unblock(bigint[]) is
    'Internal. These events have ended: where one was the head of its ordering key, the next is let in. Never waits. To be called while their log rows are still there.';

revoke all on function outbox_unblock(bigint[]) from public;
