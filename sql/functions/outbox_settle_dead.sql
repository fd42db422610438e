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
         cross join lateral (
                   select q.topic, q.ordering_key from outbox_events as q where q.id = d.id limit 1
               ) as e
         cross join lateral (select q.on_dead from outbox_policies as q where q.lane = d.lane limit 1) as p
         where d.id = any (outbox_settle_dead.ids)
           and e.ordering_key is not null
    ), standing as (
        update outbox_dead as d
           set (standing_topic, standing_key) = (
                   select q.topic, q.ordering_key from outbox_events as q where q.id = d.id
               )
         where d.id = any (array(select k.id from keyed as k where k.on_dead = 'block'))
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
