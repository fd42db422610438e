create or replace function outbox_redrive(
    ids bigint[] default null,
    topic text default null,
    n integer default 1000
)
returns setof bigint
language plpgsql
volatile
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_ids bigint[];
    v_topics text[];
    v_keys text[];
begin
    if ids is null and topic is null then
        raise exception using
            errcode = 'null_value_not_allowed',
            message = 'ids and topic are null',
            hint = 'Give the ids of dead letters, or a topic to redrive n of its dead letters.';
    end if;
    perform outbox_check_ids(ids);
    if topic is not null then
        perform outbox_check_text('topic', topic, 200);
    end if;
    perform outbox_check_integer('n', n, 1, 10000);

    v_ids := array(
        select d.id
          from outbox_dead as d
          join outbox_lanes as l on l.lane = d.lane
         where (outbox_redrive.ids is null or d.id = any (outbox_redrive.ids))
           and (outbox_redrive.topic is null or l.topic = outbox_redrive.topic)
         order by d.id
         limit outbox_redrive.n
           for update of d skip locked
    );
    select array_agg(e.topic), array_agg(e.ordering_key)
      into v_topics, v_keys
      from outbox_events as e
     where e.id = any (v_ids)
       and e.ordering_key is not null;
    if v_keys is not null then
        perform outbox_lock_keys(v_topics, v_keys);
        perform
           from (
               select u.topic, u.key
                 from unnest(v_topics, v_keys) as u (topic, key)
                group by u.topic, u.key
                order by u.topic collate "C", u.key collate "C"
           ) as u
          cross join lateral (
                    select from outbox_turns as q where q.topic = u.topic and q.ordering_key = u.key for update
                ) as t;
    end if;

    -- A keyed event enters behind its key's row, at the place of its id.
    with redriven as (
        delete from outbox_dead as d
         where d.id = any (v_ids)
        returning d.id, d.last_error
    ), placed as materialized (
        select r.id, r.last_error, e.topic, e.ordering_key, outbox_lane(e.topic, e.priority, false) as lane
          from redriven as r
         cross join lateral (
                   select q.topic, q.ordering_key, q.priority from outbox_events as q where q.id = r.id limit 1
               ) as e
    ), blocked as (
        insert into outbox_blocked (topic, ordering_key, id, lane, last_error)
        select p.topic, p.ordering_key, p.id, p.lane, p.last_error
          from placed as p
         where p.ordering_key is not null
    ), vacated as (
        update outbox_turns as t
           set head = null
         where t.ctid = any (array(
                   select c.ctid
                     from placed as p
                    cross join lateral (
                              select q.ctid
                                from outbox_turns as q
                               where q.topic = p.topic and q.ordering_key = p.ordering_key and q.head = p.id
                               limit 1
                          ) as c
               ))
    )
    insert into outbox_ready (lane, id, last_error)
    select p.lane, p.id, p.last_error
      from placed as p
     where p.ordering_key is null;
    if v_keys is not null then
        perform outbox_reseat(v_topics, v_keys);
    end if;
    return query select unnest(v_ids);
end;
$$;

comment on function outbox_redrive(bigint[], text, integer) is
    'Puts dead letters back to pending, their attempts from 0: those with these ids, those of this topic, or both, at most n (1 to 10,000), lowest ids first. Answers their ids. Raises 22004 when neither is given or for a null among the ids, 22023 for an n out of bounds.';

revoke all on function outbox_redrive(bigint[], text, integer) from public;
