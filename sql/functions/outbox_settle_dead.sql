create or replace function outbox_settle_dead(ids bigint[])
returns void
language plpgsql
volatile
set search_path from current
as $$
declare
    v_gone bigint[];
begin
    if ids is null then
        return;
    end if;
    with keyed as materialized (
        select d.id, e.topic, e.ordering_key, p.on_dead
          from outbox_dead as d
          join outbox_events as e on e.id = d.id
          join outbox_policies as p on p.lane = d.lane
         where d.id = any (outbox_settle_dead.ids)
           and e.ordering_key is not null
    ), standing as (
        update outbox_dead as d
           set standing_topic = k.topic,
               standing_key = k.ordering_key
          from keyed as k
         where d.id = k.id
           and k.on_dead = 'block'
    )
    select array_agg(k.id) into v_gone from keyed as k where k.on_dead = 'skip';
    if v_gone is not null then
        perform outbox_unblock(v_gone);
    end if;
end;
$$;

comment on function outbox_settle_dead(bigint[]) is
    'Internal. These events have just died: where one has an ordering key, the key stands or goes on, as the topic''s on_dead says.';

revoke all on function outbox_settle_dead(bigint[]) from public;
