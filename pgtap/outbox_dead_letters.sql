begin;
select plan(7);

select is(
    (select array_agg(attname order by attnum)
       from pg_attribute
      where attrelid = 'outbox_dead_letters'::regclass and attnum > 0 and not attisdropped),
    array[
        'id', 'topic', 'dedupe_key', 'ordering_key', 'payload', 'headers', 'attempts', 'lost_leases', 'reason', 'last_error', 'dead_at', 'created_at'
    ]::name[],
    'the columns are those of the contract, in its order'
);
select is_empty(
    'select from outbox_dead_letters',
    'where nothing is dead there are no dead letters'
);

-- The events of this topic have lost their lease; those that may be tried again are due.
create function pg_temp.lose(topic text)
returns void
language plpgsql
as $$
begin
    perform outbox_claim('w', 1, array[topic]);
    update outbox_leases
       set expires_at = clock_timestamp() - interval '1 second'
     where id in (select e.id from outbox_events as e where e.topic = lose.topic);
    perform outbox_reap();
    update outbox_scheduled
       set available_at = clock_timestamp()
     where id in (select e.id from outbox_events as e where e.topic = lose.topic);
end;
$$;

create temp table started as select clock_timestamp() as at;
do $$
begin
    perform outbox_enqueue('failed', '{"p": 1}', 'd', 'o', '{"h": 1}', max_attempts => 2);
    perform outbox_fail(lease, error => 'first', retry_in => '0') from outbox_claim('w', 1, array['failed']);
    perform outbox_fail(lease, error => 'second', retry_in => '0') from outbox_claim('w', 1, array['failed']);
    perform outbox_enqueue('discarded', '1');
    perform outbox_fail(lease, error => 'no use', dead => true) from outbox_claim('w', 1, array['discarded']);
    perform outbox_enqueue('discarded at last', '1', max_attempts => 1);
    perform outbox_fail(lease, dead => true) from outbox_claim('w', 1, array['discarded at last']);
    perform outbox_enqueue('lost', '1', max_attempts => 2);
    perform pg_temp.lose('lost');
    perform pg_temp.lose('lost');
    perform outbox_enqueue('failed after a loss', '1', max_attempts => 2);
    perform pg_temp.lose('failed after a loss');
    perform outbox_fail(lease, error => 'boom') from outbox_claim('w', 1, array['failed after a loss']);
    perform outbox_enqueue('alive', '1');
    perform outbox_fail(lease, error => 'boom') from outbox_claim('w', 1, array['alive']);
end;
$$;
select results_eq(
    $$select topic, reason, attempts, lost_leases from outbox_dead_letters order by id$$,
    $$values ('failed', 'failed', 2, 0), ('discarded', 'discarded', 1, 0), ('discarded at last', 'discarded', 1, 0),
             ('lost', 'lost lease', 2, 2), ('failed after a loss', 'failed', 2, 1)$$,
    'a dead letter says why it is dead: its attempts spent by a failure, thrown away by its worker, or spent by a lost lease'
);
select results_eq(
    $$select dedupe_key, ordering_key, payload, headers, last_error from outbox_dead_letters where topic = 'failed'$$,
    $$values ('d', 'o', '{"p": 1}'::jsonb, '{"h": 1}'::jsonb, 'second')$$,
    'a dead letter shows what was enqueued, and what its last failure said'
);
select is(
    (select count(*) from outbox_dead_letters where dead_at between (select at from started) and clock_timestamp()), 5::bigint,
    'dead_at is when it died, by the database''s clock'
);
select results_eq(
    'select id, created_at from outbox_dead_letters order by id',
    'select e.id, e.created_at from outbox_events as e join outbox_dead_letters using (id) order by e.id',
    'id and created_at are the log''s'
);
do $$
begin
    perform outbox_redrive(topic => 'failed');
    perform outbox_cancel(array(select id from outbox_events where topic = 'discarded'));
end;
$$;
select is_empty(
    $$select from outbox_dead_letters where topic in ('failed', 'discarded')$$,
    'what was redriven or cancelled is no dead letter any more'
);

select * from finish();
rollback;
