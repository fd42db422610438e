begin;
select plan(38);

-- The payloads 1 to n in this topic, under one ordering key.
create function pg_temp.enqueue(topic text, n integer, ordering_key text default 'o')
returns void
language plpgsql
as $$ begin perform outbox_enqueue(topic, to_jsonb(g), ordering_key => enqueue.ordering_key) from generate_series(1, n) as g; end $$;

-- What a claim delivers of this topic, in the order of delivery.
create function pg_temp.claimed(topic text, n integer default 10)
returns text
language sql
as $$ select string_agg(payload #>> '{}', ' ') from outbox_claim('w', n, array[topic]) $$;

-- The leases of this topic.
create function pg_temp.leases(text)
returns setof bigint
language sql
as $$ select distinct l.lease from outbox_leases as l join outbox_events as e using (id) where e.topic = $1 $$;

create function pg_temp.statuses(text)
returns text
language sql
as $$ select string_agg(status, ' ' order by id) from outbox_event_status where topic = $1 $$;

-- The events of this topic that wait for their time are due.
create function pg_temp.make_due(text)
returns void
language sql
as $$
    update outbox_scheduled
       set available_at = clock_timestamp()
     where id in (select e.id from outbox_events as e where e.topic = $1);
$$;

-- The events of this topic that are in flight lose their lease.
create function pg_temp.lose(topic text)
returns void
language plpgsql
as $$
begin
    update outbox_leases set expires_at = clock_timestamp() - interval '1 second' where lease in (select pg_temp.leases(topic));
    perform outbox_reap();
end;
$$;

-- One at a time, in order
do $$ begin perform pg_temp.enqueue('one at a time', 3); end $$;
select is(
    pg_temp.statuses('one at a time'), 'pending blocked blocked',
    'behind the first event of a key the others are blocked'
);
select is(
    pg_temp.claimed('one at a time'), '1',
    'of the events that share a key one is delivered at a time'
);
select is(
    pg_temp.claimed('one at a time'), null,
    'while an event is in flight the next of its key is not delivered'
);
do $$ begin perform outbox_enqueue('one at a time', '4', ordering_key => 'o'); end $$;
select is(
    pg_temp.claimed('one at a time'), null,
    'what is enqueued while an event of its key is in flight waits'
);
do $$ begin perform outbox_ack(l) from pg_temp.leases('one at a time') as l; end $$;
select is(
    pg_temp.statuses('one at a time'), 'done pending blocked blocked',
    'an ack lets the next one in, in the same transaction'
);
create function pg_temp.rest_in_order(topic text)
returns text
language plpgsql
as $$
declare
    v_all text := '';
    v_next text;
begin
    loop
        v_next := pg_temp.claimed(topic);
        exit when v_next is null;
        v_all := v_all || v_next || '. ';
        perform outbox_ack(l) from pg_temp.leases(topic) as l;
    end loop;
    return v_all;
end;
$$;
select is(
    pg_temp.rest_in_order('one at a time'), '2. 3. 4. ',
    'the events of a key are delivered in the order of their ids'
);
do $$ begin perform pg_temp.enqueue('one at a time', 2); end $$;
select is(
    pg_temp.rest_in_order('one at a time'), '1. 2. ',
    'a key all of whose events are done begins anew'
);
do $$
begin
    perform outbox_enqueue('priorities', to_jsonb(p), ordering_key => 'o', priority => p) from unnest(array[-10, 10, 0]) as p;
end;
$$;
select is(
    pg_temp.rest_in_order('priorities'), '-10. 10. 0. ',
    'within a key the lowest id comes first, whatever the priority'
);

-- Keys apart
do $$
begin
    perform pg_temp.enqueue('several keys', 2, k) from unnest(array['a', 'b', 'c']) as k;
    perform outbox_enqueue('several keys', '9');
    perform outbox_enqueue('several keys', '9');
end;
$$;
select is(
    pg_temp.claimed('several keys'), '1 1 1 9 9',
    'keys do not wait for each other, and what has no key waits for nothing'
);
do $$
begin
    perform outbox_ack(l.lease, array[l.id])
       from outbox_leases as l
       join outbox_events as e using (id)
      where e.topic = 'several keys'
        and e.ordering_key = 'b';
end;
$$;
select results_eq(
    $$select ordering_key, payload from outbox_claim('w', 10, array['several keys'])$$,
    $$values ('b', '2'::jsonb)$$,
    'an ack of one event lets only its own key go on'
);
do $$ begin perform pg_temp.enqueue(t, 1, 'shared') from unnest(array['first topic', 'second topic']) as t; end $$;
select is(
    (select count(*) from outbox_claim('w', 10, array['first topic', 'second topic'])), 2::bigint,
    'the same key in two topics is two keys'
);

-- The head keeps its place
do $$
begin
    perform pg_temp.enqueue('failed', 2);
    perform outbox_fail(lease, retry_in => '1 hour') from outbox_claim('w', 1, array['failed']);
end;
$$;
select is(
    pg_temp.statuses('failed') || ': ' || coalesce(pg_temp.claimed('failed'), 'nothing'), 'retry blocked: nothing',
    'a head that waits for its retry keeps its place'
);
do $$ begin perform pg_temp.make_due('failed'); end $$;
select is(
    pg_temp.rest_in_order('failed'), '1. 2. ',
    'a head that was retried comes before what follows'
);
do $$
begin
    perform pg_temp.enqueue('released', 2);
    perform outbox_release(lease) from outbox_claim('w', 1, array['released']);
end;
$$;
select is(
    pg_temp.rest_in_order('released'), '1. 2. ',
    'a head that was released keeps its place'
);
do $$
begin
    perform pg_temp.enqueue('lost', 2);
    perform outbox_claim('w', 1, array['lost']);
    perform pg_temp.lose('lost');
end;
$$;
select is(
    pg_temp.statuses('lost') || ': ' || coalesce(pg_temp.claimed('lost'), 'nothing'), 'retry blocked: nothing',
    'a head that lost its lease keeps its place'
);
do $$ begin perform pg_temp.make_due('lost'); end $$;
select is(
    pg_temp.rest_in_order('lost'), '1. 2. ',
    'a head that lost its lease comes before what follows'
);
do $$
begin
    perform outbox_enqueue('scheduled', '1', ordering_key => 'o', available_at => clock_timestamp() + interval '1 hour');
    perform outbox_enqueue('scheduled', '2', ordering_key => 'o');
end;
$$;
select is(
    pg_temp.claimed('scheduled'), null,
    'a head keeps its place until its own available_at: what follows is blocked'
);
do $$ begin perform pg_temp.make_due('scheduled'); end $$;
select is(
    pg_temp.rest_in_order('scheduled'), '1. 2. ',
    'a head that was scheduled comes before what follows'
);
do $$
begin
    perform pg_temp.enqueue('paused', 2);
    perform outbox_pause('paused');
    perform outbox_claim('w', 10, array['paused']);
    perform outbox_resume('paused');
end;
$$;
select is(
    pg_temp.rest_in_order('paused'), '1. 2. ',
    'a head keeps its place through a pause'
);
do $$
begin
    perform outbox_enqueue('replaced', '"old"', 'k', 'o');
    perform outbox_enqueue('replaced', '2', ordering_key => 'o');
    perform outbox_enqueue('replaced', '1', 'k', available_at => clock_timestamp() + interval '1 hour', on_duplicate => 'replace');
end;
$$;
select is(
    pg_temp.claimed('replaced'), null,
    'a head that was put off by a replace keeps its place'
);
do $$
begin
    perform outbox_enqueue('own time', '1', ordering_key => 'o');
    perform outbox_enqueue('own time', '2', ordering_key => 'o', available_at => clock_timestamp() + interval '1 hour');
    perform outbox_enqueue('own time', '3', ordering_key => 'o');
    perform outbox_ack(lease) from outbox_claim('w', 1, array['own time']);
end;
$$;
select is(
    pg_temp.statuses('own time') || ': ' || coalesce(pg_temp.claimed('own time'), 'nothing'), 'done pending blocked: nothing',
    'an event whose turn has come waits for its own available_at'
);
do $$
begin
    perform outbox_configure('nothing kept', retention => '0');
    perform pg_temp.enqueue('nothing kept', 3);
end;
$$;
select is(
    pg_temp.rest_in_order('nothing kept'), '1. 2. 3. ',
    'with retention 0 an ack lets the next one in'
);

-- A dead head: skip
do $$
begin
    perform pg_temp.enqueue('skip', 2);
    perform outbox_fail(lease, dead => true) from outbox_claim('w', 1, array['skip']);
end;
$$;
select is(
    pg_temp.statuses('skip') || ': ' || coalesce(pg_temp.claimed('skip'), 'nothing'), 'dead pending: 2',
    'with skip, the default, a head that is thrown away lets the next one in'
);
do $$
begin
    perform outbox_enqueue('skip spent', to_jsonb(g), ordering_key => 'o', max_attempts => 1) from generate_series(1, 2) as g;
    perform outbox_fail(lease) from outbox_claim('w', 1, array['skip spent']);
end;
$$;
select is(
    pg_temp.claimed('skip spent'), '2',
    'with skip a head whose attempts are spent lets the next one in'
);
do $$
begin
    perform outbox_enqueue('skip lost', to_jsonb(g), ordering_key => 'o', max_attempts => 1) from generate_series(1, 2) as g;
    perform outbox_claim('w', 1, array['skip lost']);
    perform pg_temp.lose('skip lost');
end;
$$;
select is(
    pg_temp.claimed('skip lost'), '2',
    'with skip a head that dies of a lost lease lets the next one in'
);
do $$
begin
    perform pg_temp.enqueue('skip lowered', 2);
    perform outbox_fail(lease, retry_in => '0') from outbox_claim('w', 1, array['skip lowered']);
    perform outbox_configure('skip lowered', max_attempts => 1);
end;
$$;
select is(
    pg_temp.claimed('skip lowered'), '2',
    'with skip a head that has spent what its topic now allows lets the next one in, within the claim that finds it'
);

-- A dead head: block
do $$
begin
    perform outbox_configure('block', on_dead => 'block');
    perform pg_temp.enqueue('block', 2);
    perform pg_temp.enqueue('block', 1, 'another key');
    perform outbox_fail(lease, dead => true) from outbox_claim('w', 1, array['block']);
    perform outbox_enqueue('block', '3', ordering_key => 'o');
end;
$$;
select is(
    pg_temp.statuses('block'), 'dead blocked pending blocked',
    'with block a dead head blocks what follows and what is enqueued later, in its key only'
);
do $$ begin perform outbox_ack(lease) from outbox_claim('w', 10, array['block']); end $$;
select is(
    pg_temp.claimed('block'), null,
    'with block nothing of the key is delivered'
);
do $$ begin perform outbox_redrive(topic => 'block'); end $$;
select is(
    pg_temp.rest_in_order('block'), '1. 2. 3. ',
    'with block a redrive of the head lets the key go on, from the head'
);
do $$
begin
    perform outbox_configure('block lost', on_dead => 'block', max_attempts => 1);
    perform pg_temp.enqueue('block lost', 2);
    perform outbox_claim('w', 1, array['block lost']);
    perform pg_temp.lose('block lost');
end;
$$;
select is(
    pg_temp.statuses('block lost'), 'dead blocked',
    'with block a head that dies of a lost lease blocks what follows'
);
do $$ begin perform outbox_cancel(array(select id from outbox_dead_letters where topic = 'block lost')); end $$;
select is(
    pg_temp.rest_in_order('block lost'), '2. ',
    'with block a cancel of the dead head lets the next one in'
);
do $$
begin
    perform pg_temp.enqueue('set in time', 2);
    perform outbox_claim('w', 1, array['set in time']);
    perform outbox_configure('set in time', on_dead => 'block');
    perform outbox_fail(l, dead => true) from pg_temp.leases('set in time') as l;
end;
$$;
select is(
    pg_temp.statuses('set in time'), 'dead blocked',
    'on_dead is read when the event dies'
);

-- Back at the place of its id
do $$
begin
    perform outbox_enqueue('requeued', to_jsonb(g), 'k' || g, 'o') from generate_series(1, 3) as g;
    perform outbox_ack(lease) from outbox_claim('w', 1, array['requeued']);
    perform outbox_enqueue('requeued', '1', 'k1', on_duplicate => 'requeue');
end;
$$;
select is(
    pg_temp.rest_in_order('requeued'), '1. 2. 3. ',
    'a requeued event comes before a successor that only waits'
);
do $$
begin
    perform outbox_enqueue('requeued in flight', to_jsonb(g), 'k' || g, 'o') from generate_series(1, 3) as g;
    perform outbox_ack(lease) from outbox_claim('w', 1, array['requeued in flight']);
    perform outbox_claim('w', 1, array['requeued in flight']);
    perform outbox_enqueue('requeued in flight', '1', 'k1', on_duplicate => 'requeue');
end;
$$;
select is(
    pg_temp.claimed('requeued in flight'), null,
    'a requeued event waits for the one in flight'
);
do $$ begin perform outbox_ack(l) from pg_temp.leases('requeued in flight') as l; end $$;
select is(
    pg_temp.rest_in_order('requeued in flight'), '1. 3. ',
    'a requeued event comes next after the one in flight'
);
do $$
begin
    perform outbox_enqueue('requeued retry', '1', 'k1', 'o');
    perform outbox_enqueue('requeued retry', '2', 'k2', 'o');
    perform outbox_fail(lease, retry_in => '1 hour') from outbox_claim('w', 1, array['requeued retry']);
    perform outbox_enqueue('requeued retry', '1', 'k1', on_duplicate => 'requeue');
end;
$$;
select is(
    pg_temp.rest_in_order('requeued retry'), '1. 2. ',
    'a head in retry that is requeued is due at once and keeps its place'
);
do $$
begin
    perform outbox_enqueue('requeued alone', '1', 'k1', 'o');
    perform outbox_ack(lease) from outbox_claim('w', 1, array['requeued alone']);
    perform outbox_enqueue('requeued alone', '1', 'k1', on_duplicate => 'requeue');
    perform outbox_enqueue('requeued alone', '2', 'k2', 'o');
end;
$$;
select is(
    pg_temp.rest_in_order('requeued alone'), '1. 2. ',
    'a requeued event whose key was empty is again its head'
);
do $$
begin
    perform outbox_enqueue('ignored', '1', 'k1', 'o');
    perform outbox_enqueue('ignored', '2', 'k1', 'another');
    perform outbox_enqueue('ignored', '3', ordering_key => 'another');
end;
$$;
select is(
    pg_temp.claimed('ignored'), '1 3',
    'a duplicate that is ignored leaves nothing in the key that it named'
);

select * from finish();
rollback;
