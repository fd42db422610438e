create or replace function outbox_hand_over(
    n integer,
    noted_by timestamptz,
    topics text[] default null
)
returns void
language plpgsql
volatile
set search_path from current
as $$
declare
    v_handovers bigint[];
    v_more bigint[];
    v_topics text[];
    v_keys text[];
begin
    -- Those that have somebody waiting need the turn and the next event's row, the others the key's row: while somebody
    -- else holds what is needed, they would only be left anew. What is most often held is locked first: the locks before
    -- one that is skipped stay until the transaction ends.
    v_handovers := array(
        select h.handover
          from outbox_handovers as h
          join outbox_turns as t on t.topic = h.topic and t.ordering_key = h.ordering_key
          join outbox_blocked as b on b.topic = h.topic and b.ordering_key = h.ordering_key
           and b.id = (select min(q.id) from outbox_blocked as q where q.topic = h.topic and q.ordering_key = h.ordering_key)
         where h.noted_at <= outbox_hand_over.noted_by
           and (outbox_hand_over.topics is null or h.topic = any (outbox_hand_over.topics))
         order by h.handover
         limit outbox_hand_over.n
           for update of b, t, h skip locked
    );
    v_more := array(
        select h.handover
          from outbox_handovers as h
          join outbox_turns as t on t.topic = h.topic and t.ordering_key = h.ordering_key
          join outbox_keys as k on k.topic = h.topic and k.ordering_key = h.ordering_key
         where h.noted_at <= outbox_hand_over.noted_by
           and (outbox_hand_over.topics is null or h.topic = any (outbox_hand_over.topics))
           and h.handover <> all (v_handovers)
           and not exists (select from outbox_blocked as b where b.topic = h.topic and b.ordering_key = h.ordering_key offset 0)
         order by h.handover
         limit outbox_hand_over.n
           for update of k, t, h skip locked
    );
    -- A handover names a turn that has ended: who finds the key still at it may vacate it. A key without a row has no
    -- event left, and another turn has been passed on already: such handovers are moot.
    with vacated as (
        update outbox_turns as t
           set head = null
          from outbox_handovers as h
         where h.handover = any (v_handovers || v_more)
           and t.topic = h.topic
           and t.ordering_key = h.ordering_key
           and t.turn = h.turn
        returning t.topic, t.ordering_key
    )
    select array_agg(v.topic), array_agg(v.ordering_key)
      into v_topics, v_keys
      from vacated as v;
    delete from outbox_handovers as h
     where h.handover = any (v_handovers || v_more || array(
               select m.handover
                 from outbox_handovers as m
                where m.noted_at <= outbox_hand_over.noted_by
                  and not exists (select from outbox_turns as t where t.topic = m.topic and t.ordering_key = m.ordering_key offset 0)
                order by m.handover
                limit outbox_hand_over.n
                  for update of m skip locked
           ));
    if v_topics is not null then
        perform outbox_seat(v_topics, v_keys);
    end if;
end;
$$;

comment on function outbox_hand_over(integer, timestamptz, text[]) is
    'Internal. Passes on turns that were left as handovers by then, at most n of each kind; topics null: of all. Never waits.';

revoke all on function outbox_hand_over(integer, timestamptz, text[]) from public;
