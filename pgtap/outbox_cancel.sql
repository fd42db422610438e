begin;
select plan(21);

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

create function pg_temp.id_of(topic text, payload jsonb)
returns bigint
language sql
as $$ select id from outbox_events as e where e.topic = id_of.topic and e.payload = id_of.payload $$;

create function pg_temp.statuses(text)
returns text
language sql
as $$ select string_agg(status, ' ' order by id) from outbox_event_status where topic = $1 $$;

-- One event in each state, named by its payload, in one topic.
do $$
begin
    perform outbox_enqueue('states', to_jsonb(s), 'key of ' || s)
       from unnest(array['retry', 'processing', 'done', 'dead', 'due retry', 'pending']) as s;
    perform outbox_enqueue('states', '"scheduled"', available_at => clock_timestamp() + interval '1 hour');
    perform outbox_enqueue('states', '"head"', ordering_key => 'o');
    perform outbox_enqueue('states', '"blocked"', ordering_key => 'o');
    perform case c.payload #>> '{}'
                when 'retry' then (select count(*) from outbox_fail(c.lease, array[c.id], retry_in => '1 hour'))
                when 'due retry' then (select count(*) from outbox_fail(c.lease, array[c.id], retry_in => '0'))
                when 'done' then (select count(*) from outbox_ack(c.lease, array[c.id]))
                when 'dead' then (select count(*) from outbox_fail(c.lease, array[c.id], dead => true))
            end
       from outbox_claim('w', 5, array['states']) as c;
end;
$$;
create temp table cancelled as
select id from outbox_cancel(array(select id from outbox_events where topic = 'states' and payload <> '"head"')) as c (id);
select is(
    (select string_agg(payload #>> '{}', ' ' order by id) from outbox_events where topic = 'states'), 'processing done head',
    'a cancel removes what is pending, scheduled, retry, blocked or dead, and leaves what is in flight or done'
);
select is(
    (select count(*) from cancelled), 6::bigint,
    'a cancel answers the ids that it removed'
);
select is_empty(
    $$select outbox_cancel(array(select id from outbox_events where topic = 'states' and payload in ('"processing"', '"done"')))$$,
    'what is in flight or done is missing from the answer'
);
select is(
    (select string_agg(status, ' ' order by id) from outbox_event_status where topic = 'states'), 'processing done pending',
    'what a cancel leaves is as before'
);
select is_empty(
    $$select from outbox_dead_letters where topic = 'states'$$,
    'a cancelled dead letter is purged'
);
select is(
    (select count(*) from outbox_claim('w', 10, array['states'])), 1::bigint,
    'cancelled events are not delivered; here only the head is left'
);
select ok(
    (select bool_and(created) from unnest(array['retry', 'dead', 'due retry', 'pending']) as s, outbox_enqueue('states', '1', 'key of ' || s)),
    'the dedupe_key of a cancelled event is free again'
);
create temp table repeated as select id from outbox_enqueue('repeated', '1');
do $$ begin perform outbox_enqueue('repeated', '2'); end $$;
select bag_eq(
    'select outbox_cancel(array[id, id, -1]) from repeated',
    'select id from repeated',
    'repeated ids count once; ids that nobody has are missing from the answer'
);
select is_empty(
    $$select outbox_cancel('{}')$$,
    'an empty array cancels nothing'
);
do $$
begin
    perform outbox_enqueue('expired', '1');
    perform outbox_claim('w', 1, array['expired']);
    update outbox_leases set expires_at = clock_timestamp() - interval '1 second' where id = pg_temp.id_of('expired', '1');
end;
$$;
select is_empty(
    $$select outbox_cancel(array[pg_temp.id_of('expired', '1')])$$,
    'an event under an expired lease that nobody has taken back is still in flight'
);

-- Ordering keys
do $$
begin
    perform outbox_enqueue('head', to_jsonb(g), ordering_key => 'o') from generate_series(1, 3) as g;
    perform outbox_cancel(array[pg_temp.id_of('head', '1')]);
end;
$$;
select is(
    pg_temp.statuses('head'), 'pending blocked',
    'when a head is cancelled its successor moves up'
);
do $$
begin
    perform outbox_enqueue('scheduled head', '1', ordering_key => 'o', available_at => clock_timestamp() + interval '1 hour');
    perform outbox_enqueue('scheduled head', '2', ordering_key => 'o');
    perform outbox_cancel(array[pg_temp.id_of('scheduled head', '1')]);
end;
$$;
select is(
    (select payload from outbox_claim('w', 1, array['scheduled head'])), '2'::jsonb,
    'when a scheduled head is cancelled its successor is delivered'
);
do $$
begin
    perform outbox_enqueue('middle', to_jsonb(g), ordering_key => 'o') from generate_series(1, 3) as g;
    perform outbox_cancel(array[pg_temp.id_of('middle', '2')]);
    perform outbox_ack(lease) from outbox_claim('w', 1, array['middle']);
end;
$$;
select is(
    (select payload from outbox_claim('w', 1, array['middle'])), '3'::jsonb,
    'a cancelled event in the middle of a key is passed over'
);
do $$
begin
    perform outbox_enqueue('head and next', to_jsonb(g), ordering_key => 'o') from generate_series(1, 3) as g;
    perform outbox_cancel(array[pg_temp.id_of('head and next', '1'), pg_temp.id_of('head and next', '2')]);
end;
$$;
select results_eq(
    $$select payload, (select count(*) from outbox_event_status where topic = 'head and next') from outbox_claim('w', 10, array['head and next'])$$,
    $$values ('3'::jsonb, 1::bigint)$$,
    'when a head and its successor are cancelled together the one behind moves up'
);
do $$
begin
    perform outbox_configure('standing', on_dead => 'block');
    perform outbox_enqueue('standing', to_jsonb(g), ordering_key => 'o') from generate_series(1, 2) as g;
    perform outbox_fail(lease, dead => true) from outbox_claim('w', 1, array['standing']);
    perform outbox_cancel(array[pg_temp.id_of('standing', '1')]);
end;
$$;
select is(
    (select payload from outbox_claim('w', 1, array['standing'])), '2'::jsonb,
    'when a dead head that blocks its key is cancelled the key goes on'
);
do $$
begin
    perform outbox_enqueue('emptied', to_jsonb(g), ordering_key => 'o') from generate_series(1, 2) as g;
    perform outbox_cancel(array(select id from outbox_events where topic = 'emptied'));
    perform outbox_enqueue('emptied', '3', ordering_key => 'o');
end;
$$;
select is(
    (select payload from outbox_claim('w', 10, array['emptied'])), '3'::jsonb,
    'a key all of whose events are cancelled begins anew'
);

-- Bad arguments
do $$ begin perform outbox_enqueue('bad', '1'); end $$;
select throws_ok(
    'select outbox_cancel(null)', '22004', 'ids is null',
    'null ids are refused'
);
select is(
    pg_temp.hint_of('select outbox_cancel(null)'), 'Give the ids of events that wait or are dead.',
    'the hint for null ids says what to give'
);
select throws_ok(
    $$select outbox_cancel(array[pg_temp.id_of('bad', '1'), null])$$, '22004', 'ids has a null at position 2',
    'a null among the ids is refused'
);
select is(
    pg_temp.hint_of('select outbox_cancel(array[null]::bigint[])'), 'Give the ids of events; leave out what is null.',
    'the hint for a null among the ids says what to do'
);
select is(
    pg_temp.statuses('bad'), 'pending',
    'a refused cancel changes nothing'
);

select * from finish();
rollback;
