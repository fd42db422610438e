begin;
select plan(4);

select is(
    outbox_channel(), 'outbox_' || 'public'::regnamespace::oid,
    'the channel is outbox_ and the oid of the schema of the install'
);
set local search_path = tap, pg_catalog;
select is(
    public.outbox_channel(), 'outbox_' || 'public'::regnamespace::oid,
    'the channel does not depend on the caller''s search_path'
);
set local search_path = public, tap;
select lives_ok(
    format('listen %I', outbox_channel()),
    'the channel is one that can be listened on'
);
do $$
begin
    perform outbox_configure('loud', notify => true);
    perform outbox_enqueue('loud', to_jsonb(g)) from generate_series(1, 100) as g;
    insert into outbox_events (topic, payload) select 'loud', to_jsonb(g) from generate_series(1, 100) as g;
end;
$$;
select is(
    (select count(*) from outbox_claim('w', 1000, array['loud'])), 200::bigint,
    'a topic that notifies is enqueued and delivered like any other'
);

select * from finish();
rollback;
