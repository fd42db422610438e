begin;
select plan(28);

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

-- When the lease of a topic's events expires, by the database's clock.
create function pg_temp.expires_in(text)
returns interval
language sql
as $$ select min(lease_expires_at) - clock_timestamp() from outbox_event_status where topic = $1 $$;

create temp table extended as select pg_temp.claimed('extended') as lease;
create temp table answer as select f.* from extended as l, outbox_extend(l.lease, lease_for => '1 hour') as f;
select results_eq(
    'select id, lease_expires_at from answer',
    $$select id, lease_expires_at from outbox_event_status where topic = 'extended'$$,
    'an extension answers the id and the new expiry'
);
select ok(
    pg_temp.expires_in('extended') between '59 minutes' and '1 hour',
    'the new expiry is lease_for from now'
);
do $$ begin perform outbox_extend(lease, lease_for => '10 minutes') from extended; end $$;
select results_eq(
    $$select lease_expires_at from outbox_event_status where topic = 'extended'$$,
    'select lease_expires_at from answer',
    'an extension never shortens a lease'
);
select results_eq(
    $$select f.lease_expires_at from extended as l, outbox_extend(l.lease, lease_for => '10 minutes') as f$$,
    'select lease_expires_at from answer',
    'an extension that would be shorter answers the expiry that stays'
);
do $$ begin perform outbox_enqueue('default lease', '1'); end $$;
create temp table default_lease as select lease from outbox_claim('w', 1, array['default lease'], '1 second');
do $$ begin perform outbox_extend(lease) from default_lease; end $$;
select ok(
    pg_temp.expires_in('default lease') between '4 minutes 59 seconds' and '5 minutes',
    'without lease_for the topic''s counts, 5 minutes unless it says otherwise'
);
do $$
begin
    perform outbox_configure('default lease', lease_for => '2 days');
    perform outbox_extend(lease, null, null) from default_lease;
end;
$$;
select ok(
    pg_temp.expires_in('default lease') between '1 day 23:59' and '2 days',
    'the topic''s lease_for at the moment of the extension counts'
);
create temp table several as select pg_temp.claimed('several', 3) as lease;
select set_eq(
    'select f.id from several as l, outbox_extend(l.lease) as f',
    $$select unnest(pg_temp.ids('several'))$$,
    'null ids are the whole lease'
);
select bag_eq(
    $$select f.id from several as l, pg_temp.ids('several') as i, outbox_extend(l.lease, array[i[1], i[1], -1], '1 day') as f$$,
    $$select (pg_temp.ids('several'))[1]$$,
    'repeated ids count once; ids that are not held are missing from the answer'
);
select results_eq(
    $$select lease_expires_at > clock_timestamp() + interval '1 hour' from outbox_event_status where topic = 'several' order by id$$,
    'values (true), (false), (false)',
    'an extension of some ids leaves the others as they are'
);
select is_empty(
    $$select outbox_extend(lease, '{}') from several$$,
    'an empty array extends nothing'
);
select is_empty(
    'select outbox_extend(-1)',
    'a lease that nobody has is no error'
);
create temp table expired as select pg_temp.claimed('expired') as lease;
do $$ begin perform pg_temp.expire('expired'); end $$;
select set_eq(
    'select f.id from expired as l, outbox_extend(l.lease) as f',
    $$select unnest(pg_temp.ids('expired'))$$,
    'a lease that has expired but was not reaped is extended'
);
do $$ begin perform outbox_reap(); end $$;
select is(
    pg_temp.statuses('expired'), 'processing',
    'a lease that was extended in time is not taken back'
);
create temp table attempts as select pg_temp.claimed('attempts') as lease;
do $$ begin perform outbox_extend(lease), outbox_extend(lease) from attempts; end $$;
select is(
    (select attempts from outbox_event_status where topic = 'attempts'), 1,
    'an extension counts no attempt'
);

-- Fencing
create temp table lost as select pg_temp.claimed('lost') as lease;
do $$ begin perform pg_temp.lose('lost'); end $$;
select is_empty(
    $$select outbox_extend(lease, lease_for => '30 days') from lost$$,
    'a lease that was lost answers nothing'
);
select ok(
    pg_temp.expires_in('lost') <= '5 minutes',
    'an extension under a lost lease does not touch the claim that has the event now'
);
create temp table borrowed as select pg_temp.claimed('borrowed 1') as lease, pg_temp.claimed('borrowed 2') as other;
select is_empty(
    $$select outbox_extend(lease, pg_temp.ids('borrowed 2'), '1 hour') from borrowed$$,
    'a lease cannot extend what another lease holds'
);
select ok(
    pg_temp.expires_in('borrowed 2') <= '5 minutes',
    'what another lease holds expires as before'
);

-- Bad arguments
create temp table bad as select pg_temp.claimed('bad') as lease;
select throws_ok(
    'select outbox_extend(null)', '22004', 'lease is null',
    'a null lease is refused'
);
select is(
    pg_temp.hint_of('select outbox_extend(null)'), 'Give the lease that outbox_claim answered.',
    'the hint for a null lease says what to give'
);
select throws_ok(
    $$select outbox_extend(lease, array[null, 1]::bigint[], '1 hour') from bad$$, '22004', 'ids has a null at position 1',
    'a null among the ids is refused'
);
select is(
    pg_temp.hint_of('select outbox_extend(1, array[null]::bigint[])'), 'Give the ids of events; leave out what is null.',
    'the hint for a null among the ids says what to do'
);
select throws_ok(
    $$select outbox_extend(lease, lease_for => '0.099 seconds') from bad$$, '22023', 'lease_for is 00:00:00.099',
    'a lease_for below 0.1 seconds is refused'
);
select throws_ok(
    $$select outbox_extend(lease, lease_for => '30 days 1 second') from bad$$, '22023', 'lease_for is 30 days 00:00:01',
    'a lease_for above 30 days is refused'
);
select is(
    pg_temp.hint_of($$select outbox_extend(1, lease_for => '0')$$), 'Give an interval from 00:00:00.1 to 30 days.',
    'the hint for lease_for states the bounds'
);
select throws_ok(
    case
        when current_setting('server_version_num')::integer >= 170000
            then $$select outbox_extend(lease, lease_for => 'infinity') from bad$$
        else $$select outbox_extend(lease, lease_for => '178000000 years') from bad$$
    end,
    '22023', null,
    'an infinite lease_for, or where there is none the longest, is refused'
);
select ok(
    pg_temp.expires_in('bad') <= '5 minutes',
    'a refused extension changes nothing'
);
select lives_ok(
    $$select outbox_extend(lease, lease_for => '0.1 seconds'), outbox_extend(lease, lease_for => '30 days') from bad$$,
    'lease_for may be 0.1 seconds and 30 days'
);

select * from finish();
rollback;
