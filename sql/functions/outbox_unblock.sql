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
        select t.topic, t.ordering_key, t.turn
          from outbox_events as e
          join outbox_turns as t on t.topic = e.topic and t.ordering_key = e.ordering_key and t.head = e.id
         where e.id = any (outbox_unblock.ids)
    ), locked as materialized (
        select t.topic, t.ordering_key, t.turn
          from ended as e
          join outbox_turns as t on t.topic = e.topic and t.ordering_key = e.ordering_key and t.turn = e.turn
           for update of t skip locked
    ), held as (
        insert into outbox_handovers (topic, ordering_key, turn)
        select e.topic, e.ordering_key, e.turn
          from ended as e
         where e.turn not in (select l.turn from locked as l)
    ), vacated as (
        update outbox_turns as t
           set head = null
          from locked as l
         where t.topic = l.topic
           and t.ordering_key = l.ordering_key
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
