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

-- A topic of its own with the payloads 1 to n, all dead.
create function pg_temp.bury(topic text, n integer default 1, ordering_key text default null)
returns void
language plpgsql
as $$
begin
    perform outbox_enqueue(topic, to_jsonb(g), ordering_key => bury.ordering_key, max_attempts => 1) from generate_series(1, n) as g;
    perform outbox_fail(l.lease, error => 'boom') from (select distinct lease from outbox_claim('w', n, array[topic])) as l;
end;
$$;

create function pg_temp.ids(text)
returns bigint[]
language sql
as $$ select array_agg(id order by id) from outbox_events where topic = $1 $$;

create function pg_temp.statuses(text)
returns text
language sql
as $$ select string_agg(status, ' ' order by id) from outbox_event_status where topic = $1 $$;

do $$ begin perform pg_temp.bury('ids', 3); end $$;
select bag_eq(
    $$select outbox_redrive(array[i[1], i[3], i[1], -1]) from pg_temp.ids('ids') as i$$,
    $$select unnest(array[i[1], i[3]]) from pg_temp.ids('ids') as i$$,
    'a redrive answers the ids of the dead letters it put back; repeated ids count once, others are missing'
);
select is(
    pg_temp.statuses('ids'), 'pending dead pending',
    'redriven events are pending; the others stay dead'
);
select results_eq(
    $$select distinct attempts from outbox_event_status where topic = 'ids' and status = 'pending'$$,
    'values (0)',
    'a redriven event has its attempts from 0'
);
select results_eq(
    $$select payload, attempt from outbox_claim('w', 10, array['ids'])$$,
    $$values ('1'::jsonb, 1), ('3', 1)$$,
    'redriven events are delivered at once, in the order of their ids'
);
select is_empty(
    $$select outbox_redrive(pg_temp.ids('ids')) as id except select (pg_temp.ids('ids'))[2]$$,
    'what is not dead is not redriven'
);
select is_empty(
    $$select outbox_redrive('{}')$$,
    'an empty array redrives nothing'
);
do $$ begin perform pg_temp.bury('topic', 2), pg_temp.bury('other topic', 2); end $$;
select set_eq(
    $$select outbox_redrive(topic => 'topic')$$,
    $$select unnest(pg_temp.ids('topic'))$$,
    'a redrive of a topic answers the ids of all its dead letters'
);
select is(
    pg_temp.statuses('other topic'), 'dead dead',
    'a redrive of a topic leaves others alone'
);
select is_empty(
    $$select outbox_redrive(topic => 'unknown')$$,
    'a topic that nobody knows has no dead letters'
);
do $$ begin perform pg_temp.bury('bounded', 5); end $$;
select is(
    (select count(*) from outbox_redrive(topic => 'bounded', n => 2)), 2::bigint,
    'a redrive puts back at most n'
);
do $$
begin
    perform pg_temp.bury('until dead again');
    perform outbox_redrive(topic => 'until dead again');
    perform outbox_fail(lease, dead => true) from outbox_claim('w', 1, array['until dead again']);
end;
$$;
select results_eq(
    $$select attempts, lost_leases, reason from outbox_dead_letters where topic = 'until dead again'$$,
    $$values (1, 0, 'discarded')$$,
    'a redriven event that dies again has the attempts since'
);
do $$
begin
    perform outbox_enqueue('was lost', '1', max_attempts => 1);
    perform outbox_claim('w', 1, array['was lost']);
    update outbox_leases set expires_at = clock_timestamp() - interval '1 second' where id = any (pg_temp.ids('was lost'));
    perform outbox_reap();
    perform outbox_redrive(topic => 'was lost');
end;
$$;
select is(
    (select attempt from outbox_claim('w', 1, array['was lost'])), 1,
    'an event that lost its lease is redriven like any other'
);

-- Ordering keys
do $$
begin
    perform outbox_configure('blocking', on_dead => 'block');
    perform pg_temp.bury('blocking', 1, 'o');
    perform outbox_enqueue('blocking', '2', ordering_key => 'o');
    perform outbox_redrive(topic => 'blocking');
end;
$$;
select is(
    pg_temp.statuses('blocking'), 'pending blocked',
    'with on_dead block a redriven head is again the head of its key'
);
do $$
begin
    perform outbox_enqueue('in flight', to_jsonb(g), ordering_key => 'o') from generate_series(1, 3) as g;
    perform outbox_fail(lease, dead => true) from outbox_claim('w', 1, array['in flight']);
    perform outbox_claim('w', 1, array['in flight']);
    perform outbox_redrive(topic => 'in flight');
end;
$$;
select is(
    pg_temp.statuses('in flight'), 'blocked processing blocked',
    'with on_dead skip a redriven event waits for its successor that is in flight'
);
do $$ begin perform outbox_ack(l.lease) from outbox_leases as l where l.id = any (pg_temp.ids('in flight')); end $$;
select is(
    pg_temp.statuses('in flight'), 'pending done blocked',
    'a redriven event comes next after the one in flight'
);
do $$
begin
    perform outbox_enqueue('waiting', to_jsonb(g), ordering_key => 'o') from generate_series(1, 3) as g;
    perform outbox_fail(lease, dead => true) from outbox_claim('w', 1, array['waiting']);
    perform outbox_redrive(topic => 'waiting');
end;
$$;
select is(
    pg_temp.statuses('waiting'), 'pending blocked blocked',
    'a redriven event takes the place of its id before a successor that only waits'
);

-- Bad arguments
do $$ begin perform pg_temp.bury('bad'); end $$;
select throws_ok(
    'select outbox_redrive()', '22004', 'ids and topic are null',
    'neither ids nor topic is refused'
);
select is(
    pg_temp.hint_of('select outbox_redrive()'), 'Give the ids of dead letters, or a topic to redrive n of its dead letters.',
    'the hint for neither says what to give'
);
select throws_ok(
    $$select outbox_redrive(pg_temp.ids('bad') || null::bigint)$$, '22004', 'ids has a null at position 2',
    'a null among the ids is refused'
);
select is(
    pg_temp.hint_of('select outbox_redrive(array[null]::bigint[])'), 'Give the ids of events; leave out what is null.',
    'the hint for a null among the ids says what to do'
);
select throws_ok(
    $$select outbox_redrive(topic => '')$$, '22023', 'topic has 0 bytes: ""',
    'an empty topic is refused'
);
select throws_ok(
    $$select outbox_redrive(topic => 'bad', n => 0)$$, '22023', 'n is 0',
    'an n of 0 is refused'
);
select throws_ok(
    $$select outbox_redrive(topic => 'bad', n => 10001)$$, '22023', 'n is 10001',
    'an n of 10,001 is refused'
);
select is(
    pg_temp.hint_of($$select outbox_redrive(topic => 'bad', n => 0)$$), 'Give a number from 1 to 10000.',
    'the hint for n states the bounds'
);
select throws_ok(
    $$select outbox_redrive(topic => 'none', n => null)$$, '22004', 'n is null',
    'a null n is refused'
);
select is(
    pg_temp.statuses('bad'), 'dead',
    'a refused redrive changes nothing'
);
select lives_ok(
    $$select outbox_redrive(topic => 'none', n => 1), outbox_redrive(topic => 'none', n => 10000)$$,
    'n may be 1 and 10,000'
);

select * from finish();
rollback;
