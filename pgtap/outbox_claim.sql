begin;
select plan(57);

create function pg_temp.hint_of(statement text)
returns text
language plpgsql
as $$
declare
    v_hint text;
begin
    execute statement;
    return 'nothing was raised';
exception when others then
    get stacked diagnostics v_hint = pg_exception_hint;
    return v_hint;
end;
$$;

-- Events with the payloads 1 to n in this topic.
create function pg_temp.enqueue(topic text, n integer, priority integer default 0)
returns void
language plpgsql
as $$ begin perform outbox_enqueue(topic, to_jsonb(g), priority => enqueue.priority) from generate_series(1, n) as g; end $$;

-- What a claim delivers of this topic, in the order of delivery.
create function pg_temp.claimed(topic text, n integer)
returns text
language sql
as $$ select string_agg(payload::text, ' ') from outbox_claim('w', n, array[topic]) $$;

-- Brings the time of an event that waits to so long after the database's clock.
create function pg_temp.make_due(text, wait interval default '0')
returns void
language sql
as $$
    update outbox_scheduled
       set available_at = clock_timestamp() + wait
     where id in (select e.id from outbox_events as e where e.topic = $1);
$$;

-- The events of this topic that are in flight were claimed by a worker that has been silent for 11 s longer than its lease.
create function pg_temp.expire(text)
returns void
language sql
as $$
    update outbox_leases
       set expires_at = clock_timestamp() - interval '11 seconds'
     where id in (select e.id from outbox_events as e where e.topic = $1);
$$;

-- The events of this topic that are in flight have lost their lease and are due again.
create function pg_temp.lose(topic text)
returns void
language plpgsql
as $$ begin perform pg_temp.expire(topic); perform outbox_reap(); perform pg_temp.make_due(topic); end $$;

-- What is delivered
create temp table sent as
select * from outbox_enqueue('delivery', '{"a": 1}', 'd', 'o', '{"h": 1}', 4, max_attempts => 9);
create temp table before_claim as select clock_timestamp() as at;
create temp table delivered as
select * from outbox_claim('worker 1', 1, array['delivery'], '90 seconds');
select results_eq(
    'select id, topic, payload, headers, dedupe_key, ordering_key, priority, attempt, max_attempts from delivered',
    $$select id, 'delivery', '{"a": 1}'::jsonb, '{"h": 1}'::jsonb, 'd', 'o', 4, 1, 9 from sent$$,
    'a delivery carries all that was enqueued, and that it is the first attempt'
);
select results_eq(
    'select d.created_at from delivered as d',
    'select e.created_at from delivered as d join outbox_events as e using (id)',
    'created_at is that of the event'
);
select ok(
    (select lease_expires_at between b.at + interval '90 seconds' and clock_timestamp() + interval '90 seconds' from delivered, before_claim as b),
    'the lease expires lease_for after the claim, by the database''s clock'
);
select results_eq(
    'select status, attempts, locked_by, lease_expires_at from outbox_event_status where id = (select id from sent)',
    $$select 'processing', 1, 'worker 1', lease_expires_at from delivered$$,
    'a claimed event is processing, its attempt counted'
);
do $$ begin perform pg_temp.enqueue('defaults', 3); end $$;
create temp table default_claim as select * from outbox_claim('w', topics => array['defaults']);
select is(
    (select count(*) from default_claim), 1::bigint,
    'n is 1 unless given'
);
select ok(
    (select lease_expires_at between b.at + interval '5 minutes' and clock_timestamp() + interval '5 minutes' from default_claim, before_claim as b),
    'a lease is for 5 minutes unless the topic or the claim says otherwise'
);
do $$
begin
    perform outbox_configure('topic lease', lease_for => '7 days');
    perform pg_temp.enqueue('topic lease', 2);
end;
$$;
select ok(
    (select lease_expires_at - clock_timestamp() between interval '6 days 23:59' and interval '7 days'
       from outbox_claim('w', 1, array['topic lease'])),
    'without lease_for a claim takes the topic''s'
);
select ok(
    (select lease_expires_at - clock_timestamp() between interval '59 minutes' and interval '1 hour'
       from outbox_claim('w', 1, array['topic lease'], '1 hour')),
    'the claim''s lease_for goes before the topic''s'
);
do $$ begin perform pg_temp.enqueue('one lease', 5); end $$;
create temp table two_claims as
select 1 as claim, c.* from outbox_claim('w', 3, array['one lease']) as c;
insert into two_claims
select 2, c.* from outbox_claim('w', 3, array['one lease']) as c;
select results_eq(
    'select claim, count(*), count(distinct lease) from two_claims group by claim order by claim',
    'values (1, 3::bigint, 1::bigint), (2, 2, 1)',
    'all rows of a claim share one lease, and there are at most n'
);
select is(
    (select count(distinct lease) from two_claims), 2::bigint,
    'each claim has a lease of its own, also for the same worker'
);
select is(
    (select count(distinct id) from two_claims), 5::bigint,
    'no event is delivered to two claims'
);
select is_empty(
    $$select from outbox_claim('w', 10, array['one lease'])$$,
    'a claim that finds nothing answers nothing'
);
do $$ begin perform pg_temp.enqueue('undone', 1); end $$;
savepoint before_undone;
create temp table undone as select * from outbox_claim('w', 1, array['undone']);
rollback to savepoint before_undone;
select is(
    (select attempt from outbox_claim('w', 1, array['undone'])), 1,
    'a claim that is rolled back does not count'
);
do $$
begin
    perform outbox_configure('policy', max_attempts => 8);
    perform pg_temp.enqueue('policy', 1);
end;
$$;
select is(
    (select max_attempts from outbox_claim('w', 1, array['policy'])), 8,
    'an event without max_attempts of its own is delivered with its topic''s'
);

-- Topics
do $$ begin perform pg_temp.enqueue(t, 2) from unnest(array['t1', 't2', 't3']) as t; end $$;
select results_eq(
    $$select topic, count(*) from outbox_claim('w', 100, array['t1', 't3', 'unknown', 't1']) group by topic order by topic$$,
    $$values ('t1', 2::bigint), ('t3', 2)$$,
    'only the topics that are named are claimed; an unknown or repeated one is no error'
);
select is_empty(
    $$select from outbox_claim('w', 1, array['unknown'])$$,
    'a topic that nobody knows has nothing'
);
select ok(
    (select count(*) filter (where topic = 't2') = 2 and count(distinct topic) > 1 from outbox_claim('w', 10000, null)),
    'null topics are all topics'
);

-- Order
do $$ begin perform pg_temp.enqueue('fifo', 5); end $$;
select is(
    pg_temp.claimed('fifo', 3) || ', ' || pg_temp.claimed('fifo', 3), '1 2 3, 4 5',
    'within a lane and a transaction the lowest ids come first, in the rows'' order'
);
do $$ begin perform outbox_enqueue('priorities', to_jsonb(p), priority => p) from unnest(array[0, -10, 9, 10, -1, 1]) as p; end $$;
select is(
    pg_temp.claimed('priorities', 4) || ', ' || pg_temp.claimed('priorities', 4), '10 9 1 0, -1 -10',
    'priorities are strict, higher first'
);
do $$
begin
    perform pg_temp.enqueue('low', 1, 0);
    perform pg_temp.enqueue('high', 2, 1);
end;
$$;
select results_eq(
    $$select topic from outbox_claim('w', 3, array['low', 'high'])$$,
    $$values ('high'), ('high'), ('low')$$,
    'priorities are strict across topics'
);
do $$
begin
    perform pg_temp.enqueue('backlog', 40);
    perform pg_temp.enqueue('newcomer', 40);
end;
$$;
create function pg_temp.topics_of_claims(n integer)
returns setof text
language plpgsql
as $$ begin for i in 1..n loop return query select topic from outbox_claim('w', 1, array['backlog', 'newcomer']); end loop; end $$;
select results_eq(
    'select distinct t from pg_temp.topics_of_claims(40) as t order by t',
    $$values ('backlog'), ('newcomer')$$,
    'topics of one priority take turns: no backlog starves another topic'
);

-- Scheduled events
do $$ begin perform outbox_enqueue('due', '1', available_at => clock_timestamp() + interval '1 hour'); end $$;
select is(
    pg_temp.claimed('due', 1), null,
    'an event that is not due is not delivered'
);
do $$ begin perform pg_temp.make_due('due', '-1 ms'); end $$;
select is(
    pg_temp.claimed('due', 1), '1',
    'an event that is due is delivered without any reaper'
);
do $$
begin
    perform outbox_enqueue('soon', '1', available_at => clock_timestamp() + interval '100 ms');
    perform pg_sleep(0.11);
end;
$$;
select is(
    pg_temp.claimed('soon', 1), '1',
    'a due event is delivered as soon as somebody polls, within 100 ms of its time'
);
-- An event that is scheduled first and another that is ready second; the first is due so long before or after the second came.
create function pg_temp.scheduled_and_ready(topic text, due_after interval)
returns void
language plpgsql
as $$
begin
    perform outbox_enqueue(topic, '"scheduled"', available_at => clock_timestamp() + interval '1 hour');
    perform outbox_enqueue(topic, '"ready"');
    update outbox_events as e
       set created_at = clock_timestamp() - interval '10 seconds'
     where e.topic = scheduled_and_ready.topic
       and e.payload = '"ready"';
    perform pg_temp.make_due(topic, interval '-10 seconds' + due_after);
end;
$$;
do $$
begin
    perform pg_temp.scheduled_and_ready('due before', '-1 second');
    perform pg_temp.scheduled_and_ready('due after', '1 second');
end;
$$;
select is(
    pg_temp.claimed('due before', 2), '"scheduled" "ready"',
    'an event that was due before the ready one came is delivered before it'
);
select is(
    pg_temp.claimed('due after', 2), '"ready" "scheduled"',
    'an event that became due after the ready one came is delivered after it'
);
do $$
begin
    perform outbox_enqueue('due late', '"late"', available_at => clock_timestamp() + interval '1 hour');
    perform outbox_enqueue('due late', '"early"', available_at => clock_timestamp() + interval '1 hour');
    perform pg_temp.make_due('due late', '-1 second');
    update outbox_scheduled
       set available_at = available_at - interval '1 second'
     where id = (select id from outbox_events where topic = 'due late' and payload = '"early"');
end;
$$;
select is(
    pg_temp.claimed('due late', 2), '"early" "late"',
    'events that were scheduled come in the order of their times'
);

-- Attempts
do $$
begin
    perform outbox_enqueue('attempts', '1', max_attempts => 3);
    for i in 1..2 loop
        perform outbox_fail(lease, retry_in => '0') from outbox_claim('w', 1, array['attempts']);
    end loop;
end;
$$;
create temp table third as select * from outbox_claim('w', 1, array['attempts']);
select results_eq(
    'select attempt, max_attempts from third',
    'values (3, 3)',
    'each claim counts an attempt'
);
do $$ begin perform outbox_fail(lease, retry_in => '0') from third; end $$;
select is_empty(
    $$select from outbox_claim('w', 1, array['attempts'])$$,
    'an event whose attempts are spent is not delivered again'
);
do $$
begin
    perform outbox_enqueue('lowered', '1'), outbox_enqueue('lowered', '2', max_attempts => 5);
    for i in 1..2 loop
        perform outbox_fail(lease, retry_in => '0') from (select distinct lease from outbox_claim('w', 2, array['lowered'])) as c;
    end loop;
    perform outbox_configure('lowered', max_attempts => 2);
end;
$$;
select results_eq(
    $$select payload, attempt, max_attempts from outbox_claim('w', 2, array['lowered'])$$,
    $$values ('2'::jsonb, 3, 5)$$,
    'no attempt above max_attempts is delivered, also when the topic''s was lowered later; an event''s own stands'
);
select results_eq(
    $$select payload, attempts, reason from outbox_dead_letters where topic = 'lowered'$$,
    $$values ('1'::jsonb, 2, 'failed')$$,
    'an event that has spent what its topic now allows is dead'
);

-- Lost leases, with nobody reaping
do $$
begin
    perform outbox_configure('unreaped', backoff_base => '0');
    perform pg_temp.enqueue('unreaped', 1);
end;
$$;
create temp table crashed as select * from outbox_claim('crashing', 1, array['unreaped']);
select is_empty(
    $$select from outbox_claim('w', 1, array['unreaped'])$$,
    'an event under a lease that has not expired is not delivered'
);
do $$ begin perform pg_temp.expire('unreaped'); end $$;
create temp table recovered as select * from outbox_claim('w', 1, array['unreaped']);
select is(
    (select attempt from recovered), 2,
    'an event whose lease has long expired is delivered again without any reaper; the lost lease was an attempt'
);
select isnt(
    (select lease from recovered), (select lease from crashed),
    'an event that is delivered again has a new lease'
);

-- Suspects: events whose lease was lost
do $$
begin
    perform pg_temp.enqueue('suspects', 2);
    perform outbox_claim('crashing', 2, array['suspects']);
    perform pg_temp.lose('suspects');
end;
$$;
select results_eq(
    $$select count(*) from outbox_claim('w', 10, array['suspects'])$$,
    'values (1::bigint)',
    'an event whose lease was lost is delivered alone'
);
select results_eq(
    $$select count(*) from outbox_claim('w', 10, array['suspects'])$$,
    'values (1::bigint)',
    'the next one whose lease was lost is delivered alone too'
);
do $$
begin
    perform pg_temp.enqueue('alternating', 3);
    perform outbox_claim('crashing', 3, array['alternating']);
    perform pg_temp.lose('alternating');
    perform outbox_enqueue('alternating', '"other"') from generate_series(1, 30);
end;
$$;
create function pg_temp.kinds_of_claims(topic text, claims integer, n integer)
returns text
language plpgsql
as $$
declare
    v_kinds text[];
begin
    for i in 1..claims loop
        v_kinds := v_kinds || (
            select case
                       when count(*) filter (where c.attempt = 2) = 0 then format('%s others', count(*))
                       when count(*) = 1 then 'suspect'
                       else 'mixed'
                   end
              from outbox_claim('w', kinds_of_claims.n, array[kinds_of_claims.topic]) as c
        );
    end loop;
    return array_to_string(v_kinds, ', ');
end;
$$;
select ok(
    pg_temp.kinds_of_claims('alternating', 6, 5) in (
        'suspect, 5 others, suspect, 5 others, suspect, 5 others',
        '5 others, suspect, 5 others, suspect, 5 others, suspect'
    ),
    'claims alternate between suspects, each alone, and others'
);
do $$
begin
    perform pg_temp.enqueue('few suspects', 1);
    perform outbox_claim('crashing', 1, array['few suspects']);
    perform pg_temp.lose('few suspects');
    perform pg_temp.enqueue('more important', 4, 1);
end;
$$;
select results_eq(
    $$select topic, payload
        from outbox_claim('w', 2, array['few suspects', 'more important'])
       union all select topic, payload from outbox_claim('w', 2, array['few suspects', 'more important'])
       union all select topic, payload from outbox_claim('w', 2, array['few suspects', 'more important'])$$,
    $$values ('more important', '1'::jsonb), ('more important', '2'), ('more important', '3'), ('more important', '4'), ('few suspects', '1')$$,
    'a suspect waits for what has a higher priority'
);

-- Bad arguments
do $$ begin perform pg_temp.enqueue('bad', 1); end $$;
select throws_ok(
    $$select outbox_claim(null, 1, array['bad'])$$, '22004', 'worker is null',
    'a null worker is refused'
);
select throws_ok(
    $$select outbox_claim('', 1, array['bad'])$$, '22023', 'worker has 0 bytes: ""',
    'an empty worker is refused'
);
select lives_ok(
    $$select outbox_claim('w', 1, array['none']), outbox_claim(repeat('w', 199), 1, array['none']),
             outbox_claim(repeat('é', 100), 1, array['none'])$$,
    'a worker may have 1, 199 and 200 bytes'
);
select throws_ok(
    $$select outbox_claim(repeat('é', 100) || 'w', 1, array['bad'])$$, '22023', format('worker has 201 bytes: "%s"', repeat('é', 60)),
    'a worker of 201 bytes is refused'
);
select is(
    pg_temp.hint_of($$select outbox_claim('', 1, array['bad'])$$), 'Give a text of 1 to 200 bytes.',
    'the hint for a worker states the bounds'
);
select throws_ok(
    $$select outbox_claim('w', null, array['none'])$$, '22004', 'n is null',
    'a null n is refused'
);
select throws_ok(
    $$select outbox_claim('w', 0, array['bad'])$$, '22023', 'n is 0',
    'an n of 0 is refused'
);
select lives_ok(
    $$select outbox_claim('w', 1, array['none']), outbox_claim('w', 10000, array['none'])$$,
    'n may be 1 and 10,000'
);
select throws_ok(
    $$select outbox_claim('w', 10001, array['bad'])$$, '22023', 'n is 10001',
    'an n of 10,001 is refused'
);
select is(
    pg_temp.hint_of($$select outbox_claim('w', 0, array['bad'])$$), 'Give a number from 1 to 10000.',
    'the hint for n states the bounds'
);
select throws_ok(
    $$select outbox_claim('w', 1, '{}')$$, '22023', 'topics is an empty array',
    'an empty array of topics is refused'
);
select is(
    pg_temp.hint_of($$select outbox_claim('w', 1, '{}')$$), 'Name at least one topic, or give null for all topics.',
    'the hint for an empty array of topics says what to give'
);
select throws_ok(
    $$select outbox_claim('w', 1, array['bad'], '0.099 seconds')$$, '22023', 'lease_for is 00:00:00.099',
    'a lease_for below 0.1 seconds is refused'
);
select lives_ok(
    $$select outbox_claim('w', 1, array['none'], '0.1 seconds'), outbox_claim('w', 1, array['none'], '30 days')$$,
    'lease_for may be 0.1 seconds and 30 days'
);
select outbox_enqueue('calendar', '1');
select ok(
    (select c.lease_expires_at - clock_timestamp() between '23 hours' and '25 hours'
       from outbox_claim('w', 1, array['calendar'], '1 month -29 days') as c),
    'a lease_for is a length of time: no month is longer than another'
);
select throws_ok(
    $$select outbox_claim('w', 1, array['bad'], '30 days 1 second')$$, '22023', 'lease_for is 30 days 00:00:01',
    'a lease_for above 30 days is refused'
);
select throws_ok(
    case
        when current_setting('server_version_num')::integer >= 170000
            then $$select outbox_claim('w', 1, array['bad'], 'infinity')$$
        else $$select outbox_claim('w', 1, array['bad'], '178000000 years')$$
    end,
    '22023', null,
    'an infinite lease_for, or where there is none the longest, is refused'
);
select is(
    pg_temp.hint_of($$select outbox_claim('w', 1, array['bad'], '0')$$), 'Give an interval from 00:00:00.1 to 30 days.',
    'the hint for lease_for states the bounds'
);
select is(
    (select status from outbox_event_status where topic = 'bad'), 'pending',
    'a refused claim takes nothing'
);

select * from finish();
rollback;
