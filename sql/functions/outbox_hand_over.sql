create or replace function outbox_hand_over(
    n integer,
    noted_by timestamptz
)
returns void
language plpgsql
volatile
set search_path from current
as $$
declare
    v_handovers bigint[];
    v_topics text[];
    v_keys text[];
begin
    -- A handover names a turn that has ended, so whoever finds the key still at that turn may vacate it.
    with due as materialized (
        select h.handover, k.topic, k.ordering_key, k.turn = h.turn as vacant
          from outbox_handovers as h
          join outbox_keys as k on k.topic = h.topic and k.ordering_key = h.ordering_key
         where h.noted_at <= outbox_hand_over.noted_by
         order by h.handover
         limit outbox_hand_over.n
           for update of h, k skip locked
    ), vacated as (
        update outbox_keys as k
           set head = null
          from due as d
         where k.topic = d.topic
           and k.ordering_key = d.ordering_key
           and d.vacant
        returning k.topic, k.ordering_key
    )
    select (select array_agg(d.handover) from due as d), array_agg(v.topic), array_agg(v.ordering_key)
      into v_handovers, v_topics, v_keys
      from vacated as v;

    -- A key without a row has no event left: its handovers are moot.
    delete from outbox_handovers as h
     where h.handover = any (v_handovers)
        or h.handover = any (array(
               select m.handover
                 from outbox_handovers as m
                where m.noted_at <= outbox_hand_over.noted_by
                  and not exists (select from outbox_keys as k where k.topic = m.topic and k.ordering_key = m.ordering_key)
                  for update of m skip locked
           ));
    if v_topics is not null then
        perform outbox_seat(v_topics, v_keys);
    end if;
end;
$$;

comment on function outbox_hand_over(integer, timestamptz) is
    'Internal. Does at most n handovers of ordering keys that were noted by then and whose row is free. Never waits.';

revoke all on function outbox_hand_over(integer, timestamptz) from public;
