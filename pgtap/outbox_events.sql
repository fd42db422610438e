begin;
select plan(73);

-- The name of the constraint (or, for a null, of the column) that a statement breaks.
create function pg_temp.broken_by(statement text)
returns text
language plpgsql
as $$
declare
    v_constraint text;
    v_column text;
begin
    execute statement;
    return 'nothing was raised';
exception when others then
    get stacked diagnostics v_constraint = constraint_name, v_column = column_name;
    return coalesce(nullif(v_column, ''), v_constraint);
end;
$$;

-- What a claim delivers of this topic, in the order of delivery.
create function pg_temp.claimed(topic text, n integer default 100)
returns text
language sql
as $$ select string_agg(payload #>> '{}', ' ') from outbox_claim('w', n, array[topic]) $$;

-- INSERT
create temp table returned (id bigint);
with inserted as (
    insert into outbox_events (topic, payload) values ('one', '1') returning id
)
insert into returned select id from inserted;
select results_eq(
    $$select id, topic, payload, headers, priority, dedupe_key, ordering_key, attempt, max_attempts
        from outbox_claim('w', 1, array['one'])$$,
    $$select id, 'one', '1'::jsonb, '{}'::jsonb, 0, null::text, null::text, 1, 5 from returned$$,
    'an inserted row is delivered as an event, with the defaults of what was left out'
);
insert into outbox_events (topic, payload, dedupe_key, ordering_key, headers, priority, available_at, max_attempts)
values ('full', '[1]', 'd', 'o', '{"trace": "x"}', -3, '2999-01-01 00:00+00', 7);
select results_eq(
    $$select payload, dedupe_key, ordering_key, headers, priority, available_at, max_attempts, status
        from outbox_event_status where topic = 'full'$$,
    $$values ('[1]'::jsonb, 'd', 'o', '{"trace": "x"}'::jsonb, -3, '2999-01-01 00:00+00'::timestamptz, 7, 'pending')$$,
    'all eight columns can be given'
);
select is(
    pg_temp.claimed('full'), null,
    'an inserted event is not delivered before its available_at'
);
insert into outbox_events (topic, payload)
select 'many', to_jsonb(g) from generate_series(1, 1000) as g;
select is(
    pg_temp.claimed('many', 1000), (select string_agg(g::text, ' ') from generate_series(1, 1000) as g),
    'many rows of one statement are delivered in the order of their ids'
);
insert into outbox_events (topic, payload, available_at)
values ('past', '1', '1999-01-01 00:00+00');
select is(
    pg_temp.claimed('past'), '1',
    'an available_at in the past is now'
);
insert into outbox_events (topic, payload, priority)
select 'priorities', to_jsonb(p), p from unnest(array[0, -10, 10]) as p;
select is(
    pg_temp.claimed('priorities'), '10 0 -10',
    'rows of one statement may differ in priority'
);
insert into outbox_events (topic, payload, ordering_key, priority, available_at)
values ('keyed', '"a1"', 'a', 0, null), ('keyed', '"b1"', 'b', 0, null), ('keyed', '"a2"', 'a', 10, null),
       ('keyed', '"b2"', 'b', 0, null), ('keyed', '"none"', null, 0, null), ('keyed', '"c1"', 'c', 0, '2999-01-01 00:00+00'),
       ('keyed', '"c2"', 'c', 0, null);
select is(
    (select string_agg(payload #>> '{}' || ' ' || status, ', ' order by id) from outbox_event_status where topic = 'keyed'),
    'a1 pending, b1 pending, a2 blocked, b2 blocked, none pending, c1 pending, c2 blocked',
    'of the rows of one statement that share an ordering key all but the first are blocked'
);
select is(
    pg_temp.claimed('keyed'), 'a1 b1 none',
    'rows of one statement that share an ordering key are delivered one at a time'
);
insert into outbox_events (topic, payload, ordering_key) values ('keyed', '"a3"', 'a');
select is(
    pg_temp.claimed('keyed'), null,
    'a row whose ordering key is in flight waits for its turn'
);
insert into outbox_events (topic, payload) select 'nothing', '1' where false;
select is(
    pg_temp.claimed('nothing'), null,
    'an insert of no rows is no event'
);
savepoint before_insert;
insert into outbox_events (topic, payload) values ('undone', '1');
rollback to savepoint before_insert;
select is_empty(
    $$select from outbox_event_status where topic = 'undone' union all select from outbox_claim('w', 1, array['undone'])$$,
    'an event whose insert is rolled back does not exist'
);

-- COPY
copy outbox_events (topic, payload, dedupe_key, ordering_key, headers, priority, available_at, max_attempts) from stdin;
copied	{"n": 1}	d1	o	{"h": 1}	2	\N	3
copied	{"n": 2}	\N	o	{}	0	\N	\N
copied	{"n": 3}	\N	\N	{}	0	2999-01-01 00:00+00	\N
copied	{"n": 4}	\N	\N	{}	0	\N	\N
\.
select results_eq(
    $$select payload -> 'n', dedupe_key, ordering_key, headers, priority, max_attempts, status
        from outbox_event_status where topic = 'copied' order by id$$,
    $$values ('1'::jsonb, 'd1', 'o', '{"h": 1}'::jsonb, 2, 3, 'pending'), ('2', null, 'o', '{}', 0, 5, 'blocked'),
             ('3', null, null, '{}', 0, 5, 'pending'), ('4', null, null, '{}', 0, 5, 'pending')$$,
    'copied rows are events as inserted ones are'
);
select results_eq(
    $$select payload -> 'n' from outbox_claim('w', 10, array['copied'])$$,
    $$values ('1'::jsonb), ('4')$$,
    'copied rows are delivered'
);
copy outbox_events (topic, payload) from stdin;
copied briefly	1
copied briefly	2
\.
select is(
    pg_temp.claimed('copied briefly'), '1 2',
    'a copy may leave out what has a default'
);

-- Values that are refused, with the name of their constraint, and beside them values that are not
create temp table bad (column_name, value, sqlstate, breaks, sentence) as
values
    ('topic', 'null', '23502', 'topic', 'a null topic is refused'),
    ('payload', 'null', '23502', 'payload', 'a null payload is refused'),
    ('headers', 'null', '23502', 'headers', 'null headers are refused: they may be left out'),
    ('priority', 'null', '23502', 'priority', 'a null priority is refused: it may be left out'),
    ('topic', '''''', '23514', 'outbox_events_topic_check', 'an empty topic is refused'),
    ('topic', 'repeat(''t'', 201)', '23514', 'outbox_events_topic_check', 'a topic of 201 bytes is refused'),
    ('topic', 'repeat(''é'', 100) || ''t''', '23514', 'outbox_events_topic_check', 'a topic is measured in bytes'),
    ('dedupe_key', '''''', '23514', 'outbox_events_dedupe_key_check', 'an empty dedupe_key is refused'),
    ('dedupe_key', 'repeat(''d'', 501)', '23514', 'outbox_events_dedupe_key_check', 'a dedupe_key of 501 bytes is refused'),
    ('ordering_key', '''''', '23514', 'outbox_events_ordering_key_check', 'an empty ordering_key is refused'),
    ('ordering_key', 'repeat(''é'', 250) || ''o''', '23514', 'outbox_events_ordering_key_check', 'an ordering_key of 501 bytes is refused'),
    ('priority', '-11', '23514', 'outbox_events_priority_check', 'a priority of -11 is refused'),
    ('priority', '11', '23514', 'outbox_events_priority_check', 'a priority of 11 is refused'),
    ('priority', '40000', '23514', 'outbox_events_priority_check', 'a priority of 40,000 is refused'),
    ('max_attempts', '0', '23514', 'outbox_events_max_attempts_check', 'max_attempts of 0 are refused'),
    ('max_attempts', '1001', '23514', 'outbox_events_max_attempts_check', 'max_attempts of 1,001 are refused'),
    ('available_at', '''infinity''', '23514', 'outbox_events_available_at_check', 'an available_at of infinity is refused'),
    ('available_at', '''-infinity''', '23514', 'outbox_events_available_at_check', 'an available_at of -infinity is refused');
create function pg_temp.insert_with(column_name text, value text)
returns text
language sql
as $$
    select format(
        'insert into outbox_events (%s) values (%s)',
        string_agg(d.name, ', '),
        string_agg(case when d.name = insert_with.column_name then insert_with.value else d.value end, ', ')
    )
      from (values ('topic', '''bad'''), ('payload', '''1'''), ('dedupe_key', 'null'), ('ordering_key', 'null'), ('headers', '''{}'''),
                   ('priority', '0'), ('available_at', 'null'), ('max_attempts', 'null')) as d (name, value)
$$;
select throws_ok(
    pg_temp.insert_with(b.column_name, b.value), b.sqlstate, null, b.sentence
)
  from bad as b;
select is(
    pg_temp.broken_by(pg_temp.insert_with(b.column_name, b.value)), b.breaks, b.sentence || ', by the name ' || b.breaks
)
  from bad as b;
select is_empty(
    $$select from outbox_events where topic in ('bad', '') or octet_length(topic) > 200$$,
    'a refused insert leaves no event'
);
select lives_ok(
    pg_temp.insert_with(g.column_name, g.value), g.sentence
)
  from (values
            ('topic', '''t''', 'a topic may have 1 byte'),
            ('topic', 'repeat(''é'', 100)', 'a topic may have 200 bytes'),
            ('payload', '''null''', 'a JSON null is a payload'),
            ('dedupe_key', '''d''', 'a dedupe_key may have 1 byte'),
            ('dedupe_key', 'repeat(''é'', 250)', 'a dedupe_key may have 500 bytes'),
            ('ordering_key', '''o''', 'an ordering_key may have 1 byte'),
            ('ordering_key', 'repeat(''é'', 250)', 'an ordering_key may have 500 bytes'),
            ('priority', '-10', 'a priority may be -10'),
            ('priority', '10', 'a priority may be 10'),
            ('max_attempts', '1', 'max_attempts may be 1'),
            ('max_attempts', '1000', 'max_attempts may be 1,000')
       ) as g (column_name, value, sentence);

-- Dedupe keys
insert into outbox_events (topic, payload, dedupe_key) values ('dedupe', '"first"', 'k');
select throws_ok(
    $$insert into outbox_events (topic, payload, dedupe_key) values ('dedupe', '"new"', 'l'), ('dedupe', '"second"', 'k')$$, '23505', null,
    'a repeated dedupe_key is refused'
);
select throws_ok(
    $$insert into outbox_events (topic, payload, dedupe_key) values ('dedupe', '"new"', 'm'), ('dedupe', '"newer"', 'm')$$, '23505', null,
    'a dedupe_key that is repeated within a statement is refused'
);
select is(
    (select count(*) from outbox_events where topic = 'dedupe'), 1::bigint,
    'of a refused statement nothing is left'
);
insert into outbox_events (topic, payload, dedupe_key) values ('dedupe', '"second"', 'k'), ('dedupe', '"third"', 'l')
on conflict do nothing;
insert into outbox_events (topic, payload, dedupe_key) values ('dedupe', '"fourth"', 'k'), ('dedupe', '"fifth"', 'm'), ('dedupe', '"sixth"', 'm')
on conflict (topic, dedupe_key) where dedupe_key is not null do nothing;
select is(
    pg_temp.claimed('dedupe'), 'first third fifth',
    'on conflict do nothing, with a target or without, skips the duplicates and enqueues the others'
);
insert into outbox_events (topic, payload, dedupe_key) values ('another topic', '1', 'k');
select is(
    pg_temp.claimed('another topic'), '1',
    'a dedupe_key is unique within its topic only'
);
insert into outbox_events (topic, payload) values ('no key', '1'), ('no key', '1');
select is(
    pg_temp.claimed('no key'), '1 1',
    'a null dedupe_key never dedupes'
);
select results_eq(
    $$select id = (select id from outbox_events where topic = 'dedupe' and dedupe_key = 'k'), created
        from outbox_enqueue('dedupe', '"seventh"', 'k')$$,
    'values (true, false)',
    'outbox_enqueue sees what was inserted'
);

-- Routing
set local session_replication_role = replica;
insert into outbox_events (topic, payload) values ('replicated', '1');
set local session_replication_role = origin;
select is(
    pg_temp.claimed('replicated'), null,
    'a row that arrives by replication is not routed'
);
select is(
    (select count(*) from outbox_events where topic = 'replicated'), 1::bigint,
    'a row that arrives by replication is in the log'
);
select results_eq(
    $$select tgname, pg_get_triggerdef(oid) like '% AFTER INSERT ON %FOR EACH STATEMENT%'
        from pg_trigger where tgrelid = 'outbox_events'::regclass and not tgisinternal$$,
    $$values ('outbox_events_route'::name, true)$$,
    'one trigger, once a statement, routes new rows'
);
select throws_ok(
    $$insert into outbox_events (id, topic, payload) values (1, 'bad', '1')$$, '428C9', null,
    'nobody chooses an id'
);

select * from finish();
rollback;
