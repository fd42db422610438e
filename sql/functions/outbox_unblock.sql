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
    -- A producer holds its key's row until it commits. Workers never wait for it: the turn is left as a handover. The
    -- lock is taken here and the successor looked for in a later statement, which sees what was enqueued meanwhile.
    with ended as materialized (
        select k.topic, k.ordering_key, k.turn
          from outbox_events as e
          join outbox_keys as k on k.topic = e.topic and k.ordering_key = e.ordering_key and k.head = e.id
         where e.id = any (outbox_unblock.ids)
    ), locked as materialized (
        select k.topic, k.ordering_key
          from ended as e
          join outbox_keys as k on k.topic = e.topic and k.ordering_key = e.ordering_key and k.turn = e.turn
           for update of k skip locked
    ), handed_over as (
        insert into outbox_handovers (topic, ordering_key, turn)
        select e.topic, e.ordering_key, e.turn
          from ended as e
         where not exists (select from locked as l where l.topic = e.topic and l.ordering_key = e.ordering_key)
    ), vacated as (
        update outbox_keys as k
           set head = null
          from locked as l
         where k.topic = l.topic
           and k.ordering_key = l.ordering_key
        returning k.topic, k.ordering_key
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
