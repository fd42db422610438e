begin;
select plan(23);

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

create temp table released as select pg_temp.claimed('released', 2) as lease;
select set_eq(
    'select outbox_release(lease) from released',
    $$select unnest(pg_temp.ids('released'))$$,
    'a release of a lease answers all ids that it held'
);
select results_eq(
    $$select status, attempts, locked_by from outbox_event_status where topic = 'released'$$,
    $$values ('pending', 0, null::text), ('pending', 0, null)$$,
    'a release of a first attempt leaves the events pending, the attempt un-counted'
);
select is_empty(
    'select outbox_release(lease) from released',
    'a second release of a lease answers nothing'
);
select results_eq(
    $$select payload, attempt from outbox_claim('w', 2, array['released'])$$,
    $$values ('1'::jsonb, 1), ('2', 1)$$,
    'released events are delivered at once, as the same attempt, in their order'
);
do $$
begin
    perform outbox_enqueue('second attempt', '1', max_attempts => 2);
    perform outbox_fail(lease, error => 'boom', retry_in => '0') from outbox_claim('w', 1, array['second attempt']);
    for i in 1..5 loop
        perform outbox_release(lease) from outbox_claim('w', 1, array['second attempt']);
    end loop;
end;
$$;
select results_eq(
    $$select status, attempts, last_error from outbox_event_status where topic = 'second attempt'$$,
    $$values ('retry', 1, 'boom')$$,
    'a release un-counts one attempt: the failed ones stay counted, as often as it is released'
);
select is(
    (select attempt from outbox_claim('w', 1, array['second attempt'])), 2,
    'a released event is delivered with the attempt that was un-counted'
);
create temp table several as select pg_temp.claimed('several', 3) as lease;
select bag_eq(
    $$select outbox_release(l.lease, array[i[2], i[2], -1]) from several as l, pg_temp.ids('several') as i$$,
    $$select (pg_temp.ids('several'))[2]$$,
    'repeated ids count once; ids that are not held are missing from the answer'
);
select is(
    pg_temp.statuses('several'), 'processing pending processing',
    'a release of some ids leaves the others in flight'
);
select is_empty(
    $$select outbox_release(lease, '{}') from several$$,
    'an empty array releases nothing'
);
select set_eq(
    'select outbox_release(lease, null) from several',
    $$select unnest((pg_temp.ids('several'))[1:1] || (pg_temp.ids('several'))[3:3])$$,
    'null ids are all that is left of the lease'
);
select is_empty(
    'select outbox_release(-1)',
    'a lease that nobody has is no error'
);
create temp table expired as select pg_temp.claimed('expired') as lease;
do $$ begin perform pg_temp.expire('expired'); end $$;
select is(
    (select count(*) from expired as l, outbox_release(l.lease)), 1::bigint,
    'a lease that has expired but was not reaped is released'
);
select results_eq(
    $$select attempts, status from outbox_event_status where topic = 'expired'$$,
    $$values (0, 'pending')$$,
    'an event that was released under an expired lease has not lost it'
);

-- Fencing
create temp table lost as select pg_temp.claimed('lost') as lease;
do $$ begin perform pg_temp.lose('lost'); end $$;
select is_empty(
    'select outbox_release(lease) from lost',
    'a lease that was lost answers nothing'
);
select results_eq(
    $$select status, locked_by, attempts from outbox_event_status where topic = 'lost'$$,
    $$values ('processing', 'another', 2)$$,
    'a release under a lost lease leaves the event to the claim that has it now'
);
create temp table borrowed as select pg_temp.claimed('borrowed 1') as lease, pg_temp.claimed('borrowed 2') as other;
select is_empty(
    $$select outbox_release(lease, pg_temp.ids('borrowed 2')) from borrowed$$,
    'a lease cannot release what another lease holds'
);
select is(
    pg_temp.statuses('borrowed 2'), 'processing',
    'what another lease holds is left to it'
);

-- Suspects
do $$
begin
    perform pg_temp.claimed('suspect');
    perform pg_temp.lose('suspect');
    perform outbox_enqueue('suspect', '"other"') from generate_series(1, 3);
    perform outbox_release(l.lease) from outbox_leases as l where l.locked_by = 'another' and l.id = (pg_temp.ids('suspect'))[1];
end;
$$;
select set_eq(
    $$select a.n::text || ' ' || a.payloads
        from (
            select count(*) as n, string_agg(distinct payload::text, ' ') as payloads from outbox_claim('w', 3, array['suspect'])
            union all
            select count(*), string_agg(distinct payload::text, ' ') from outbox_claim('w', 3, array['suspect'])
        ) as a$$,
    $$values ('1 1'), ('3 "other"')$$,
    'an event whose lease was lost is delivered alone, also after a release'
);

-- Bad arguments
create temp table bad as select pg_temp.claimed('bad') as lease;
select throws_ok(
    'select outbox_release(null)', '22004', 'lease is null',
    'a null lease is refused'
);
select is(
    pg_temp.hint_of('select outbox_release(null)'), 'Give the lease that outbox_claim answered.',
    'the hint for a null lease says what to give'
);
select throws_ok(
    $$select outbox_release(lease, pg_temp.ids('bad') || null::bigint) from bad$$, '22004', 'ids has a null at position 2',
    'a null among the ids is refused'
);
select is(
    pg_temp.hint_of('select outbox_release(1, array[null]::bigint[])'), 'Give the ids of events; leave out what is null.',
    'the hint for a null among the ids says what to do'
);
select is(
    pg_temp.statuses('bad'), 'processing',
    'a refused release changes nothing'
);

select * from finish();
rollback;
