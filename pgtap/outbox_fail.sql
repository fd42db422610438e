begin;
select plan(50);

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

-- The events of a topic have lost their lease and belong to another claim.
create function pg_temp.lose(topic text)
returns void
language plpgsql
as $$
begin
    perform pg_temp.expire(topic);
    perform outbox_reap();
    update outbox_scheduled
       set available_at = clock_timestamp()
     where id in (select e.id from outbox_events as e where e.topic = lose.topic);
    perform outbox_claim('another', 1, array[topic]);
end;
$$;

-- What a failure answers and leaves
create temp table failed as select pg_temp.claimed('failed') as lease;
create temp table answer as select f.* from failed as l, outbox_fail(l.lease, error => 'boom') as f;
select results_eq(
    'select id, status from answer',
    $$select id, 'retry' from outbox_events where topic = 'failed'$$,
    'a failed event is answered with its id and status'
);
select results_eq(
    $$select status, attempts, last_error, available_at, locked_by, lease_expires_at from outbox_event_status where topic = 'failed'$$,
    $$select 'retry', 1, 'boom', available_at, null::text, null::timestamptz from answer$$,
    'a failed event waits for its retry until the answered time, its attempt counted and its error kept'
);
select is_empty(
    $$select from outbox_claim('w', 1, array['failed'])$$,
    'a failed event is not delivered before its time'
);
select is_empty(
    'select outbox_fail(lease) from failed',
    'a second failure of a lease answers nothing'
);
create temp table several as select pg_temp.claimed('several', 4) as lease;
select set_eq(
    $$select f.id from several as l, outbox_fail(l.lease, (pg_temp.ids('several'))[1:2]) as f$$,
    $$select unnest((pg_temp.ids('several'))[1:2])$$,
    'a failure of some ids answers these'
);
select is(
    pg_temp.statuses('several'), 'retry retry processing processing',
    'a failure of some ids leaves the others in flight'
);
select is_empty(
    $$select outbox_fail(lease, '{}') from several$$,
    'an empty array fails nothing'
);
select bag_eq(
    $$select f.id from several as l, pg_temp.ids('several') as i, outbox_fail(l.lease, array[i[3], i[3], i[1], -1]) as f$$,
    $$select (pg_temp.ids('several'))[3]$$,
    'repeated ids count once; ids that are not held are missing from the answer'
);
select is(
    (select attempts from outbox_event_status where id = (pg_temp.ids('several'))[3]), 1,
    'an event that is failed under a repeated id has one attempt'
);
select bag_eq(
    'select f.id from several as l, outbox_fail(l.lease, null) as f',
    $$select (pg_temp.ids('several'))[4]$$,
    'null ids are all that is left of the lease'
);
select is_empty(
    'select outbox_fail(-1)',
    'a lease that nobody has is no error'
);
create temp table expired as select pg_temp.claimed('expired') as lease;
do $$ begin perform pg_temp.expire('expired'); end $$;
select results_eq(
    $$select f.status from expired as l, outbox_fail(l.lease) as f$$,
    $$values ('retry')$$,
    'a lease that has expired but was not reaped can still fail'
);

-- Fencing
create temp table lost as select pg_temp.claimed('lost') as lease;
do $$ begin perform pg_temp.lose('lost'); end $$;
select is_empty(
    'select outbox_fail(lease, dead => true) from lost',
    'a lease that was lost answers nothing'
);
select results_eq(
    $$select status, locked_by, attempts from outbox_event_status where topic = 'lost'$$,
    $$values ('processing', 'another', 2)$$,
    'a failure under a lost lease leaves the event to the claim that has it now'
);
create temp table borrowed as select pg_temp.claimed('borrowed 1') as lease, pg_temp.claimed('borrowed 2') as other;
select is_empty(
    $$select outbox_fail(lease, pg_temp.ids('borrowed 2')) from borrowed$$,
    'a lease cannot fail what another lease holds'
);
select is(
    pg_temp.statuses('borrowed 2'), 'processing',
    'what another lease holds is left to it'
);

-- Backoff
-- Fails 100 events of a topic at this attempt; answers for each how long it has to wait, at least and at most.
create function pg_temp.waits(topic text, attempt integer)
returns table (at_least interval, at_most interval)
language plpgsql
as $$
declare
    v_lease bigint;
    v_before timestamptz;
begin
    perform outbox_enqueue(topic, '1') from generate_series(1, 100);
    for i in 2..attempt loop
        perform outbox_fail(l.lease, retry_in => '0') from (select distinct lease from outbox_claim('w', 100, array[topic])) as l;
    end loop;
    select lease into v_lease from outbox_claim('w', 100, array[topic]) limit 1;
    v_before := clock_timestamp();
    return query
    select f.available_at - clock_timestamp(), f.available_at - v_before from outbox_fail(v_lease) as f;
end;
$$;
do $$
begin
    perform outbox_configure(t, backoff_base => '100 seconds', backoff_cap => '300 seconds')
       from unnest(array['first', 'second', 'third']) as t;
end;
$$;
create temp table first_waits as select * from pg_temp.waits('first', 1);
select is(
    (select count(*) from first_waits where at_most >= '50 seconds' and at_least <= '100 seconds'), 100::bigint,
    'the first failure waits 0.5 to 1.0 of backoff_base'
);
select ok(
    (select max(at_most) - min(at_most) > '10 seconds' from first_waits),
    'the wait is spread at random'
);
select is(
    (select count(*) from pg_temp.waits('second', 2) where at_most >= '100 seconds' and at_least <= '200 seconds'), 100::bigint,
    'the second failure waits twice as long'
);
select is(
    (select count(*) from pg_temp.waits('third', 3) where at_most >= '150 seconds' and at_least <= '300 seconds'), 100::bigint,
    'no failure waits longer than backoff_cap, the random part taken of the cap'
);
select is(
    (select count(*) from pg_temp.waits('default backoff', 1) where at_most >= '0.5 seconds' and at_least <= '1 second'), 100::bigint,
    'backoff_base is 1 second unless the topic says otherwise'
);
do $$
begin
    perform outbox_configure('base of zero', backoff_base => '0');
    perform outbox_configure('often', max_attempts => 1000, backoff_base => '1 year', backoff_cap => '1 year');
end;
$$;
select is(
    (select count(*) from pg_temp.waits('base of zero', 1) where at_least <= '0'), 100::bigint,
    'a backoff_base of 0 waits for nothing'
);
create temp table often as select pg_temp.claimed('often') as lease;
update outbox_leases set attempts = 999 where lease = (select lease from often);
select ok(
    (select f.available_at - clock_timestamp() between '0.49 years' and '1 year 6 days' from often as l, outbox_fail(l.lease) as f),
    'the backoff of a high attempt is still the cap'
);

-- retry_in
create temp table retried as select pg_temp.claimed('retried') as lease, clock_timestamp() as at;
create temp table retried_answer as select f.* from retried as l, outbox_fail(l.lease, retry_in => '1 hour') as f;
select ok(
    (select r.available_at between l.at + interval '1 hour' and clock_timestamp() + interval '1 hour' from retried as l, retried_answer as r),
    'retry_in is taken as it is'
);
create temp table retried_at_once as select pg_temp.claimed('at once') as lease;
select ok(
    (select f.available_at <= clock_timestamp() from retried_at_once as l, outbox_fail(l.lease, retry_in => '0') as f),
    'a retry_in of 0 is now'
);
select is(
    pg_temp.statuses('at once'), 'retry',
    'an event that is due again is still a retry'
);
select is(
    (select attempt from outbox_claim('w', 1, array['at once'])), 2,
    'a retry_in of 0 is delivered at once'
);

-- Dead
do $$ begin perform outbox_enqueue('spent', '1', max_attempts => 2); end $$;
create temp table spent as
select 1 as attempt, f.* from outbox_claim('w', 1, array['spent']) as c, outbox_fail(c.lease, error => 'first', retry_in => '0') as f;
insert into spent
select 2, f.* from outbox_claim('w', 1, array['spent']) as c, outbox_fail(c.lease, error => 'second', retry_in => '0') as f;
select results_eq(
    'select attempt, status, available_at is null from spent order by attempt',
    $$values (1, 'retry', false), (2, 'dead', true)$$,
    'an event is dead once its attempts are spent, whatever retry_in; its available_at is then null'
);
select results_eq(
    $$select reason, attempts, last_error from outbox_dead_letters where topic = 'spent'$$,
    $$values ('failed', 2, 'second')$$,
    'an event whose attempts are spent has failed'
);
select is_empty(
    $$select from outbox_claim('w', 1, array['spent'])$$,
    'a dead event is not delivered'
);
create temp table discarded as select pg_temp.claimed('discarded') as lease;
select results_eq(
    $$select f.status, f.available_at from discarded as l, outbox_fail(l.lease, error => 'no use', retry_in => '1 hour', dead => true) as f$$,
    $$values ('dead', null::timestamptz)$$,
    'dead wins over attempts that are left and over retry_in'
);
select results_eq(
    $$select reason, attempts, last_error from outbox_dead_letters where topic = 'discarded'$$,
    $$values ('discarded', 1, 'no use')$$,
    'an event that its worker declared dead was discarded'
);
create temp table not_dead as select pg_temp.claimed('not dead') as lease;
select results_eq(
    $$select f.status from not_dead as l, outbox_fail(l.lease, ids => null, error => null, retry_in => null, dead => null) as f$$,
    $$values ('retry')$$,
    'a null for what has a default is the default'
);
create temp table fifth as select pg_temp.claimed('fifth') as lease;
update outbox_leases set attempts = 4 where lease = (select lease from fifth);
select results_eq(
    $$select f.status from fifth as l, outbox_fail(l.lease) as f$$,
    $$values ('retry')$$,
    'the fourth of the five default attempts is not the last'
);
create temp table sixth as select pg_temp.claimed('sixth') as lease;
update outbox_leases set attempts = 5 where lease = (select lease from sixth);
select results_eq(
    $$select f.status from sixth as l, outbox_fail(l.lease) as f$$,
    $$values ('dead')$$,
    'the fifth of the five default attempts is the last'
);
do $$
begin
    perform outbox_configure('own limit', max_attempts => 1);
    perform outbox_enqueue('own limit', '1', max_attempts => 2), outbox_enqueue('own limit', '2');
end;
$$;
select results_eq(
    $$select f.status
        from (select distinct lease from outbox_claim('w', 2, array['own limit'])) as c, outbox_fail(c.lease) as f
       order by f.id$$,
    $$values ('retry'), ('dead')$$,
    'an event''s own max_attempts goes before its topic''s'
);
create temp table changed_policy as select pg_temp.claimed('changed policy') as lease;
do $$ begin perform outbox_configure('changed policy', max_attempts => 1); end $$;
select results_eq(
    $$select f.status from changed_policy as l, outbox_fail(l.lease) as f$$,
    $$values ('dead')$$,
    'the topic''s max_attempts at the moment of the failure counts'
);

-- The error
create temp table long_error as select pg_temp.claimed('long error') as lease;
do $$ begin perform outbox_fail(lease, error => repeat('é', 8000) || 'cut') from long_error; end $$;
select is(
    (select last_error from outbox_event_status where topic = 'long error'), repeat('é', 8000),
    'an error is cut to 8,000 characters'
);
create temp table no_error as select pg_temp.claimed('no error') as lease;
select lives_ok(
    $$select outbox_fail(lease, error => '') from no_error$$,
    'an empty error is an error like any other'
);

-- Bad arguments
create temp table bad as select pg_temp.claimed('bad', 2) as lease;
select throws_ok(
    'select outbox_fail(null)', '22004', 'lease is null',
    'a null lease is refused'
);
select is(
    pg_temp.hint_of('select outbox_fail(null)'), 'Give the lease that outbox_claim answered.',
    'the hint for a null lease says what to give'
);
select throws_ok(
    $$select outbox_fail(lease, (pg_temp.ids('bad'))[1] || array[null]::bigint[]) from bad$$, '22004', 'ids has a null at position 2',
    'a null among the ids is refused'
);
select is(
    pg_temp.hint_of('select outbox_fail(1, array[null]::bigint[])'), 'Give the ids of events; leave out what is null.',
    'the hint for a null among the ids says what to do'
);
select throws_ok(
    $$select outbox_fail(lease, retry_in => '-1 microsecond') from bad$$, '22023', 'retry_in is -00:00:00.000001',
    'a negative retry_in is refused'
);
select throws_ok(
    $$select outbox_fail(lease, retry_in => '1 year 1 second') from bad$$, '22023', 'retry_in is 1 year 00:00:01',
    'a retry_in above a year is refused'
);
select is(
    pg_temp.hint_of($$select outbox_fail(1, retry_in => '-1 second')$$), 'Give an interval from 00:00:00 to 1 year.',
    'the hint for retry_in states the bounds'
);
select throws_ok(
    case
        when current_setting('server_version_num')::integer >= 170000
            then $$select outbox_fail(lease, retry_in => 'infinity') from bad$$
        else $$select outbox_fail(lease, retry_in => '178000000 years') from bad$$
    end,
    '22023', null,
    'an infinite retry_in, or where there is none the longest, is refused'
);
select is(
    pg_temp.statuses('bad'), 'processing processing',
    'a refused failure changes nothing'
);
select lives_ok(
    $$select outbox_fail(-1, retry_in => '365 days')$$,
    'a year has 365 days, not the 360 of an interval''s comparison'
);
select lives_ok(
    $$select outbox_fail(lease, retry_in => '1 year') from bad$$,
    'retry_in may be a year'
);

select * from finish();
rollback;
