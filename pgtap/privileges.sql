begin;
select plan(35);

-- Ours: what the install has made in its schema. Its names are in lint.sql.
create function pg_temp.relations()
returns table (oid oid, name text, kind "char", acl aclitem[])
language sql
as $$
    select c.oid, c.relname, c.relkind, coalesce(c.relacl, acldefault(case c.relkind when 'S' then 's' else 'r' end::"char", c.relowner))
      from pg_class as c
     where c.relnamespace = 'public'::regnamespace
       and c.relname like 'outbox\_%'
       and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S')
$$;
create function pg_temp.functions()
returns table (oid oid, name text, acl aclitem[], is_definer boolean, settings text[])
language sql
as $$
    select p.oid, p.oid::regprocedure::text, coalesce(p.proacl, acldefault('f', p.proowner)), p.prosecdef, coalesce(p.proconfig, '{}')
      from pg_proc as p
     where p.pronamespace = 'public'::regnamespace
       and p.proname like 'outbox\_%'
$$;

-- PUBLIC
select cmp_ok(
    (select count(*) from pg_temp.functions()), '>', 20::bigint,
    'the functions of the install are found'
);
select is_empty(
    'select f.name from pg_temp.functions() as f, aclexplode(f.acl) as a where a.grantee = 0',
    'PUBLIC may execute no function'
);
select is_empty(
    $$select r.name, a.privilege_type from pg_temp.relations() as r, aclexplode(r.acl) as a where r.kind <> 'S' and a.grantee = 0$$,
    'PUBLIC has no privilege on any table or view'
);
select is_empty(
    $$select r.name, a.privilege_type from pg_temp.relations() as r, aclexplode(r.acl) as a where r.kind = 'S' and a.grantee = 0$$,
    'PUBLIC has no privilege on any sequence'
);
select is_empty(
    $$select r.name, c.attname from pg_temp.relations() as r join pg_attribute as c on c.attrelid = r.oid where c.attacl is not null$$,
    'nobody has a privilege on a single column'
);
select is_empty(
    $$select f.name
        from pg_temp.functions() as f join pg_proc as p using (oid), aclexplode(f.acl) as a
       where a.grantee <> p.proowner
       union all
      select r.name
        from pg_temp.relations() as r join pg_class as c using (oid), aclexplode(r.acl) as a
       where a.grantee <> c.relowner$$,
    'after the install nobody but the owner has any privilege'
);

-- A stranger: a role that nobody has granted anything
create role pgoutbox_pgtap_stranger;
select is_empty(
    $$select name from pg_temp.functions() where has_function_privilege('pgoutbox_pgtap_stranger', oid, 'execute')$$,
    'a stranger may execute no function'
);
select is_empty(
    $$select name from pg_temp.relations()
       where case when kind <> 'S' then
                 has_table_privilege('pgoutbox_pgtap_stranger', oid, 'select, insert, update, delete, truncate, references, trigger')
                 or has_any_column_privilege('pgoutbox_pgtap_stranger', oid, 'select, insert, update, references')
             end$$,
    'a stranger has no privilege on any table, view or column'
);
select is_empty(
    $$select name from pg_temp.relations()
       where case when kind = 'S' then has_sequence_privilege('pgoutbox_pgtap_stranger', oid, 'usage, select, update') end$$,
    'a stranger has no privilege on any sequence'
);

-- What comes of a statement of the stranger's: its SQLSTATE, or ok.
create function pg_temp.as_stranger(statement text)
returns text
language plpgsql
as $$
begin
    set local role pgoutbox_pgtap_stranger;
    execute statement;
    reset role;
    return 'ok';
exception when others then
    return sqlstate;
end;
$$;
select is(
    pg_temp.as_stranger(s.statement), '42501', format('a stranger cannot: %s', s.statement)
)
  from (values
            ('select outbox_enqueue(''t'', ''1'')'), ('select outbox_claim(''w'')'), ('select outbox_ack(1)'),
            ('select outbox_reap()'), ('insert into outbox_events (topic, payload) values (''t'', ''1'')'),
            ('select from outbox_event_status'), ('select from outbox_leases'), ('delete from outbox_ready'),
            ('truncate outbox_events'), ('select nextval(''outbox_lease_seq'')')
       ) as s (statement);

-- A producer at the bulk door: INSERT on its eight columns, SELECT on what returning and on conflict need
create role pgoutbox_pgtap_producer;
grant insert (topic, payload, dedupe_key, ordering_key, headers, priority, available_at, max_attempts), select (id, topic, dedupe_key)
   on outbox_events to pgoutbox_pgtap_producer;
create function pg_temp.as_producer(statement text)
returns text
language plpgsql
as $$
begin
    set local role pgoutbox_pgtap_producer;
    execute statement;
    reset role;
    return 'ok';
exception when others then
    return sqlstate;
end;
$$;
select is(
    pg_temp.as_producer(
        $$insert into outbox_events (topic, payload, ordering_key) values ('bulk', '1', 'o'), ('bulk', '2', 'o') returning id$$
    ), 'ok',
    'who may insert events needs no privilege on the tables that they are routed to'
);
select is(
    (select count(*) from outbox_claim('w', 10, array['bulk'])), 1::bigint,
    'what such a role inserts is routed'
);
select is(
    pg_temp.as_producer(
        $$insert into outbox_events (topic, payload, dedupe_key) values ('bulk', '1', 'k')
          on conflict (topic, dedupe_key) where dedupe_key is not null do nothing returning id$$
    ), 'ok',
    'such a role may skip duplicates'
);
select is(
    pg_temp.as_producer(s.statement), '42501', format('such a role cannot: %s', s.statement)
)
  from (values
            ('select payload from outbox_events'), ('update outbox_events set payload = ''2'''), ('delete from outbox_events'),
            ('truncate outbox_events'), ('insert into outbox_events (topic, payload, created_at) values (''t'', ''1'', now())'),
            ('insert into outbox_events (topic, payload, dedupe_key) values (''bulk'', ''1'', ''k'') '
             'on conflict (topic, dedupe_key) where dedupe_key is not null do update set payload = ''2''')
       ) as s (statement);

-- Capture: nothing that a caller can make stands in for what is ours. Plans are discarded before each look, since one
-- that was made before the trap does not look for names again.
select is_empty(
    $$select name from pg_temp.functions()
       where is_definer
         and not exists (select from unnest(settings) as s where s = 'search_path=public, pg_temp')$$,
    'each security definer function pins its search_path, the temporary schema last'
);
select cmp_ok(
    (select count(*) from pg_temp.functions() where is_definer), '>=', 18::bigint,
    'the security definer functions are found'
);
create function pg_temp.round_trip(topic text)
returns text
language plpgsql
as $$
declare
    v_lease bigint;
begin
    perform public.outbox_configure(topic, max_attempts => 4);
    perform public.outbox_enqueue(topic, '1', 'k', 'o');
    perform public.outbox_enqueue_many(jsonb_build_array(jsonb_build_object('topic', topic, 'payload', 2)));
    perform public.outbox_fail(lease, retry_in => '0') from (select distinct lease from public.outbox_claim('w', 10, array[topic])) as l;
    perform public.outbox_reap();
    select lease into v_lease from public.outbox_claim('w', 10, array[topic]) limit 1;
    perform public.outbox_extend(v_lease);
    perform public.outbox_release(v_lease);
    return (select string_agg(payload #>> '{}' || '/' || max_attempts, ' ') from public.outbox_claim('w', 10, array[topic]));
end;
$$;
select is(
    pg_temp.round_trip('before any trap'), '1/4 2/4',
    'a round trip, before any trap'
);
do $$
declare
    v_relation record;
begin
    for v_relation in select name, kind from pg_temp.relations() loop
        if v_relation.kind = 'S' then
            execute format('create temp sequence %I', v_relation.name);
        else
            execute format('create temp table %I (trap text)', v_relation.name);
        end if;
    end loop;
end;
$$;
discard plans;
select is(
    pg_temp.round_trip('temporary tables'), '1/4 2/4',
    'temporary tables and sequences that are named like ours capture nothing'
);
do $$
declare
    v_relation record;
begin
    for v_relation in select name, kind from pg_temp.relations() loop
        execute format('drop %s pg_temp.%I', case v_relation.kind when 'S' then 'sequence' else 'table' end, v_relation.name);
    end loop;
end;
$$;
create temp sequence trapped;
create function pg_temp.trap()
returns text
language sql
as $$ select nextval('pg_temp.trapped')::text $$;
do $$
declare
    v_function record;
begin
    for v_function in
        select distinct on (p.proname, v.arguments) p.proname, v.arguments
          from pg_proc as p
         cross join lateral (select pg_get_function_identity_arguments(p.oid) as arguments) as v
         where p.pronamespace = 'public'::regnamespace
           and p.proname like 'outbox\_%'
           and p.prorettype <> 'trigger'::regtype
    loop
        execute format(
            'create function pg_temp.%I(%s) returns text language sql as $f$ select pg_temp.trap() $f$',
            v_function.proname, v_function.arguments
        );
    end loop;
end;
$$;
discard plans;
select is(
    pg_temp.round_trip('temporary functions'), '1/4 2/4',
    'temporary functions that are named like ours capture nothing'
);
create schema pgoutbox_pgtap_trap;
create function pgoutbox_pgtap_trap.octet_length(text) returns integer language sql as $$ select pg_temp.trap()::integer $$;
create function pgoutbox_pgtap_trap.clock_timestamp() returns timestamptz language sql as $$ select pg_temp.trap()::timestamptz $$;
create function pgoutbox_pgtap_trap.never(bigint, bigint) returns boolean language sql as $$ select pg_temp.trap() is null $$;
create operator pgoutbox_pgtap_trap.= (leftarg = bigint, rightarg = bigint, function = pgoutbox_pgtap_trap.never);
create table pgoutbox_pgtap_trap.outbox_events (trap text);
create table pgoutbox_pgtap_trap.outbox_ready (trap text);
create table pgoutbox_pgtap_trap.outbox_leases (trap text);
set local search_path = pgoutbox_pgtap_trap, pg_catalog;
discard plans;
create temp table trapped_path as select pg_temp.round_trip('search_path') as answer;
set local search_path = public, tap;
select is(
    (select answer from trapped_path), '1/4 2/4',
    'a search_path of the caller''s captures nothing, neither tables nor functions nor operators'
);
select is(
    nextval('pg_temp.trapped'), 1::bigint,
    'no trap has been run'
);

select * from finish();
rollback;
