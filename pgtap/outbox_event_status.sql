begin;
select plan(23);

select is(
    (select array_agg(attname order by attnum)
       from pg_attribute
      where attrelid = 'outbox_event_status'::regclass and attnum > 0 and not attisdropped),
    array[
        'id', 'topic', 'dedupe_key', 'ordering_key', 'payload', 'headers', 'priority', 'status', 'attempts', 'max_attempts', 'available_at',
        'locked_by', 'locked_at', 'lease_expires_at', 'last_error', 'created_at'
    ]::name[],
    'the columns are those of the contract, in its order'
);
select col_type_is(
    'public', 'outbox_event_status', 'status', 'text',
    'a status is a text'
);

-- One event in each state, named by its payload.
do $$
begin
    perform outbox_enqueue('states', to_jsonb(s)) from unnest(array['done', 'dead', 'retry', 'due retry', 'processing', 'expired', 'ready']) as s;
    perform outbox_enqueue('states', '"scheduled"', available_at => '2999-01-01 00:00+00');
    perform outbox_enqueue('states', '"head"', ordering_key => 'o');
    perform outbox_enqueue('states', '"blocked"', ordering_key => 'o');
    perform case c.payload #>> '{}'
                when 'done' then (select count(*) from outbox_ack(c.lease, array[c.id]))
                when 'dead' then (select count(*) from outbox_fail(c.lease, array[c.id], 'dead letter', dead => true))
                when 'retry' then (select count(*) from outbox_fail(c.lease, array[c.id], 'not yet', '1 hour'))
                when 'due retry' then (select count(*) from outbox_fail(c.lease, array[c.id], 'once more', '0'))
            end
       from outbox_claim('first worker', 6, array['states'], '1 hour') as c;
    update outbox_leases
       set expires_at = clock_timestamp() - interval '1 second'
     where id = (select id from outbox_events where payload = '"expired"');
end;
$$;
create function pg_temp.shown(state text)
returns setof outbox_event_status
language sql
as $$ select * from outbox_event_status where payload = to_jsonb(state) $$;

select is(
    (select count(*) from outbox_event_status), (select count(*) from outbox_events),
    'there is one row per event'
);
select is(
    (select status from pg_temp.shown(s.state)), s.status, format('an event that is %s has the status %s', s.state, s.status)
)
  from (values ('ready', 'pending'), ('scheduled', 'pending'), ('head', 'pending'), ('blocked', 'blocked'), ('retry', 'retry'),
               ('due retry', 'retry'), ('processing', 'processing'), ('expired', 'processing'), ('done', 'done'), ('dead', 'dead')
       ) as s (state, status);
select results_eq(
    $$select attempts, locked_by, locked_at, lease_expires_at, last_error from pg_temp.shown('ready')$$,
    'values (0, null::text, null::timestamptz, null::timestamptz, null::text)',
    'what waits for its first attempt has no attempts, worker, lease or error'
);
select results_eq(
    $$select attempts, locked_by, last_error from pg_temp.shown('processing')$$,
    $$values (1, 'first worker', null::text)$$,
    'what is in flight shows its attempt and who has it'
);
select results_eq(
    $$select locked_at <= clock_timestamp(), lease_expires_at - locked_at from pg_temp.shown('processing')$$,
    $$values (true, interval '1 hour')$$,
    'what is in flight shows since when and until when'
);
select results_eq(
    $$select attempts, last_error, locked_by, available_at > clock_timestamp() + interval '59 minutes' from pg_temp.shown('retry')$$,
    $$values (1, 'not yet', null::text, true)$$,
    'a retry shows its attempts, its last error and when it is due'
);
select results_eq(
    $$select attempts, last_error from pg_temp.shown('dead')$$,
    $$values (1, 'dead letter')$$,
    'a dead event shows its attempts and its last error'
);
select is(
    (select available_at from pg_temp.shown('scheduled')), '2999-01-01 00:00+00'::timestamptz,
    'a scheduled event shows when it is due'
);
do $$
begin
    perform outbox_enqueue('all columns', '{"p": 1}', 'd', 'o', '{"h": 1}', -4, max_attempts => 6);
    perform outbox_configure('policy', max_attempts => 3);
    perform outbox_enqueue('policy', '1');
end;
$$;
select results_eq(
    $$select dedupe_key, ordering_key, payload, headers, priority, max_attempts from outbox_event_status where topic = 'all columns'$$,
    $$values ('d', 'o', '{"p": 1}'::jsonb, '{"h": 1}'::jsonb, -4, 6)$$,
    'an event shows what was enqueued'
);
select is(
    (select max_attempts from outbox_event_status where topic = 'policy'), 3,
    'an event without max_attempts of its own shows its topic''s'
);
select results_eq(
    'select id, topic, created_at from outbox_event_status order by id',
    'select id, topic, created_at from outbox_events order by id',
    'id, topic and created_at are the log''s'
);
select is_empty(
    $$select from outbox_event_status where not isfinite(available_at) or not isfinite(locked_at) or not isfinite(lease_expires_at)$$,
    'no time is infinite'
);

select * from finish();
rollback;
