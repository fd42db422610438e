begin;
select plan(32);

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

-- A topic of its own with the payloads 1 to n, all of them claimed under the lease that is answered.
create function pg_temp.claimed(topic text, n integer default 1)
returns bigint
language plpgsql
as $$
begin
    perform outbox_enqueue(topic, to_jsonb(g)) from generate_series(1, n) as g;
    return (select min(lease) from outbox_claim('w', n, array[topic]));
end;
$$;

-- The ids of a topic's events, in their order.
create function pg_temp.ids(text)
returns bigint[]
language sql
as $$ select array_agg(id order by id) from outbox_events where topic = $1 $$;

-- The statuses of a topic's events, in their order.
create function pg_temp.statuses(text)
returns text
language sql
as $$ select string_agg(status, ' ' order by id) from outbox_event_status where topic = $1 $$;

-- The lease of a topic's events is over, but nobody has taken them back.
create function pg_temp.expire(text)
returns void
language sql
as $$
    update outbox_leases
       set expires_at = clock_timestamp() - interval '1 second'
     where id in (select e.id from outbox_events as e where e.topic = $1);
$$;

-- The events of a topic have lost their lease and belong to another claim.
create function pg_temp.lose(topic text)
returns void
language plpgsql
as $$
begin
    perform pg_temp.expire(topic);
    perform outbox_reap();
    update outbox_scheduled
       set available_at = clock_timestamp()
     where id in (select e.id from outbox_events as e where e.topic = lose.topic);
    perform outbox_claim('another', 1, array[topic]);
end;
$$;

-- outbox_ack(lease)
create temp table whole as select pg_temp.claimed('whole', 3) as lease;
select set_eq(
    'select outbox_ack(lease) from whole',
    $$select unnest(pg_temp.ids('whole'))$$,
    'an ack of a lease answers all ids that it holds'
);
select is(
    pg_temp.statuses('whole'), 'done done done',
    'acked events are done'
);
select is_empty(
    'select outbox_ack(lease) from whole',
    'a second ack of a lease answers nothing'
);
select is_empty(
    $$select from outbox_claim('w', 10, array['whole'])$$,
    'a done event is not delivered'
);
create temp table neighbours as
select pg_temp.claimed('neighbour 1') as lease, pg_temp.claimed('neighbour 2') as other;
do $$ begin perform outbox_ack(lease) from neighbours; end $$;
select is(
    pg_temp.statuses('neighbour 2'), 'processing',
    'an ack of one lease leaves another alone'
);
select is_empty(
    'select outbox_ack(-1) union all select outbox_ack(0) union all select outbox_ack(9223372036854775807)',
    'a lease that nobody has is no error'
);
create temp table expired as select pg_temp.claimed('expired') as lease;
do $$ begin perform pg_temp.expire('expired'); end $$;
select set_eq(
    'select outbox_ack(lease) from expired',
    $$select unnest(pg_temp.ids('expired'))$$,
    'a lease that has expired but was not reaped still holds'
);
select is(
    pg_temp.statuses('expired'), 'done',
    'an event that was acked under an expired lease is done'
);

-- Fencing
create temp table lost as select pg_temp.claimed('lost') as lease;
do $$ begin perform pg_temp.lose('lost'); end $$;
select is_empty(
    'select outbox_ack(lease) from lost',
    'a lease that was lost answers nothing'
);
select is_empty(
    $$select outbox_ack(lease, pg_temp.ids('lost')) from lost$$,
    'a lease that was lost holds none of its ids'
);
select results_eq(
    $$select status, locked_by, attempts from outbox_event_status where topic = 'lost'$$,
    $$values ('processing', 'another', 2)$$,
    'an ack under a lost lease leaves the event to the claim that has it now'
);
create temp table borrowed as select pg_temp.claimed('borrowed 1') as lease, pg_temp.claimed('borrowed 2') as other;
select is_empty(
    $$select outbox_ack(lease, pg_temp.ids('borrowed 2')) from borrowed$$,
    'a lease cannot ack what another lease holds'
);
select is(
    pg_temp.statuses('borrowed 2'), 'processing',
    'what another lease holds is left to it'
);

-- outbox_ack(lease, ids)
create temp table part as select pg_temp.claimed('part', 3) as lease;
create temp table part_ids as select pg_temp.ids('part') as ids;
select set_eq(
    'select outbox_ack(lease, ids[2:2]) from part, part_ids',
    'select ids[2] from part_ids',
    'an ack of some ids answers these'
);
select is(
    pg_temp.statuses('part'), 'processing done processing',
    'an ack of some ids leaves the others in flight'
);
select bag_eq(
    'select outbox_ack(lease, array[ids[1], ids[1], ids[2], -1]) from part, part_ids',
    'select ids[1] from part_ids',
    'repeated ids count once; ids that are not held are missing from the answer'
);
select is_empty(
    $$select outbox_ack(lease, '{}') from part, part_ids$$,
    'an empty array acks nothing'
);
select is(
    pg_temp.statuses('part'), 'done done processing',
    'an empty array leaves the lease as it is'
);
select throws_ok(
    'select outbox_ack(lease, null) from part, part_ids', '22004', 'ids is null',
    'null ids are refused: they do not mean the whole lease'
);
select is(
    pg_temp.hint_of('select outbox_ack(lease, null) from part, part_ids'),
    'array_agg over no rows is null: call outbox_ack(lease) for the whole lease, or give ''{}'' for none.',
    'the hint for null ids tells where they come from and what to call'
);
select throws_ok(
    'select outbox_ack(lease, array[ids[3], null]) from part, part_ids', '22004', 'ids has a null at position 2',
    'a null among the ids is refused'
);
select is(
    pg_temp.hint_of('select outbox_ack(1, array[null]::bigint[])'), 'Give the ids of events; leave out what is null.',
    'the hint for a null among the ids says what to do'
);
select throws_ok(
    'select outbox_ack(null)', '22004', 'lease is null',
    'a null lease is refused'
);
select throws_ok(
    $$select outbox_ack(null, '{}')$$, '22004', 'lease is null',
    'a null lease is refused beside ids'
);
select is(
    pg_temp.hint_of('select outbox_ack(null)'), 'Give the lease that outbox_claim answered.',
    'the hint for a null lease says what to give'
);
select is(
    pg_temp.statuses('part'), 'done done processing',
    'a refused ack changes nothing'
);
select is(
    (select count(*) from outbox_ack((select lease from part))), 1::bigint,
    'an ack of a lease acks what is left of it'
);

-- Retention 0
do $$
begin
    perform outbox_configure('kept for no time', retention => '0');
    perform outbox_enqueue('kept for no time', '1', 'k'), outbox_enqueue('kept for no time', '2');
end;
$$;
create temp table forgotten as select distinct lease from outbox_claim('w', 2, array['kept for no time']);
select is(
    (select count(*) from outbox_events where topic = 'kept for no time'), 2::bigint,
    'with retention 0 an event is kept until its ack'
);
select is(
    (select count(*) from outbox_ack((select lease from forgotten))), 2::bigint,
    'with retention 0 an ack answers the ids all the same'
);
select is_empty(
    $$select from outbox_events where topic = 'kept for no time'$$,
    'with retention 0 an event is removed with its ack'
);
select ok(
    (select created from outbox_enqueue('kept for no time', '1', 'k')),
    'with retention 0 a dedupe_key is free after the ack'
);

-- A claim and its ack in one transaction
do $$ begin perform outbox_enqueue('one transaction', '1'); end $$;
savepoint before_effects;
create temp table effects as select outbox_ack(lease) from outbox_claim('w', 1, array['one transaction']);
rollback to savepoint before_effects;
select results_eq(
    $$select status, attempts from outbox_event_status where topic = 'one transaction'$$,
    $$values ('pending', 0)$$,
    'a claim and an ack that are rolled back together give the event back uncounted'
);

select * from finish();
rollback;
