begin;
select plan(47);

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

select results_eq(
    $$select topic, max_attempts, lease_for, backoff_base, backoff_cap, retention, notify, on_dead, paused from outbox_configure('defaults')$$,
    $$values ('defaults', 5, '5 minutes'::interval, '1 second'::interval, '1 hour'::interval, '1 day'::interval, false, 'skip', false)$$,
    'a topic of which nobody has said anything has the defaults'
);
select results_eq(
    $$select topic, max_attempts, lease_for, backoff_base, backoff_cap, retention, notify, on_dead, paused
        from outbox_configure(
                 topic => 'all', max_attempts => 7, lease_for => '10 minutes', backoff_base => '2 seconds', backoff_cap => '2 hours',
                 retention => '7 days', notify => true, on_dead => 'block'
             )$$,
    $$values ('all', 7, '10 minutes'::interval, '2 seconds'::interval, '2 hours'::interval, '7 days'::interval, true, 'block', false)$$,
    'every setting can be set, by name'
);
select results_eq(
    $$select topic, max_attempts, lease_for, backoff_base, backoff_cap, retention, notify, on_dead, paused
        from outbox_configure('all', null, null, null, null, null, null, null)$$,
    $$values ('all', 7, '10 minutes'::interval, '2 seconds'::interval, '2 hours'::interval, '7 days'::interval, true, 'block', false)$$,
    'a null leaves a setting as it is'
);
select results_eq(
    $$select max_attempts, lease_for, backoff_cap, notify, on_dead
        from outbox_configure('all', max_attempts => 8, notify => false, on_dead => 'skip')$$,
    $$values (8, '10 minutes'::interval, '2 hours'::interval, false, 'skip')$$,
    'a setting can be set alone'
);
select results_eq(
    $$select max_attempts, retention from outbox_configure('another')$$,
    $$values (5, '1 day'::interval)$$,
    'a topic''s settings are its own'
);
do $$ begin perform outbox_pause('paused'); end $$;
select results_eq(
    $$select paused, max_attempts from outbox_configure('paused', max_attempts => 2)$$,
    'values (true, 2)',
    'a paused topic is shown as paused, and stays so'
);
do $$
begin
    perform outbox_enqueue('untouched', '1'), outbox_enqueue('untouched', '2', available_at => clock_timestamp() + interval '1 hour');
    perform outbox_claim('w', 1, array['untouched']);
end;
$$;
create temp table untouched as
select id, status, attempts, available_at, lease_expires_at from outbox_event_status where topic = 'untouched';
do $$
begin
    perform outbox_configure(
        'untouched', max_attempts => 1, lease_for => '1 second', backoff_base => '0', retention => '0', on_dead => 'block'
    );
end;
$$;
select bag_eq(
    $$select id, status, attempts, available_at, lease_expires_at from outbox_event_status where topic = 'untouched'$$,
    'table untouched',
    'configure touches no event'
);

-- Bounds: a value that is refused and, beside it, one that is not
select throws_ok(
    format('select outbox_configure(''bad'', %s => %L)', b.setting, b.value), '22023', b.message, b.sentence
)
  from (values
            ('max_attempts', '0', 'max_attempts is 0', 'max_attempts of 0 are refused'),
            ('max_attempts', '1001', 'max_attempts is 1001', 'max_attempts of 1,001 are refused'),
            ('lease_for', '0.099 seconds', 'lease_for is 00:00:00.099', 'a lease_for below 0.1 seconds is refused'),
            ('lease_for', '30 days 1 second', 'lease_for is 30 days 00:00:01', 'a lease_for above 30 days is refused'),
            ('backoff_base', '-1 second', 'backoff_base is -00:00:01', 'a negative backoff_base is refused'),
            ('backoff_base', '1 year 1 second', 'backoff_base is 1 year 00:00:01', 'a backoff_base above a year is refused'),
            ('backoff_cap', '-1 second', 'backoff_cap is -00:00:01', 'a negative backoff_cap is refused'),
            ('backoff_cap', '1 year 1 second', 'backoff_cap is 1 year 00:00:01', 'a backoff_cap above a year is refused'),
            ('retention', '-1 second', 'retention is -00:00:01', 'a negative retention is refused'),
            ('retention', '100 years 1 second', 'retention is 100 years 00:00:01', 'a retention above 100 years is refused'),
            ('on_dead', 'explode', 'on_dead is "explode"', 'an unknown on_dead is refused'),
            ('backoff_base', '2 hours', 'backoff_base is 02:00:00 and backoff_cap is 01:00:00', 'a base above the default cap is refused'),
            ('backoff_cap', '0.5 seconds', 'backoff_base is 00:00:01 and backoff_cap is 00:00:00.5', 'a cap below the default base is refused')
       ) as b (setting, value, message, sentence);
select lives_ok(
    format('select outbox_configure(%L, %s)', g.sentence, g.settings), g.sentence
)
  from (values
            ('max_attempts => 1', 'max_attempts may be 1'),
            ('max_attempts => 1000', 'max_attempts may be 1,000'),
            ('lease_for => ''0.1 seconds''', 'lease_for may be 0.1 seconds'),
            ('lease_for => ''30 days''', 'lease_for may be 30 days'),
            ('backoff_base => ''0'', backoff_cap => ''0''', 'base and cap may be 0'),
            ('backoff_base => ''1 year'', backoff_cap => ''1 year''', 'base and cap may be a year'),
            ('retention => ''0''', 'retention may be 0'),
            ('retention => ''100 years''', 'retention may be 100 years')
       ) as g (settings, sentence);
select throws_ok(
    format(
        case
            when current_setting('server_version_num')::integer >= 170000 then 'select outbox_configure(''bad'', %s => ''infinity'')'
            else 'select outbox_configure(''bad'', %s => ''178000000 years'')'
        end,
        s.setting
    ),
    '22023', null, format('an infinite %s, or where there is none the longest, is refused', s.setting)
)
  from (values ('lease_for'), ('backoff_base'), ('backoff_cap'), ('retention')) as s (setting);
do $$ begin perform outbox_configure('in two steps', backoff_cap => '10 seconds'); end $$;
select throws_ok(
    $$select outbox_configure('in two steps', backoff_base => '11 seconds')$$, '22023', 'backoff_base is 00:00:11 and backoff_cap is 00:00:10',
    'a base above the cap that the topic has is refused'
);
select throws_ok(
    'select outbox_configure(null)', '22004', 'topic is null',
    'a null topic is refused'
);
select throws_ok(
    $$select outbox_configure('')$$, '22023', 'topic has 0 bytes: ""',
    'an empty topic is refused'
);
select throws_ok(
    $$select outbox_configure(repeat('t', 201))$$, '22023', format('topic has 201 bytes: "%s"', repeat('t', 60)),
    'a topic of 201 bytes is refused'
);
select lives_ok(
    $$select outbox_configure(repeat('é', 100))$$,
    'a topic may have 200 bytes'
);
select is(
    pg_temp.hint_of(format('select outbox_configure(%s)', h.arguments)), h.hint, format('there is a hint for %s', h.sentence)
)
  from (values
            ('null', 'Give a text of 1 to 200 bytes.', 'a null topic'),
            ('''bad'', max_attempts => 0', 'Give a number from 1 to 1000.', 'max_attempts'),
            ('''bad'', lease_for => ''0''', 'Give an interval from 00:00:00.1 to 30 days.', 'lease_for'),
            ('''bad'', backoff_base => ''-1 second''', 'Give an interval from 00:00:00 to 1 year.', 'backoff_base'),
            ('''bad'', backoff_cap => ''-1 second''', 'Give an interval from 00:00:00 to 1 year.', 'backoff_cap'),
            ('''bad'', retention => ''-1 second''', 'Give an interval from 00:00:00 to 100 years.', 'retention'),
            ('''bad'', on_dead => ''explode''', 'Give skip or block.', 'on_dead'),
            ('''bad'', backoff_base => ''2 hours''', 'Give a base that is not longer than the cap.', 'a base above the cap')
       ) as h (arguments, hint, sentence);
select results_eq(
    $$select max_attempts, lease_for, backoff_base, backoff_cap, retention, on_dead from outbox_configure('bad')$$,
    $$values (5, '5 minutes'::interval, '1 second'::interval, '1 hour'::interval, '1 day'::interval, 'skip')$$,
    'a refused configure changes nothing'
);
select results_eq(
    $$select backoff_base, backoff_cap from outbox_configure('in two steps')$$,
    $$values ('1 second'::interval, '10 seconds'::interval)$$,
    'a refused configure leaves what was set before'
);

select * from finish();
rollback;
