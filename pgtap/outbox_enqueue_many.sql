begin;
select plan(55);

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

create function pg_temp.elements(n integer)
returns jsonb
language sql
as $$ select coalesce(jsonb_agg(jsonb_build_object('topic', 'many', 'payload', g)), '[]') from generate_series(1, n) as g $$;

-- The answers
select is_empty(
    $$select from outbox_enqueue_many('[]')$$,
    'an empty array does nothing'
);
create temp table three as
select * from outbox_enqueue_many('[{"topic": "three", "payload": 1}, {"topic": "three", "payload": 2}, {"topic": "three", "payload": 3}]');
select results_eq(
    'select ordinality, created, changed from three',
    'values (1, true, true), (2, true, true), (3, true, true)',
    'there is one row per element, in the order of the array, counted from 1'
);
select results_eq(
    'select e.payload from three as t join outbox_events as e using (id) order by t.ordinality',
    $$values ('1'::jsonb), ('2'), ('3')$$,
    'each answer is aligned with its element'
);
select results_eq(
    'select ordinality from three order by id',
    'values (1), (2), (3)',
    'ids ascend in the order of the array'
);
select results_eq(
    $$select payload from outbox_claim('w', 10, array['three'])$$,
    $$values ('1'::jsonb), ('2'), ('3')$$,
    'the events are delivered in the order of the array'
);
do $$
begin
    perform outbox_enqueue_many('[{
        "topic": "full", "payload": [1], "dedupe_key": "d", "ordering_key": "o", "headers": {"trace": "x"}, "priority": -3,
        "available_at": "2999-01-01T00:00:00Z", "max_attempts": 7, "on_duplicate": "replace"
    }]');
end;
$$;
select results_eq(
    $$select payload, dedupe_key, ordering_key, headers, priority, available_at, max_attempts, status
        from outbox_event_status where topic = 'full'$$,
    $$values ('[1]'::jsonb, 'd', 'o', '{"trace": "x"}'::jsonb, -3, '2999-01-01 00:00+00'::timestamptz, 7, 'pending')$$,
    'every parameter of outbox_enqueue can be a key'
);
do $$
begin
    perform outbox_enqueue_many('[{
        "topic": "nulls", "payload": null, "dedupe_key": null, "ordering_key": null, "headers": null, "priority": null,
        "available_at": null, "max_attempts": null, "on_duplicate": null
    }]');
end;
$$;
select results_eq(
    $$select payload, dedupe_key, ordering_key, headers, priority, max_attempts, status
        from outbox_event_status where topic = 'nulls'$$,
    $$values ('null'::jsonb, null::text, null::text, '{}'::jsonb, 0, 5, 'pending')$$,
    'a JSON null is a payload, and for any other key as if it were absent'
);
do $$ begin perform outbox_enqueue_many('[{"topic": "past", "payload": 1, "available_at": "1999-01-01T00:00:00Z"}]'); end $$;
select is(
    (select count(*) from outbox_claim('w', 1, array['past'])), 1::bigint,
    'an available_at in the past is now'
);
do $$ begin perform outbox_enqueue_many('[{"topic": "future", "payload": 1, "available_at": "2999-01-01T00:00:00Z"}]'); end $$;
select is_empty(
    $$select from outbox_claim('w', 1, array['future'])$$,
    'an event is not delivered before its available_at'
);
select is(
    (select count(*) from outbox_enqueue_many('[{"topic": "whole", "payload": 1, "priority": 2.0, "max_attempts": 1e1}]')), 1::bigint,
    'a whole number is an integer however JSON writes it'
);
create temp table mixed as
select *
  from outbox_enqueue_many('[
           {"topic": "b", "payload": 1, "ordering_key": "y", "dedupe_key": "z"}, {"topic": "a", "payload": 2, "ordering_key": "x"},
           {"topic": "b", "payload": 3, "ordering_key": "y", "dedupe_key": "a"}, {"topic": "a", "payload": 4, "ordering_key": "x"}
       ]');
select results_eq(
    $$select e.payload, e.status from mixed as m join outbox_event_status as e using (id) order by m.id$$,
    $$values ('1'::jsonb, 'pending'), ('2', 'pending'), ('3', 'blocked'), ('4', 'blocked')$$,
    'events of several topics and keys keep the order of the array, one of each key at a time'
);

-- Duplicates
create temp table earlier as select * from outbox_enqueue('duplicates', '"old"', 'k');
select results_eq(
    $$select ordinality, id = (select id from earlier), created, changed
        from outbox_enqueue_many('[
                 {"topic": "duplicates", "payload": 1}, {"topic": "duplicates", "payload": 2, "dedupe_key": "k"},
                 {"topic": "duplicates", "payload": 3, "dedupe_key": "l"}
             ]')$$,
    'values (1, false, true, true), (2, true, false, false), (3, false, true, true)',
    'a duplicate of an earlier event is answered with its id; the others are created'
);
create temp table twice as
select *
  from outbox_enqueue_many('[
           {"topic": "twice", "payload": 1, "dedupe_key": "k"}, {"topic": "twice", "payload": 2},
           {"topic": "twice", "payload": 3, "dedupe_key": "k"}
       ]');
select results_eq(
    'select ordinality, id = (select id from twice where ordinality = 1), created, changed from twice',
    'values (1, true, true, true), (2, false, true, true), (3, true, false, false)',
    'of duplicates within the array the first is created'
);
select is(
    (select array_agg(payload order by payload) from outbox_events where topic = 'twice'), array['1', '2']::jsonb[],
    'a duplicate within the array is one event'
);
do $$
begin
    perform outbox_enqueue('modes', '"old"', 'replaced', available_at => '2999-01-01 00:00+00');
    perform outbox_enqueue('modes', '"old"', 'requeued', priority => 1);
    perform outbox_enqueue('modes', '"old"', 'ignored');
    perform outbox_ack(lease) from outbox_claim('w', 1, array['modes']);
end;
$$;
select results_eq(
    $$select ordinality, created, changed
        from outbox_enqueue_many('[
                 {"topic": "modes", "payload": "new", "dedupe_key": "requeued", "on_duplicate": "requeue"},
                 {"topic": "modes", "payload": "new", "dedupe_key": "replaced", "on_duplicate": "replace"},
                 {"topic": "modes", "payload": "new", "dedupe_key": "ignored", "on_duplicate": "ignore"},
                 {"topic": "modes", "payload": "new", "dedupe_key": "created", "on_duplicate": "replace"}
             ]')$$,
    'values (1, false, true), (2, false, true), (3, false, false), (4, true, true)',
    'each element has its own on_duplicate'
);
select results_eq(
    $$select dedupe_key, payload from outbox_claim('w', 10, array['modes']) order by dedupe_key$$,
    $$values ('created', '"new"'::jsonb), ('ignored', '"old"'), ('replaced', '"new"'), ('requeued', '"old"')$$,
    'each duplicate is treated as its on_duplicate says'
);
select results_eq(
    $$select ordinality, created, changed
        from outbox_enqueue_many('[
                 {"topic": "again", "payload": "first", "dedupe_key": "k"},
                 {"topic": "again", "payload": "second", "dedupe_key": "k", "on_duplicate": "replace"}
             ]')$$,
    'values (1, true, true), (2, false, true)',
    'a later element may replace an earlier one of the array'
);
select is(
    (select payload from outbox_claim('w', 1, array['again'])), '"second"'::jsonb,
    'what a later element has replaced is delivered'
);

-- The array
select throws_ok(
    'select outbox_enqueue_many(null)', '22004', 'events is null',
    'null events are refused'
);
select is(
    pg_temp.hint_of('select outbox_enqueue_many(null)'), 'Give a JSON array of events; an empty one does nothing.',
    'the hint for null events says what to give'
);
select throws_ok(
    $$select outbox_enqueue_many('{"topic": "bad", "payload": 1}')$$, '22023', 'events is a JSON object',
    'an object instead of an array is refused'
);
select is(
    pg_temp.hint_of($$select outbox_enqueue_many('{}')$$), 'Give a JSON array of events.',
    'the hint for what is no array says what to give'
);
select is(
    (select count(*) from outbox_enqueue_many(pg_temp.elements(10000)) where created), 10000::bigint,
    'an array may have 10,000 elements'
);
select throws_ok(
    'select outbox_enqueue_many(pg_temp.elements(10001))', '22023', 'events has 10001 elements',
    'an array of 10,001 elements is refused'
);
select is(
    pg_temp.hint_of('select outbox_enqueue_many(pg_temp.elements(10001))'),
    'Give at most 10,000 at a time; several calls in one transaction are still all or nothing.',
    'the hint for a long array says how to go on'
);

-- The elements: the second of these is bad
create temp table bad (element, code, message, sentence) as
values
    ('1', '22023', 'event 2 is a JSON number, not an object', 'an element that is no object is refused'),
    ('null', '22023', 'event 2 is a JSON null, not an object', 'an element that is null is refused'),
    ('{"payload": 1}', '22004', 'event 2 has no topic', 'an element without topic is refused'),
    ('{"topic": null, "payload": 1}', '22004', 'event 2 has no topic', 'an element with a null topic is refused'),
    ('{"topic": "bad"}', '22004', 'event 2 has no payload', 'an element without payload is refused'),
    ('{"topic": "bad", "payload": 1, "prioritaet": 1}', '22023', 'event 2 has an unknown key "prioritaet"', 'an unknown key is refused'),
    ('{"topic": "bad", "payload": 1, "Priority": null}', '22023', 'event 2 has an unknown key "Priority"', 'an unknown key is refused though it is null'),
    ('{"topic": 7, "payload": 1}', '22023', 'event 2 has 7 as topic', 'a number as topic is refused'),
    ('{"topic": "bad", "payload": 1, "dedupe_key": 7}', '22023', 'event 2 has 7 as dedupe_key', 'a number as dedupe_key is refused'),
    ('{"topic": "bad", "payload": 1, "ordering_key": ["o"]}', '22023', 'event 2 has ["o"] as ordering_key', 'an array as ordering_key is refused'),
    ('{"topic": "bad", "payload": 1, "priority": "5"}', '22023', 'event 2 has "5" as priority', 'a text as priority is refused'),
    ('{"topic": "bad", "payload": 1, "priority": 1.5}', '22023', 'event 2 has 1.5 as priority', 'a fraction as priority is refused'),
    ('{"topic": "bad", "payload": 1, "max_attempts": true}', '22023', 'event 2 has true as max_attempts', 'a boolean as max_attempts is refused'),
    ('{"topic": "bad", "payload": 1, "max_attempts": 99999999999}', '22023', 'event 2 has 99999999999 as max_attempts', 'a number that no integer holds is refused'),
    ('{"topic": "bad", "payload": 1, "available_at": 1767225600}', '22023', 'event 2 has 1767225600 as available_at', 'a number as available_at is refused'),
    ('{"topic": "bad", "payload": 1, "available_at": "soon"}', '22023', 'event 2 has "soon" as available_at', 'a text that is no time is refused'),
    ('{"topic": "bad", "payload": 1, "available_at": "2030-02-31T00:00:00Z"}', '22023', 'event 2 has "2030-02-31T00:00:00Z" as available_at', 'a day that does not exist is refused'),
    ('{"topic": "bad", "payload": 1, "available_at": "infinity"}', '22023', 'event 2: available_at is infinity', 'an infinite available_at is refused'),
    ('{"topic": "bad", "payload": 1, "on_duplicate": "upsert"}', '22023', 'event 2: on_duplicate is "upsert"', 'an unknown on_duplicate is refused'),
    ('{"topic": "bad", "payload": 1, "priority": 11}', '22023', 'event 2: priority is 11', 'a priority of 11 is refused'),
    ('{"topic": "bad", "payload": 1, "max_attempts": 1001}', '22023', 'event 2: max_attempts is 1001', 'max_attempts of 1,001 are refused'),
    ('{"topic": "", "payload": 1}', '22023', 'event 2: topic has 0 bytes: ""', 'an empty topic is refused'),
    ('{"topic": "bad", "payload": 1, "dedupe_key": ""}', '22023', 'event 2: dedupe_key has 0 bytes: ""', 'an empty dedupe_key is refused'),
    ('{"topic": "bad", "payload": 1, "ordering_key": ""}', '22023', 'event 2: ordering_key has 0 bytes: ""', 'an empty ordering_key is refused');
select throws_ok(
    format($$select outbox_enqueue_many('[{"topic": "bad", "payload": 1}, %s, {"topic": "bad", "payload": 3}]')$$, b.element), b.code, b.message,
    b.sentence || ', with its position'
)
  from bad as b;
create function pg_temp.error_of(statement text)
returns text
language plpgsql
as $$
begin
    execute statement;
    return 'nothing was raised';
exception when others then
    return sqlstate || ': ' || sqlerrm;
end;
$$;
select ok(
    pg_temp.error_of($$select outbox_enqueue_many('[{"topik": "bad", "payload": 1}]')$$)
        in ('22023: event 1 has an unknown key "topik"', '22004: event 1 has no topic'),
    'of two faults of an element one is reported, with its own SQLSTATE'
);
select throws_ok(
    format($$select outbox_enqueue_many('[{"topic": "bad", "payload": 1}, {"topic": "%s", "payload": 1}]')$$, repeat('é', 101)),
    '22023', format('event 2: topic has 202 bytes: "%s"', repeat('é', 60)),
    'a topic of an element is measured in bytes'
);
select is(
    pg_temp.hint_of($$select outbox_enqueue_many('[{"topic": "bad"}]')$$),
    'An event is an object with topic and payload, and may have dedupe_key, ordering_key, headers, priority (integer), available_at, max_attempts (integer) and on_duplicate.',
    'the hint for a misshapen element says what an event is'
);
select is(
    pg_temp.hint_of($$select outbox_enqueue_many('[{"topic": "bad", "payload": 1, "available_at": "soon"}]')$$),
    'Give a time with its zone, such as 2030-01-31T12:00:00Z.',
    'the hint for a text that is no time shows one'
);
select is(
    pg_temp.hint_of($$select outbox_enqueue_many('[{"topic": "bad", "payload": 1, "priority": 11}]')$$),
    'Give a number from -10 to 10.',
    'the hint for a value out of bounds is that of outbox_enqueue'
);
select is_empty(
    $$select from outbox_events where topic in ('bad', '')$$,
    'one bad element and none of the array is enqueued'
);

select * from finish();
rollback;
