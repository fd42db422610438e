begin;
select plan(27);

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

-- A topic of its own with the payloads 1 to n, all of them claimed under the lease that is answered.
create function pg_temp.claimed(topic text, n integer default 1)
returns bigint
language plpgsql
as $$
begin
    perform outbox_enqueue(topic, to_jsonb(g)) from generate_series(1, n) as g;
    return (select min(lease) from outbox_claim('w', n, array[topic]));
end;
$$;

-- The ids of a topic's events, in their order.
create function pg_temp.ids(text)
returns bigint[]
language sql
as $$ select array_agg(id order by id) from outbox_events where topic = $1 $$;

-- The statuses of a topic's events, in their order.
create function pg_temp.statuses(text)
returns text
language sql
as $$ select string_agg(status, ' ' order by id) from outbox_event_status where topic = $1 $$;

-- The lease of a topic's events is over, but nobody has taken them back.
create function pg_temp.expire(text)
returns void
language sql
as $$
    update outbox_leases
       set expires_at = clock_timestamp() - interval '1 second'
     where id in (select e.id from outbox_events as e where e.topic = $1);
$$;

-- The events of a topic that wait for their time are due.
create function pg_temp.make_due(text)
returns void
language sql
as $$
    update outbox_scheduled
       set available_at = clock_timestamp()
     where id in (select e.id from outbox_events as e where e.topic = $1);
$$;

-- The events of a topic were enqueued so long ago.
create function pg_temp.make_older(text, by interval)
returns void
language sql
as $$ update outbox_events set created_at = created_at - by where topic = $1 $$;

select results_eq(
    'select expired, dead, promoted, pruned from outbox_reap()',
    'values (0, 0, 0, 0)',
    'a reap with nothing to do answers one row of zeroes'
);

-- Expired leases
do $$
begin
    perform outbox_configure('expired', backoff_base => '100 seconds');
    perform pg_temp.claimed('expired', 3), pg_temp.expire('expired');
end;
$$;
create temp table reaped as select clock_timestamp() as at, * from outbox_reap();
select results_eq(
    'select expired, dead, promoted, pruned from reaped',
    'values (3, 0, 0, 0)',
    'a reap answers how many expired leases it took back'
);
select results_eq(
    $$select distinct status, attempts, locked_by from outbox_event_status where topic = 'expired'$$,
    $$values ('retry', 1, null::text)$$,
    'an event whose lease is lost waits for a retry; the lost lease was an attempt'
);
select is(
    (select count(*)
       from outbox_event_status, reaped
      where topic = 'expired'
        and available_at between at + interval '50 seconds' and clock_timestamp() + interval '100 seconds'),
    3::bigint,
    'a lost lease waits as a failure does'
);
do $$ begin perform pg_temp.claimed('held'); end $$;
select is(
    (select expired from outbox_reap()), 0,
    'a lease that has not expired is left alone'
);
do $$
begin
    perform outbox_enqueue('lost for good', '1', max_attempts => 1);
    perform outbox_claim('w', 1, array['lost for good']);
    perform pg_temp.expire('lost for good');
end;
$$;
select is(
    (select dead from outbox_reap()), 1,
    'a reap answers how many events it found dead'
);
select results_eq(
    $$select reason, attempts, lost_leases from outbox_dead_letters where topic = 'lost for good'$$,
    $$values ('lost lease', 1, 1)$$,
    'an event that loses its lease in its last attempt is dead, with that as the reason'
);
do $$
begin
    perform outbox_configure('lost by policy', max_attempts => 1);
    perform outbox_enqueue('lost by policy', '1', max_attempts => 2);
    perform outbox_enqueue('lost by policy', '2');
    perform outbox_claim('w', 2, array['lost by policy']);
    perform pg_temp.expire('lost by policy');
    perform outbox_reap();
end;
$$;
select is(
    pg_temp.statuses('lost by policy'), 'retry dead',
    'an event''s own max_attempts goes before its topic''s'
);
do $$
begin
    perform outbox_enqueue('twice lost', '1', max_attempts => 2);
    perform outbox_claim('w', 1, array['twice lost']);
    perform pg_temp.expire('twice lost');
    perform outbox_reap();
    perform pg_temp.make_due('twice lost');
    perform outbox_fail(lease, error => 'boom') from outbox_claim('w', 1, array['twice lost']);
end;
$$;
select results_eq(
    $$select reason, attempts, lost_leases, last_error from outbox_dead_letters where topic = 'twice lost'$$,
    $$values ('failed', 2, 1, 'boom')$$,
    'lost leases are counted apart from failures'
);
do $$ begin perform pg_temp.claimed('bounded', 5), pg_temp.expire('bounded'); end $$;
select is(
    (select array_agg(r.expired) from generate_series(1, 4) as g, lateral (select expired from outbox_reap(2 + g * 0)) as r),
    array[2, 2, 1, 0],
    'a reap takes back at most n'
);

-- Due events
do $$
begin
    perform outbox_enqueue('due', to_jsonb(g), available_at => clock_timestamp() + interval '1 hour') from generate_series(1, 5) as g;
    perform outbox_enqueue('not due', '1', available_at => clock_timestamp() + interval '1 hour');
    perform pg_temp.make_due('due');
end;
$$;
select is(
    (select array_agg(r.promoted) from generate_series(1, 4) as g, lateral (select promoted from outbox_reap(2 + g * 0)) as r),
    array[2, 2, 1, 0],
    'a reap makes at most n due events ready, and none that is not due'
);
select is(
    pg_temp.statuses('due') || ', ' || pg_temp.statuses('not due'), 'pending pending pending pending pending, pending',
    'a promoted event is as pending as before'
);
select is(
    (select count(*) from outbox_claim('w', 10, array['due', 'not due'])), 5::bigint,
    'promoted events are delivered'
);
do $$
begin
    perform pg_temp.claimed('retry');
    perform outbox_fail(lease, retry_in => '1 hour') from (select distinct lease from outbox_leases where id = any (pg_temp.ids('retry'))) as l;
    perform pg_temp.make_due('retry');
    perform outbox_reap();
end;
$$;
select results_eq(
    $$select status, attempts from outbox_event_status where topic = 'retry'$$,
    $$values ('retry', 1)$$,
    'a promoted retry keeps its attempts and its status'
);

-- Done events past their retention
do $$
begin
    perform outbox_ack(pg_temp.claimed('many done', 5));
    update outbox_events set created_at = created_at - interval '2 days';
end;
$$;
select ok(
    (select max(r.pruned) <= 2 and sum(r.pruned) = 5
       from generate_series(1, 50) as g, lateral (select pruned from outbox_reap(2 + g * 0)) as r),
    'a reap removes at most n, and further ones the rest'
);
do $$
begin
    perform outbox_enqueue(t, '1', 'k') from unnest(array['done', 'young', 'waiting', 'scheduled', 'processing', 'dead']) as t;
    perform outbox_ack(lease) from outbox_claim('w', 10, array['done', 'young', 'scheduled']);
    perform outbox_enqueue('scheduled', '2', available_at => clock_timestamp() + interval '1 hour');
    perform outbox_claim('w', 1, array['processing']);
    perform outbox_fail(lease, dead => true) from outbox_claim('w', 1, array['dead']);
    perform outbox_enqueue('blocked', '"head"', ordering_key => 'o'), outbox_enqueue('blocked', '"next"', ordering_key => 'o');
    perform pg_temp.make_older(t, '1 day 1 second')
       from unnest(array['done', 'waiting', 'scheduled', 'processing', 'dead', 'blocked']) as t;
    perform pg_temp.make_older('young', '23:59:00');
end;
$$;
select is(
    (select pruned from outbox_reap()), 2,
    'a reap removes the events that are done and older than the retention, a day unless the topic says otherwise'
);
select results_eq(
    $$select topic, status
        from outbox_event_status
       where topic in ('done', 'young', 'waiting', 'scheduled', 'processing', 'dead', 'blocked')
       order by id$$,
    $$values ('young', 'done'), ('waiting', 'pending'), ('processing', 'processing'), ('dead', 'dead'),
             ('scheduled', 'pending'), ('blocked', 'pending'), ('blocked', 'blocked')$$,
    'what is young, waits, is in flight or is dead is kept, however old'
);
select ok(
    (select created from outbox_enqueue('done', '1', 'k')) and not (select created from outbox_enqueue('young', '1', 'k')),
    'the retention is the window in which a repeated enqueue is recognised'
);
do $$
begin
    perform outbox_configure('long kept', retention => '10 days'), outbox_configure('short kept', retention => '1 hour');
    perform outbox_enqueue(t, '1') from unnest(array['long kept', 'short kept']) as t;
    perform outbox_ack(lease) from (select distinct lease from outbox_claim('w', 2, array['long kept', 'short kept'])) as l;
    perform pg_temp.make_older('long kept', '2 days'), pg_temp.make_older('short kept', '2 hours');
    perform outbox_reap();
end;
$$;
select results_eq(
    $$select topic from outbox_events where topic in ('long kept', 'short kept')$$,
    $$values ('long kept')$$,
    'each topic has its own retention'
);
do $$
begin
    perform outbox_configure('policy changed', retention => '10 days');
    perform outbox_enqueue('policy changed', '1');
    perform outbox_ack(lease) from outbox_claim('w', 1, array['policy changed']);
    perform pg_temp.make_older('policy changed', '2 days');
    perform outbox_reap();
    perform outbox_configure('policy changed', retention => '1 day');
    perform outbox_reap();
end;
$$;
select is_empty(
    $$select from outbox_events where topic = 'policy changed'$$,
    'the retention at the moment of the reap counts'
);
do $$
begin
    perform outbox_enqueue('old and slow', '1');
    perform pg_temp.make_older('old and slow', '2 days');
    perform outbox_reap();
    perform outbox_ack(lease) from outbox_claim('w', 1, array['old and slow']);
    perform outbox_reap();
end;
$$;
select is_empty(
    $$select from outbox_events where topic = 'old and slow'$$,
    'the retention counts from the enqueue, not from the ack'
);
-- Bad arguments
do $$ begin perform pg_temp.claimed('bad'), pg_temp.expire('bad'); end $$;
select throws_ok(
    'select outbox_reap(0)', '22023', 'n is 0',
    'an n of 0 is refused'
);
select throws_ok(
    'select outbox_reap(100001)', '22023', 'n is 100001',
    'an n of 100,001 is refused'
);
select is(
    pg_temp.hint_of('select outbox_reap(0)'), 'Give a number from 1 to 100000.',
    'the hint for n states the bounds'
);
select is(
    pg_temp.statuses('bad'), 'processing',
    'a refused reap changes nothing'
);
select throws_ok(
    'select outbox_reap(null)', '22004', 'n is null',
    'a null n is refused'
);
select lives_ok(
    'select outbox_reap(1), outbox_reap(100000)',
    'n may be 1 and 100,000'
);

select * from finish();
rollback;
