create or replace function outbox_enqueue_many(events jsonb)
returns table (
    ordinality integer,
    id bigint,
    created boolean,
    changed boolean
)
language plpgsql
volatile
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    c_known constant text[] := array[
        'topic', 'payload', 'dedupe_key', 'ordering_key', 'headers', 'priority', 'available_at', 'max_attempts', 'on_duplicate'
    ];
    v_now timestamptz := clock_timestamp();
    v_count integer;
    v_place bigint;
    v_fault text;
    v_code text;
    v_text text;
    v_ids bigint[];
    v_created bigint[];
    v_answers bigint[];
    v_topics text[];
    v_keys text[];
    v_event jsonb;
    v_answer record;
    v_was_created boolean[];
    v_was_changed boolean[];
begin
    if events is null then
        raise exception using
            errcode = 'null_value_not_allowed',
            message = 'events is null',
            hint = 'Give a JSON array of events; an empty one does nothing.';
    end if;
    if jsonb_typeof(events) <> 'array' then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = format('events is a JSON %s', jsonb_typeof(events)),
            hint = 'Give a JSON array of events.';
    end if;
    v_count := jsonb_array_length(events);
    if v_count > 10000 then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = format('events has %s elements', v_count),
            hint = 'Give at most 10,000 at a time; several calls in one transaction are still all or nothing.';
    end if;

    -- First the shape of each element, so that no cast below can fail without naming its position.
    select f.place, f.fault, f.code
      into v_place, v_fault, v_code
      from (
          select e.place,
                 case
                     when jsonb_typeof(e.event) <> 'object'
                         then format('is a JSON %s, not an object', jsonb_typeof(e.event))
                     when e.event - c_known <> '{}'
                         then (
                             select format('has an unknown key "%s"', left(k.key, 60))
                               from jsonb_object_keys(e.event - c_known) as k (key)
                              limit 1
                         )
                     when not e.event ? 'payload' then 'has no payload'
                     when coalesce(jsonb_typeof(e.event -> 'topic'), 'null') = 'null' then 'has no topic'
                     else (
                         select format('has %s as %s', left(t.value::text, 60), t.key)
                           from jsonb_each(e.event - array['payload', 'headers']) as t (key, value)
                          where case
                                    when jsonb_typeof(t.value) = 'null' then false
                                    when t.key not in ('priority', 'max_attempts') then jsonb_typeof(t.value) <> 'string'
                                    when jsonb_typeof(t.value) <> 'number' then true
                                    else abs(t.value::numeric) > 2147483647 or t.value::numeric % 1 <> 0
                                end
                          limit 1
                     )
                 end as fault,
                 case
                     when jsonb_typeof(e.event) = 'object'
                         and e.event - c_known = '{}'
                         and (not e.event ? 'payload' or coalesce(jsonb_typeof(e.event -> 'topic'), 'null') = 'null')
                         then 'null_value_not_allowed'
                     else 'invalid_parameter_value'
                 end as code
            from jsonb_array_elements(events) with ordinality as e (event, place)
      ) as f
     where f.fault is not null
     order by f.place
     limit 1;
    if v_fault is not null then
        raise exception using
            errcode = v_code,
            message = format('event %s %s', v_place, v_fault),
            hint = 'An event is an object with topic and payload, and may have dedupe_key, ordering_key, headers, priority (integer), available_at, max_attempts (integer) and on_duplicate.';
    end if;

    if jsonb_path_exists(events, '$[*].available_at ? (@ != null)') then
        begin
            for v_place, v_text in
                select e.place, e.event ->> 'available_at'
                  from jsonb_array_elements(events) with ordinality as e (event, place)
                 where e.event ->> 'available_at' is not null
            loop
                perform v_text::timestamptz;
            end loop;
        exception when data_exception then
            raise exception using
                errcode = 'invalid_parameter_value',
                message = format('event %s has "%s" as available_at', v_place, left(v_text, 60)),
                hint = 'Give a time with its zone, such as 2030-01-31T12:00:00Z.';
        end;
    end if;

    perform outbox_check_event(
                e.event ->> 'topic',
                e.event -> 'payload',
                e.event ->> 'dedupe_key',
                e.event ->> 'ordering_key',
                coalesce((e.event ->> 'priority')::numeric::integer, 0),
                (e.event ->> 'available_at')::timestamptz,
                (e.event ->> 'max_attempts')::numeric::integer,
                coalesce(e.event ->> 'on_duplicate', 'ignore'),
                format('event %s: ', e.place)
            )
       from jsonb_array_elements(events) with ordinality as e (event, place);

    -- Ordering keys are locked before the ids are drawn (those of first events that a requeue may need as well), and
    -- dedupe keys inserted in one order: statements that enqueue several keys cannot deadlock with each other.
    select array_agg(k.topic), array_agg(k.key)
      into v_topics, v_keys
      from (
          select e.event ->> 'topic', d.ordering_key
            from jsonb_array_elements(events) as e (event)
            left join lateral (
                     select q.ordering_key
                       from outbox_events as q
                      where q.topic = e.event ->> 'topic'
                        and q.dedupe_key = e.event ->> 'dedupe_key'
                        and e.event ->> 'on_duplicate' = 'requeue'
                      limit 1
                 ) as d on true
          union
          select e.event ->> 'topic', e.event ->> 'ordering_key'
            from jsonb_array_elements(events) as e (event)
      ) as k (topic, key)
     where k.key is not null;
    if v_keys is not null then
        perform outbox_lock_keys(v_topics, v_keys);
    end if;
    perform outbox_check_sequence();
    v_ids := array(select nextval('outbox_events_id_seq'::regclass) from generate_series(1, v_count));
    with made as (
        insert into outbox_events as e
               (id, topic, payload, dedupe_key, ordering_key, headers, priority, available_at, max_attempts)
        overriding system value
        select v_ids[e.place],
               e.event ->> 'topic',
               e.event -> 'payload',
               e.event ->> 'dedupe_key',
               e.event ->> 'ordering_key',
               coalesce(nullif(e.event -> 'headers', 'null'), '{}'),
               coalesce((e.event ->> 'priority')::numeric::integer, 0),
               case
                   when (e.event ->> 'available_at')::timestamptz > v_now then (e.event ->> 'available_at')::timestamptz
               end,
               (e.event ->> 'max_attempts')::numeric::integer
          from jsonb_array_elements(events) with ordinality as e (event, place)
         order by e.event ->> 'topic' collate "C", e.event ->> 'dedupe_key' collate "C", e.place
        on conflict (topic, dedupe_key) where dedupe_key is not null do nothing
        returning e.id
    )
    select array_agg(m.id) into v_created from made as m;

    if cardinality(v_created) = v_count then
        return query
        select i.place::integer, i.id, true, true
          from unnest(v_ids) with ordinality as i (id, place);
        return;
    end if;

    -- Duplicates, of earlier events or within the array: those to be ignored in one statement; the others, and those
    -- whose first event was removed meanwhile, one by one, in one order of the keys and then in the array's.
    if v_keys is not null then
        perform outbox_seat(v_topics, v_keys);
    end if;
    select array_agg(coalesce(c.id, d.id) order by i.place),
           array_agg(c.id is not null order by i.place)
      into v_answers, v_was_created
      from unnest(v_ids) with ordinality as i (id, place)
      left join unnest(v_created) as c (id) on c.id = i.id
      left join lateral (
               select q.id
                 from outbox_events as q
                where q.topic = events -> (i.place - 1)::integer ->> 'topic'
                  and q.dedupe_key = events -> (i.place - 1)::integer ->> 'dedupe_key'
                  and coalesce(events -> (i.place - 1)::integer ->> 'on_duplicate', 'ignore') = 'ignore'
                limit 1
           ) as d on c.id is null;
    v_was_changed := v_was_created;
    for v_place, v_event in
        select e.place, e.event
          from jsonb_array_elements(events) with ordinality as e (event, place)
         where v_answers[e.place] is null
         order by e.event ->> 'topic' collate "C", e.event ->> 'dedupe_key' collate "C", e.place
    loop
        select d.id, d.created, d.changed
          into v_answer
          from outbox_enqueue(
                   v_event ->> 'topic',
                   v_event -> 'payload',
                   v_event ->> 'dedupe_key',
                   v_event ->> 'ordering_key',
                   nullif(v_event -> 'headers', 'null'),
                   (v_event ->> 'priority')::numeric::integer,
                   (v_event ->> 'available_at')::timestamptz,
                   (v_event ->> 'max_attempts')::numeric::integer,
                   v_event ->> 'on_duplicate'
               ) as d;
        v_answers[v_place] := v_answer.id;
        v_was_created[v_place] := v_answer.created;
        v_was_changed[v_place] := v_answer.changed;
    end loop;
    return query
    select a.place::integer, a.id, a.created, a.changed
      from unnest(v_answers, v_was_created, v_was_changed) with ordinality as a (id, created, changed, place)
     order by a.place;
end;
$$;

comment on function outbox_enqueue_many(jsonb) is
    'Enqueues a JSON array of 0 to 10,000 events, objects with the parameters of outbox_enqueue as keys, all or nothing in the caller''s transaction. One row per element, aligned by ordinality from 1; new ids ascend in the array''s order. Raises 22004 or 22023 with the position of a bad element.';

revoke all on function outbox_enqueue_many(jsonb) from public;
