begin;
select plan(25);

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

create function pg_temp.count_claimed(variadic topics text[])
returns bigint
language sql
as $$ select count(*) from outbox_claim('w', 100, topics) $$;

-- Pause
do $$
begin
    perform outbox_enqueue('paused', to_jsonb(g)) from generate_series(1, 3) as g;
    perform outbox_enqueue('other', '1');
end;
$$;
create temp table in_flight as select lease from outbox_claim('w', 1, array['paused']);
do $$ begin perform outbox_pause('paused'); end $$;
select is(
    pg_temp.count_claimed('paused'), 0::bigint,
    'a paused topic is not delivered'
);
select results_eq(
    $$select topic from outbox_claim('w', 100)$$,
    $$values ('other')$$,
    'a claim of all topics passes a paused one over'
);
select ok(
    (select created from outbox_enqueue('paused', '4')),
    'enqueue goes on while a topic is paused'
);
select is(
    (select count(*) from outbox_extend((select lease from in_flight))), 1::bigint,
    'a lease in flight is extended while its topic is paused'
);
select is(
    (select count(*) from outbox_ack((select lease from in_flight))), 1::bigint,
    'a lease in flight is acked while its topic is paused'
);
do $$ begin perform outbox_enqueue('paused', '5', available_at => clock_timestamp() + interval '1 hour'); end $$;
update outbox_scheduled set available_at = clock_timestamp() - interval '1 second';
select is(
    pg_temp.count_claimed('paused'), 0::bigint,
    'a due event of a paused topic is not delivered'
);
select results_eq(
    $$select distinct status from outbox_event_status where topic = 'paused' and status <> 'done'$$,
    $$values ('pending')$$,
    'events of a paused topic are as pending as before'
);
select lives_ok(
    $$select outbox_pause('paused')$$,
    'a topic that is paused may be paused again'
);
do $$
begin
    perform outbox_pause('new');
    perform outbox_enqueue('new', '1');
end;
$$;
select is(
    pg_temp.count_claimed('new'), 0::bigint,
    'a topic may be paused before anybody has used it'
);
do $$
begin
    perform outbox_enqueue('suspect', '1');
    perform outbox_claim('w', 1, array['suspect']);
    update outbox_leases set expires_at = clock_timestamp() - interval '11 seconds' where id = (select id from outbox_events where topic = 'suspect');
    perform outbox_reap();
    update outbox_scheduled set available_at = clock_timestamp();
    perform outbox_pause('suspect');
end;
$$;
select is(
    pg_temp.count_claimed('suspect'), 0::bigint,
    'an event of a paused topic that has lost its lease is not delivered'
);

-- Resume
do $$ begin perform outbox_resume('paused'); end $$;
select is(
    pg_temp.count_claimed('paused'), 4::bigint,
    'a resumed topic is delivered again, all that was enqueued meanwhile'
);
select is(
    pg_temp.count_claimed('new'), 0::bigint,
    'a resume of one topic leaves others paused'
);
do $$ begin perform outbox_resume('suspect'); end $$;
select is(
    pg_temp.count_claimed('suspect'), 1::bigint,
    'an event that has lost its lease is delivered after the resume'
);
select lives_ok(
    $$select outbox_resume('never paused')$$,
    'a topic that is not paused may be resumed'
);
do $$
begin
    perform outbox_configure('configured', max_attempts => 9);
    perform outbox_pause('configured');
    perform outbox_resume('configured');
end;
$$;
select results_eq(
    $$select max_attempts, paused from outbox_configure('configured')$$,
    'values (9, false)',
    'pause and resume leave a topic''s settings alone'
);

-- Bad arguments
select throws_ok(
    format('select %s(null)', f), '22004', 'topic is null', format('%s refuses a null topic', f)
)
  from unnest(array['outbox_pause', 'outbox_resume']) as f;
select throws_ok(
    format('select %s('''')', f), '22023', 'topic has 0 bytes: ""', format('%s refuses an empty topic', f)
)
  from unnest(array['outbox_pause', 'outbox_resume']) as f;
select throws_ok(
    format('select %s(repeat(''é'', 100) || ''t'')', f), '22023', format('topic has 201 bytes: "%s"', repeat('é', 60)),
    format('%s refuses a topic of 201 bytes', f)
)
  from unnest(array['outbox_pause', 'outbox_resume']) as f;
select lives_ok(
    format('select %s(repeat(''é'', 100))', f), format('%s takes a topic of 200 bytes', f)
)
  from unnest(array['outbox_pause', 'outbox_resume']) as f;
select is(
    pg_temp.hint_of(format('select %s(null)', f)), 'Give a text of 1 to 200 bytes.', format('%s has a hint for a null topic', f)
)
  from unnest(array['outbox_pause', 'outbox_resume']) as f;

select * from finish();
rollback;
