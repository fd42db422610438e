begin;
select plan(84);

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

-- An event with the dedupe key k in a topic of its own, brought into this state.
create function pg_temp.event_in(state text, topic text)
returns bigint
language plpgsql
as $$
declare
    v_id bigint;
    v_key text := case when state = 'blocked' then 'o' end;
begin
    if state = 'blocked' then
        perform outbox_enqueue(topic, '"head"', ordering_key => v_key);
    end if;
    select e.id
      into v_id
      from outbox_enqueue(
               topic, '"old"', 'k', v_key, '{"h": "old"}',
               available_at => case when state = 'scheduled' then clock_timestamp() + interval '1 hour' end
           ) as e;
    if state in ('retry', 'processing', 'done', 'dead') then
        perform case state
                    when 'retry' then (select count(*) from outbox_fail(c.lease, retry_in => '1 hour'))
                    when 'done' then (select count(*) from outbox_ack(c.lease))
                    when 'dead' then (select count(*) from outbox_fail(c.lease, dead => true))
                end
           from outbox_claim('w', 1, array[topic]) as c;
    end if;
    return v_id;
end;
$$;

-- What a repeated enqueue answers in this mode, and what it leaves.
create function pg_temp.repeated(mode text, state text)
returns text
language plpgsql
as $$
declare
    v_topic text := mode || ' ' || state;
    v_id bigint := pg_temp.event_in(state, v_topic);
    v_answer record;
begin
    select * into v_answer from outbox_enqueue(v_topic, '"new"', 'k', headers => '{"h": "new"}', on_duplicate => mode);
    return (
        select format(
                   'first id %s, created %s, changed %s: payload %s, headers %s, status %s',
                   v_answer.id = v_id, v_answer.created, v_answer.changed, payload, headers, status
               )
          from outbox_event_status
         where id = v_id
    );
end;
$$;

-- One event
create temp table started as select clock_timestamp() as at;
create temp table one as select * from outbox_enqueue('one', '{"n": 1}');
select results_eq(
    'select count(*), min(id) > 0, bool_and(created), bool_and(changed) from one',
    'values (1::bigint, true, true, true)',
    'an enqueue answers one row: the id, created and changed'
);
select results_eq(
    $$select topic, payload from outbox_events where id = (select id from one)$$,
    $$values ('one', '{"n": 1}'::jsonb)$$,
    'the answered id is the event''s'
);
select results_eq(
    $$select dedupe_key, ordering_key, headers, priority, max_attempts, status, attempts
        from outbox_event_status where topic = 'one'$$,
    $$values (null::text, null::text, '{}'::jsonb, 0, 5, 'pending', 0)$$,
    'what is not given takes its default'
);
select results_eq(
    $$select created_at >= (select at from started) and created_at <= clock_timestamp() from outbox_events where topic = 'one'$$,
    'values (true)',
    'created_at is the database''s clock, not the start of the transaction'
);
do $$
begin
    perform outbox_enqueue(
        topic => 'full', payload => '[1]', dedupe_key => 'd', ordering_key => 'o', headers => '{"trace": "x"}',
        priority => -3, available_at => '2999-01-01 00:00+00', max_attempts => 7, on_duplicate => 'replace'
    );
end;
$$;
select results_eq(
    $$select dedupe_key, ordering_key, headers, priority, available_at, max_attempts, status
        from outbox_event_status where topic = 'full'$$,
    $$values ('d', 'o', '{"trace": "x"}'::jsonb, -3, '2999-01-01 00:00+00'::timestamptz, 7, 'pending')$$,
    'every argument can be named and is kept'
);
do $$
begin
    perform outbox_enqueue(
        'nulls', '1', dedupe_key => null, ordering_key => null, headers => null, priority => null,
        available_at => null, max_attempts => null, on_duplicate => null
    );
end;
$$;
select results_eq(
    $$select dedupe_key, ordering_key, headers, priority, max_attempts, status from outbox_event_status where topic = 'nulls'$$,
    $$values (null::text, null::text, '{}'::jsonb, 0, 5, 'pending')$$,
    'a null for what has a default is the default'
);
create temp table starred as select (outbox_enqueue('starred', '1')).*;
select is(
    (select count(*) from outbox_events where topic = 'starred'), 1::bigint,
    'select (outbox_enqueue(...)).* enqueues once'
);
do $$ begin perform outbox_enqueue('json null', 'null'); end $$;
select is(
    (select payload from outbox_claim('w', 1, array['json null'])), 'null'::jsonb,
    'a JSON null is a payload'
);
savepoint before_enqueue;
do $$ begin perform outbox_enqueue('undone', '1', 'k', 'o'); end $$;
rollback to savepoint before_enqueue;
select is_empty(
    $$select from outbox_event_status where topic = 'undone'
      union all select from outbox_claim('w', 1, array['undone'])$$,
    'an event whose enqueue is rolled back does not exist'
);
do $$ begin for n in 1..5 loop perform outbox_enqueue('ascending', to_jsonb(n)); end loop; end $$;
select is(
    (select array_agg(payload order by id) from outbox_events where topic = 'ascending'), array['1', '2', '3', '4', '5']::jsonb[],
    'ids ascend in the order of the enqueues'
);

-- Time
do $$ begin perform outbox_enqueue('past', '1', available_at => clock_timestamp() - interval '1 year'); end $$;
select is(
    (select count(*) from outbox_claim('w', 1, array['past'])), 1::bigint,
    'an available_at in the past is now'
);
do $$ begin perform outbox_enqueue('future', '1', available_at => clock_timestamp() + interval '1 hour'); end $$;
select is_empty(
    $$select from outbox_claim('w', 1, array['future'])$$,
    'an event is not delivered before its available_at'
);

-- Nulls
select throws_ok(
    $$select outbox_enqueue(null, '1')$$, '22004', 'topic is null',
    'a null topic is refused'
);
select is(
    pg_temp.hint_of($$select outbox_enqueue(null, '1')$$), 'Give a text of 1 to 200 bytes.',
    'the hint for a null topic says what to give'
);
select throws_ok(
    $$select outbox_enqueue('bad', null)$$, '22004', 'payload is null',
    'a null payload is refused'
);
select is(
    pg_temp.hint_of($$select outbox_enqueue('bad', null)$$), 'For a JSON null give ''null''::jsonb.',
    'the hint for a null payload tells it from a JSON null'
);

-- Texts
select throws_ok(
    $$select outbox_enqueue('', '1')$$, '22023', 'topic has 0 bytes: ""',
    'an empty topic is refused'
);
select lives_ok(
    $$select outbox_enqueue('x', '1'), outbox_enqueue(repeat('a', 199), '1'), outbox_enqueue(repeat('a', 200), '1')$$,
    'a topic may have 1, 199 and 200 bytes'
);
select throws_ok(
    $$select outbox_enqueue(repeat('a', 201), '1')$$, '22023', format('topic has 201 bytes: "%s"', repeat('a', 60)),
    'a topic of 201 bytes is refused'
);
select is(
    pg_temp.hint_of($$select outbox_enqueue(repeat('a', 201), '1')$$), 'Give a text of 1 to 200 bytes.',
    'the hint for a long topic states the bounds'
);
select lives_ok(
    $$select outbox_enqueue(repeat('é', 100), '1')$$,
    'a topic of 100 two-byte characters fits'
);
select throws_ok(
    $$select outbox_enqueue(repeat('é', 100) || 'a', '1')$$, '22023', format('topic has 201 bytes: "%s"', repeat('é', 60)),
    'a topic is measured in bytes, not in characters'
);
select lives_ok(
    $$select outbox_enqueue('robert"); drop table outbox_events; -- %I $1 ''', '1')$$,
    'a topic has no other rule'
);
select throws_ok(
    $$select outbox_enqueue('bad', '1', dedupe_key => '')$$, '22023', 'dedupe_key has 0 bytes: ""',
    'an empty dedupe_key is refused'
);
select lives_ok(
    $$select outbox_enqueue('keys', '1', dedupe_key => 'd'), outbox_enqueue('keys', '1', dedupe_key => repeat('d', 500)),
             outbox_enqueue('keys', '1', dedupe_key => repeat('é', 250))$$,
    'a dedupe_key may have 1 and 500 bytes'
);
select throws_ok(
    $$select outbox_enqueue('bad', '1', dedupe_key => repeat('d', 501))$$, '22023', format('dedupe_key has 501 bytes: "%s"', repeat('d', 60)),
    'a dedupe_key of 501 bytes is refused'
);
select is(
    pg_temp.hint_of($$select outbox_enqueue('bad', '1', dedupe_key => repeat('d', 501))$$), 'Give a text of 1 to 500 bytes.',
    'the hint for a long dedupe_key states the bounds'
);
select throws_ok(
    $$select outbox_enqueue('bad', '1', ordering_key => '')$$, '22023', 'ordering_key has 0 bytes: ""',
    'an empty ordering_key is refused'
);
select lives_ok(
    $$select outbox_enqueue('keys', '1', ordering_key => 'o'), outbox_enqueue('keys', '1', ordering_key => repeat('o', 500)),
             outbox_enqueue('keys', '1', ordering_key => repeat('é', 250))$$,
    'an ordering_key may have 1 and 500 bytes'
);
select throws_ok(
    $$select outbox_enqueue('bad', '1', ordering_key => repeat('é', 250) || 'o')$$, '22023', format('ordering_key has 501 bytes: "%s"', repeat('é', 60)),
    'an ordering_key of 501 bytes is refused'
);
select is(
    pg_temp.hint_of($$select outbox_enqueue('bad', '1', ordering_key => '')$$), 'Give a text of 1 to 500 bytes.',
    'the hint for an empty ordering_key states the bounds'
);

-- Numbers, times, modes
select lives_ok(
    $$select outbox_enqueue('bounds', '1', priority => -10), outbox_enqueue('bounds', '1', priority => 10)$$,
    'a priority may be -10 and 10'
);
select throws_ok(
    $$select outbox_enqueue('bad', '1', priority => -11)$$, '22023', 'priority is -11',
    'a priority of -11 is refused'
);
select throws_ok(
    $$select outbox_enqueue('bad', '1', priority => 11)$$, '22023', 'priority is 11',
    'a priority of 11 is refused'
);
select is(
    pg_temp.hint_of($$select outbox_enqueue('bad', '1', priority => 11)$$), 'Give a number from -10 to 10.',
    'the hint for a priority states the bounds'
);
select lives_ok(
    $$select outbox_enqueue('bounds', '1', max_attempts => 1), outbox_enqueue('bounds', '1', max_attempts => 1000)$$,
    'max_attempts may be 1 and 1,000'
);
select throws_ok(
    $$select outbox_enqueue('bad', '1', max_attempts => 0)$$, '22023', 'max_attempts is 0',
    'max_attempts of 0 are refused'
);
select throws_ok(
    $$select outbox_enqueue('bad', '1', max_attempts => 1001)$$, '22023', 'max_attempts is 1001',
    'max_attempts of 1,001 are refused'
);
select is(
    pg_temp.hint_of($$select outbox_enqueue('bad', '1', max_attempts => 0)$$), 'Give a number from 1 to 1000.',
    'the hint for max_attempts states the bounds'
);
select throws_ok(
    $$select outbox_enqueue('bad', '1', available_at => 'infinity')$$, '22023', 'available_at is infinity',
    'an available_at of infinity is refused'
);
select throws_ok(
    $$select outbox_enqueue('bad', '1', available_at => '-infinity')$$, '22023', 'available_at is -infinity',
    'an available_at of -infinity is refused, though it is past'
);
select is(
    pg_temp.hint_of($$select outbox_enqueue('bad', '1', available_at => 'infinity')$$), 'Give a finite time, or null for at once.',
    'the hint for an infinite available_at says what to give'
);
select throws_ok(
    $$select outbox_enqueue('bad', '1', on_duplicate => 'upsert')$$, '22023', 'on_duplicate is "upsert"',
    'an unknown on_duplicate is refused, duplicate or not'
);
select is(
    pg_temp.hint_of($$select outbox_enqueue('bad', '1', on_duplicate => 'upsert')$$), 'Give ignore, replace or requeue.',
    'the hint for on_duplicate names the modes'
);
select is_empty(
    $$select from outbox_events where topic in ('bad', '') or octet_length(topic) > 200$$,
    'a refused enqueue leaves no event'
);

-- Dedupe keys
create temp table first_of_two as select * from outbox_enqueue('dedupe', '1', 'k');
select results_eq(
    $$select id, created, changed from outbox_enqueue('dedupe', '2', 'k')$$,
    $$select id, false, false from first_of_two$$,
    'a duplicate gives the first event''s id, not created, not changed'
);
select is(
    (select count(*) from outbox_claim('w', 10, array['dedupe'])), 1::bigint,
    'a duplicate is not delivered'
);
select ok(
    (select created from outbox_enqueue('another topic', '1', 'k')),
    'a dedupe_key is unique within its topic only'
);
select ok(
    (select a.created and b.created from outbox_enqueue('no key', '1') as a, outbox_enqueue('no key', '1') as b),
    'a null dedupe_key never dedupes'
);
do $$ begin perform outbox_cancel(array(select id from outbox_enqueue('freed', '1', 'k'))); end $$;
select ok(
    (select created from outbox_enqueue('freed', '2', 'k')),
    'the dedupe_key of a cancelled event is free again'
);
select throws_ok(
    $$select outbox_enqueue('dedupe', '2', 'k', priority => 11)$$, '22023', 'priority is 11',
    'a duplicate is checked like any enqueue'
);

-- On a duplicate: ignore
select is(
    pg_temp.repeated('ignore', s.state),
    format('first id t, created f, changed f: payload "old", headers {"h": "old"}, status %s', s.status),
    format('ignore leaves an event that is %s as it is', s.state)
)
  from (values ('pending', 'pending'), ('scheduled', 'pending'), ('retry', 'retry'), ('blocked', 'blocked'),
               ('processing', 'processing'), ('done', 'done'), ('dead', 'dead')) as s (state, status);

-- On a duplicate: replace
select is(
    pg_temp.repeated('replace', s.state),
    format('first id t, created f, changed t: payload "new", headers {"h": "new"}, status %s', s.status),
    format('replace overwrites an event that is %s', s.state)
)
  from (values ('pending', 'pending'), ('scheduled', 'pending'), ('retry', 'retry'), ('blocked', 'blocked')) as s (state, status);
select is(
    pg_temp.repeated('replace', s.state),
    format('first id t, created f, changed f: payload "old", headers {"h": "old"}, status %s', s.state),
    format('replace leaves an event that is %s as it is', s.state)
)
  from (values ('processing'), ('done'), ('dead')) as s (state);
select is(
    (select payload from outbox_claim('w', 1, array['replace pending'])), '"new"'::jsonb,
    'a replaced event is delivered with its new payload'
);
select is(
    (select payload from outbox_claim('w', 1, array['replace scheduled'])), '"new"'::jsonb,
    'replace without available_at makes a scheduled event ready'
);
select results_eq(
    $$select payload, attempt from outbox_claim('w', 1, array['replace retry'])$$,
    $$values ('"new"'::jsonb, 2)$$,
    'replace keeps the attempts of a retry'
);
do $$
begin
    perform pg_temp.event_in('pending', 'later');
    perform outbox_enqueue('later', '"new"', 'k', available_at => '2999-01-01 00:00+00', on_duplicate => 'replace');
end;
$$;
select results_eq(
    $$select status, available_at from outbox_event_status where topic = 'later'$$,
    $$values ('pending', '2999-01-01 00:00+00'::timestamptz)$$,
    'replace overwrites available_at'
);
select is_empty(
    $$select from outbox_claim('w', 1, array['later'])$$,
    'an event that replace put off is not delivered before'
);
do $$
begin
    perform outbox_enqueue('untouched', '1', 'k', 'o', priority => 3, max_attempts => 4);
    perform outbox_enqueue('untouched', '2', 'k', 'p', priority => 5, max_attempts => 6, on_duplicate => 'replace');
end;
$$;
select results_eq(
    $$select payload, ordering_key, priority, max_attempts from outbox_claim('w', 1, array['untouched'])$$,
    $$values ('2'::jsonb, 'o', 3, 4)$$,
    'replace touches neither ordering_key nor priority nor max_attempts'
);
do $$ begin perform outbox_ack(lease) from outbox_claim('w', 1, array['replace blocked']); end $$;
select is(
    (select payload from outbox_claim('w', 1, array['replace blocked'])), '"new"'::jsonb,
    'a replaced blocked event is delivered with its new payload when its turn comes'
);

-- On a duplicate: requeue
select is(
    pg_temp.repeated('requeue', 'retry'),
    'first id t, created f, changed t: payload "old", headers {"h": "old"}, status retry',
    'requeue changes a retry but not its payload'
);
select is(
    pg_temp.repeated('requeue', 'done'),
    'first id t, created f, changed t: payload "old", headers {"h": "old"}, status pending',
    'requeue puts a done event back but does not touch its payload'
);
select is(
    pg_temp.repeated('requeue', s.state),
    format('first id t, created f, changed f: payload "old", headers {"h": "old"}, status %s', s.status),
    format('requeue leaves an event that is %s as it is', s.state)
)
  from (values ('pending', 'pending'), ('scheduled', 'pending'), ('blocked', 'blocked'),
               ('processing', 'processing'), ('dead', 'dead')) as s (state, status);
select is(
    (select attempt from outbox_claim('w', 1, array['requeue retry'])), 2,
    'a requeued retry is due at once and keeps its attempts'
);
select is(
    (select attempt from outbox_claim('w', 1, array['requeue done'])), 1,
    'a requeued done event is delivered again with its attempts from 0'
);
do $$
begin
    perform pg_temp.event_in('retry', 'retry later'), pg_temp.event_in('done', 'done later');
    perform outbox_enqueue(t.topic, '"new"', 'k', available_at => '2999-01-01 00:00+00', on_duplicate => 'requeue')
       from unnest(array['retry later', 'done later']) as t (topic);
end;
$$;
select results_eq(
    $$select topic, status, available_at from outbox_event_status where topic in ('retry later', 'done later') order by topic$$,
    $$values ('done later', 'pending', '2999-01-01 00:00+00'::timestamptz), ('retry later', 'retry', '2999-01-01 00:00+00')$$,
    'requeue takes the available_at that it is given'
);
do $$
begin
    perform pg_temp.event_in('pending', 'due retry');
    perform outbox_fail(lease, retry_in => '0') from outbox_claim('w', 1, array['due retry']);
end;
$$;
select results_eq(
    $$select created, changed from outbox_enqueue('due retry', '1', 'k', on_duplicate => 'requeue')$$,
    'values (false, true)',
    'a retry that is due already is as its requeue asks'
);
select is(
    (select count(*) from outbox_claim('w', 10, array['due retry'])), 1::bigint,
    'a retry that is due already is delivered once after its requeue'
);

select * from finish();
rollback;
