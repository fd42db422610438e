begin;
select plan(18);

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

-- Moves an expiry or a due time of a topic's events to so long after the database's clock.
create function pg_temp.move(text, wait interval)
returns void
language sql
as $$
    update outbox_leases set expires_at = clock_timestamp() + wait where id in (select e.id from outbox_events as e where e.topic = $1);
    update outbox_scheduled set available_at = clock_timestamp() + wait where id in (select e.id from outbox_events as e where e.topic = $1);
$$;

-- Whether something of these topics can be claimed now: next_due says a time that is not before this call and not after it.
create function pg_temp.is_now(variadic topics text[])
returns boolean
language plpgsql
as $$
declare
    v_before timestamptz := clock_timestamp();
    v_due timestamptz := outbox_next_due(topics);
begin
    return v_due between v_before and clock_timestamp();
end;
$$;

select is(
    outbox_next_due(), null,
    'where there is nothing, there is no next due'
);
do $$ begin perform outbox_enqueue('ready', '1'); end $$;
select ok(
    pg_temp.is_now('ready'),
    'where an event is ready, next due is now'
);
select is(
    outbox_next_due(array['another']), null,
    'only the topics that are named count; an unknown one is no error'
);
select ok(
    outbox_next_due(topics => null) <= clock_timestamp(),
    'null topics are all topics'
);
do $$
begin
    perform outbox_enqueue('scheduled', '1', available_at => '2999-01-02 00:00+00');
    perform outbox_enqueue('scheduled', '2', available_at => '2999-01-01 00:00+00');
    perform outbox_enqueue('scheduled', '3', available_at => '2999-01-03 00:00+00', priority => 10);
end;
$$;
select is(
    outbox_next_due(array['scheduled']), '2999-01-01 00:00+00'::timestamptz,
    'where events are scheduled, it is the earliest time, whatever the priority'
);
do $$
begin
    perform outbox_enqueue('due', '1', available_at => clock_timestamp() + interval '1 hour');
    perform pg_temp.move('due', '-1 second');
end;
$$;
select ok(
    pg_temp.is_now('due'),
    'where an event is due but nobody has made it ready, it is now'
);
do $$ begin perform outbox_enqueue('retry', '1'); end $$;
create temp table retry as
select f.available_at from outbox_claim('w', 1, array['retry']) as c, outbox_fail(c.lease, retry_in => '1 hour') as f;
select is(
    outbox_next_due(array['retry']), (select available_at from retry),
    'where an event waits for its retry, it is that time'
);
do $$ begin perform outbox_enqueue('leased', to_jsonb(g)) from generate_series(1, 2) as g; end $$;
create temp table leased as
select lease_expires_at from outbox_claim('w', 1, array['leased'], '2 hours') union all
select lease_expires_at from outbox_claim('w', 1, array['leased'], '1 hour');
select is(
    outbox_next_due(array['leased']), (select min(lease_expires_at) from leased),
    'where all is in flight, it is the earliest expiry'
);
select is(
    outbox_next_due(array['leased', 'retry']), least((select min(lease_expires_at) from leased), (select available_at from retry)),
    'among topics and kinds it is the earliest time'
);
do $$ begin perform pg_temp.move('leased', '-1 second'); end $$;
select ok(
    pg_temp.is_now('leased'),
    'where a lease has expired, it is now'
);
do $$
begin
    perform outbox_enqueue('blocked', to_jsonb(g), ordering_key => 'o', available_at => case g when 1 then '2999-01-01 00:00+00'::timestamptz end)
       from generate_series(1, 2) as g;
end;
$$;
select is(
    outbox_next_due(array['blocked']), '2999-01-01 00:00+00'::timestamptz,
    'a blocked event does not count, though its own time has come'
);
do $$
begin
    perform outbox_configure('standing', on_dead => 'block');
    perform outbox_enqueue('standing', to_jsonb(g), ordering_key => 'o') from generate_series(1, 2) as g;
    perform outbox_fail(lease, dead => true) from outbox_claim('w', 1, array['standing']);
end;
$$;
select is(
    outbox_next_due(array['standing']), null,
    'neither a dead event counts nor what it blocks'
);
do $$
begin
    perform outbox_enqueue('done', '1');
    perform outbox_ack(lease) from outbox_claim('w', 1, array['done']);
end;
$$;
select is(
    outbox_next_due(array['done']), null,
    'a done event does not count'
);
do $$ begin perform outbox_pause('ready'), outbox_pause('scheduled'), outbox_pause('leased'); end $$;
select is(
    outbox_next_due(array['ready', 'scheduled', 'leased']), null,
    'a paused topic does not count: neither what is ready, nor scheduled, nor in flight'
);
do $$ begin perform outbox_resume('ready'); end $$;
select ok(
    pg_temp.is_now('ready', 'scheduled'),
    'a resumed topic counts again'
);
do $$
begin
    perform outbox_enqueue('lost', '1');
    perform outbox_claim('w', 1, array['lost']);
    perform pg_temp.move('lost', '-1 second');
    perform outbox_reap();
    perform pg_temp.move('lost', '1 hour');
end;
$$;
select is(
    outbox_next_due(array['lost']), (select available_at from outbox_event_status where topic = 'lost'),
    'where an event has lost its lease, it is the time of its retry'
);
select throws_ok(
    $$select outbox_next_due('{}')$$, '22023', 'topics is an empty array',
    'an empty array of topics is refused'
);
select is(
    pg_temp.hint_of($$select outbox_next_due('{}')$$), 'Name at least one topic, or give null for all topics.',
    'the hint for an empty array of topics says what to give'
);

select * from finish();
rollback;
