create or replace function outbox_enqueue(
    topic text,
    payload jsonb,
    dedupe_key text default null,
    ordering_key text default null,
    headers jsonb default '{}',
    priority integer default 0,
    available_at timestamptz default null,
    max_attempts integer default null,
    on_duplicate text default 'ignore'
)
returns table (
    id bigint,
    created boolean,
    changed boolean
)
language plpgsql
volatile
security definer
rows 1
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_first_key text;
begin
    priority := coalesce(priority, 0);
    headers := coalesce(headers, '{}');
    on_duplicate := coalesce(on_duplicate, 'ignore');
    perform outbox_check_event(topic, payload, dedupe_key, ordering_key, priority, available_at, max_attempts, on_duplicate);
    if available_at <= clock_timestamp() then
        available_at := null;
    end if;

    loop
        -- Before the id is drawn: within the key, id order is then commit order. A requeue needs the key of the first
        -- event too, and takes both in one order.
        if ordering_key is not null or on_duplicate = 'requeue' then
            select e.ordering_key
              into v_first_key
              from outbox_events as e
             where e.topic = outbox_enqueue.topic
               and e.dedupe_key = outbox_enqueue.dedupe_key
               and outbox_enqueue.on_duplicate = 'requeue';
            perform outbox_lock_keys(array[topic, topic], array[ordering_key, v_first_key]);
        end if;
        insert into outbox_events as e (topic, payload, dedupe_key, ordering_key, headers, priority, available_at, max_attempts)
        values (
            outbox_enqueue.topic,
            outbox_enqueue.payload,
            outbox_enqueue.dedupe_key,
            outbox_enqueue.ordering_key,
            outbox_enqueue.headers,
            outbox_enqueue.priority,
            outbox_enqueue.available_at,
            outbox_enqueue.max_attempts
        )
        on conflict do nothing
        returning e.id into id;
        if id is not null then
            created := true;
            changed := true;
            return next;
            return;
        end if;

        -- A duplicate, unless the first event was removed between the two statements: then this one is the first.
        if ordering_key is not null then
            perform outbox_seat(array[topic], array[ordering_key]);
        end if;
        select e.id,
               case outbox_enqueue.on_duplicate
                   when 'replace' then outbox_replace(e.id, outbox_enqueue.payload, outbox_enqueue.headers, outbox_enqueue.available_at)
                   when 'requeue' then outbox_requeue(e.id, outbox_enqueue.available_at)
                   else false
               end
          into id, changed
          from outbox_events as e
         where e.topic = outbox_enqueue.topic
           and e.dedupe_key = outbox_enqueue.dedupe_key;
        if changed is not null then
            created := false;
            return next;
            return;
        end if;
        id := null;
        perform outbox_check_sequence();
    end loop;
end;
$$;

comment on function outbox_enqueue(text, jsonb, text, text, jsonb, integer, timestamptz, integer, text) is
    'Enqueues one event in the caller''s transaction. A dedupe key that the topic already has gives the first event''s id and created = false; on_duplicate then says what to do: ignore, replace (payload, headers and time of an event that waits) or requeue (a retry becomes due, a done event is delivered again). changed: what was asked for is in effect. Raises 22004 for a null topic or payload, 22023 for a value out of bounds.';

revoke all on function outbox_enqueue(text, jsonb, text, text, jsonb, integer, timestamptz, integer, text) from public;
