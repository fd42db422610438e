begin;
select plan(19);

select is(
    (select array_agg(attname order by attnum)
       from pg_attribute
      where attrelid = 'outbox_stats'::regclass and attnum > 0 and not attisdropped),
    array['topic', 'ready', 'scheduled', 'retry', 'blocked', 'processing', 'expired', 'dead', 'oldest_ready_age', 'paused']::name[],
    'the columns are those of the contract, in its order'
);
select col_type_is(
    'public', 'outbox_stats', 'oldest_ready_age', 'interval',
    'oldest_ready_age is an interval'
);

-- A topic's counts, those that are not 0.
create function pg_temp.counts(text)
returns text
language sql
as $$
    select string_agg(c.key || ' ' || c.value, ', ' order by c.key)
      from outbox_stats as s,
           jsonb_each(to_jsonb(s) - '{topic, oldest_ready_age, paused}'::text[]) as c
     where s.topic = $1
       and c.value <> '0'
$$;

do $$
begin
    perform outbox_enqueue('ready', to_jsonb(g), priority => g) from generate_series(1, 3) as g;
end;
$$;
select is(
    pg_temp.counts('ready'), 'ready 3',
    'ready counts what can be claimed, of all priorities'
);
do $$ begin perform outbox_enqueue('scheduled', '1', available_at => clock_timestamp() + interval '1 hour') from generate_series(1, 2); end $$;
select is(
    pg_temp.counts('scheduled'), 'scheduled 2',
    'scheduled counts what waits for the time of its first attempt'
);
do $$
begin
    perform outbox_enqueue('due', '1', available_at => clock_timestamp() + interval '1 hour');
    update outbox_events
       set created_at = clock_timestamp() - interval '1 hour', available_at = clock_timestamp() - interval '5 minutes'
     where topic = 'due';
    update outbox_scheduled as s set available_at = e.available_at from outbox_events as e where e.id = s.id and e.topic = 'due';
end;
$$;
select is(
    pg_temp.counts('due'), 'ready 1',
    'a first attempt that is due counts as ready, though nobody has promoted it'
);
do $$
begin
    perform outbox_enqueue('retry', '1'), outbox_enqueue('retry', '2');
    perform outbox_fail(lease, retry_in => '1 hour') from (select distinct lease from outbox_claim('w', 2, array['retry'])) as l;
end;
$$;
select is(
    pg_temp.counts('retry'), 'retry 2',
    'retry counts what waits after a failed attempt'
);
do $$ begin perform outbox_enqueue('blocked', to_jsonb(g), ordering_key => 'o') from generate_series(1, 3) as g; end $$;
select is(
    pg_temp.counts('blocked'), 'blocked 2, ready 1',
    'blocked counts what waits behind an earlier event of its key'
);
do $$
begin
    perform outbox_enqueue('in flight', to_jsonb(g)) from generate_series(1, 3) as g;
    perform outbox_claim('w', 2, array['in flight']);
end;
$$;
select is(
    pg_temp.counts('in flight'), 'processing 2, ready 1',
    'processing counts what is in flight'
);
do $$
begin
    perform outbox_enqueue('expired', '1');
    perform outbox_claim('w', 1, array['expired']);
    update outbox_leases set expires_at = clock_timestamp() - interval '1 second' where id = (select id from outbox_events where topic = 'expired');
end;
$$;
select is(
    (select expired from outbox_stats where topic = 'expired'), 1::bigint,
    'expired counts what is in flight under a lease that has expired'
);
do $$ begin perform outbox_reap(); end $$;
select is(
    pg_temp.counts('expired'), 'retry 1',
    'an event whose lost lease was reaped counts as a retry'
);
do $$
begin
    perform outbox_enqueue('dead', to_jsonb(g)) from generate_series(1, 3) as g;
    perform outbox_fail(lease, dead => true) from (select distinct lease from outbox_claim('w', 2, array['dead'])) as l;
end;
$$;
select is(
    pg_temp.counts('dead'), 'dead 2, ready 1',
    'dead counts the dead letters'
);
do $$
begin
    perform outbox_enqueue('done', '1');
    perform outbox_ack(lease) from outbox_claim('w', 1, array['done']);
end;
$$;
select is(
    pg_temp.counts('done'), null,
    'what is done is not counted'
);
select is(
    (select sum(ready + scheduled + retry + blocked + processing + expired + dead) from outbox_stats),
    (select count(*)::numeric from outbox_event_status where status <> 'done'),
    'each event that is not done is counted once'
);
select is(
    (select count(*) from outbox_stats), (select count(distinct topic) from outbox_stats),
    'there is one row per topic'
);

-- The oldest ready event
do $$ begin perform outbox_enqueue('age', '1'), outbox_enqueue('age', '2'); end $$;
update outbox_events set created_at = created_at - interval '10 minutes' where topic = 'age' and payload = '1';
select ok(
    (select oldest_ready_age between interval '10 minutes' and interval '10 minutes 10 seconds' from outbox_stats where topic = 'age'),
    'oldest_ready_age is how long the oldest ready event has been waiting'
);
select ok(
    (select oldest_ready_age between interval '5 minutes' and interval '5 minutes 10 seconds' from outbox_stats where topic = 'due'),
    'an event that was scheduled has been waiting since it was due'
);
select is(
    (select array_agg(oldest_ready_age) from outbox_stats where topic in ('scheduled', 'retry')), array[null, null]::interval[],
    'oldest_ready_age is null where nothing is ready'
);

-- Pause
do $$ begin perform outbox_pause('ready'); end $$;
select results_eq(
    $$select topic from outbox_stats where paused$$,
    $$values ('ready')$$,
    'paused says which topics are'
);
do $$ begin perform outbox_resume('ready'); end $$;
select is_empty(
    $$select from outbox_stats where paused$$,
    'a resumed topic is not paused'
);

select * from finish();
rollback;
