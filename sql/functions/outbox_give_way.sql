create or replace function outbox_give_way(ids bigint[])
returns void
language plpgsql
volatile
set search_path from current
as $$
declare
    v_topics text[];
    v_keys text[];
begin
    -- A key whose turn somebody changes just now is passed over: its head goes first then, and the lower id next.
    select array_agg(k.topic), array_agg(k.ordering_key)
      into v_topics, v_keys
      from (
          select k.topic, k.ordering_key
            from outbox_events as e
           cross join lateral (
                     select q.topic, q.ordering_key
                       from outbox_turns as q
                      where q.topic = e.topic
                        and q.ordering_key = e.ordering_key
                        and q.head = e.id
                        and exists (
                                select
                                  from outbox_blocked as b
                                 where b.topic = e.topic and b.ordering_key = e.ordering_key and b.id < e.id
                                offset 0
                            )
                        for update skip locked
                 ) as k
           where e.id = any (outbox_give_way.ids)
      ) as k;
    if v_topics is not null then
        perform outbox_reseat(v_topics, v_keys);
    end if;
end;
$$;

comment on function outbox_give_way(bigint[]) is
    'Internal. These events wait again after an attempt: where an event with a lower id has entered their ordering key meanwhile, it goes first. Never waits.';

revoke all on function outbox_give_way(bigint[]) from public;
