begin;
select plan(22);

-- Ours: what is in the schema of the install and belongs to no extension; yoyo's own tables are not.
create function pg_temp.relations()
returns table (oid oid, name text, kind "char", persistence "char")
language sql
as $$
    select c.oid, c.relname, c.relkind, c.relpersistence
      from pg_class as c
     where c.relnamespace = 'public'::regnamespace
       and c.relname !~ '^_?yoyo_'
       and not exists (select from pg_depend as d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e')
$$;
create function pg_temp.functions()
returns table (oid oid, name text, language name, is_api boolean)
language sql
as $$
    select p.oid, p.proname, l.lanname, coalesce(obj_description(p.oid, 'pg_proc'), '') not like 'Internal.%'
      from pg_proc as p
      join pg_language as l on l.oid = p.prolang
     where p.pronamespace = 'public'::regnamespace
       and not exists (select from pg_depend as d where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e')
$$;

-- The API, exactly: internal functions say so in their comments
select set_eq(
    $$select p.proname || '(' || pg_get_function_arguments(p.oid) || ') returns '
             || case
                    when c.relkind = 'c' and c.relname <> 'outbox_delivery' then (
                        select 'TABLE(' || string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' order by a.attnum) || ')'
                          from pg_attribute as a
                         where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
                    )
                    else pg_get_function_result(p.oid)
                end
        from pg_temp.functions() as f
        join pg_proc as p using (oid)
        left join pg_type as t on t.oid = p.prorettype
        left join pg_class as c on c.oid = t.typrelid
       where f.is_api$$,
    array[
        'outbox_enqueue(topic text, payload jsonb, dedupe_key text DEFAULT NULL::text, ordering_key text DEFAULT NULL::text, headers jsonb DEFAULT ''{}''::jsonb, priority integer DEFAULT 0, available_at timestamp with time zone DEFAULT NULL::timestamp with time zone, max_attempts integer DEFAULT NULL::integer, on_duplicate text DEFAULT ''ignore''::text) returns TABLE(id bigint, created boolean, changed boolean)',
        'outbox_enqueue_many(events jsonb) returns TABLE(ordinality integer, id bigint, created boolean, changed boolean)',
        'outbox_claim(worker text, n integer DEFAULT 1, topics text[] DEFAULT NULL::text[], lease_for interval DEFAULT NULL::interval) returns SETOF outbox_delivery',
        'outbox_ack(lease bigint) returns SETOF bigint',
        'outbox_ack(lease bigint, ids bigint[]) returns SETOF bigint',
        'outbox_fail(lease bigint, ids bigint[] DEFAULT NULL::bigint[], error text DEFAULT NULL::text, retry_in interval DEFAULT NULL::interval, dead boolean DEFAULT false) returns TABLE(id bigint, status text, available_at timestamp with time zone)',
        'outbox_extend(lease bigint, ids bigint[] DEFAULT NULL::bigint[], lease_for interval DEFAULT NULL::interval) returns TABLE(id bigint, lease_expires_at timestamp with time zone)',
        'outbox_release(lease bigint, ids bigint[] DEFAULT NULL::bigint[]) returns SETOF bigint',
        'outbox_reap(n integer DEFAULT 1000) returns TABLE(expired integer, dead integer, promoted integer, pruned integer)',
        'outbox_redrive(ids bigint[] DEFAULT NULL::bigint[], topic text DEFAULT NULL::text, n integer DEFAULT 1000) returns SETOF bigint',
        'outbox_cancel(ids bigint[]) returns SETOF bigint',
        'outbox_configure(topic text, max_attempts integer DEFAULT NULL::integer, lease_for interval DEFAULT NULL::interval, backoff_base interval DEFAULT NULL::interval, backoff_cap interval DEFAULT NULL::interval, retention interval DEFAULT NULL::interval, notify boolean DEFAULT NULL::boolean, on_dead text DEFAULT NULL::text) returns TABLE(topic text, max_attempts integer, lease_for interval, backoff_base interval, backoff_cap interval, retention interval, notify boolean, on_dead text, paused boolean)',
        'outbox_pause(topic text) returns void',
        'outbox_resume(topic text) returns void',
        'outbox_next_due(topics text[] DEFAULT NULL::text[]) returns timestamp with time zone',
        'outbox_version() returns text',
        'outbox_channel() returns text'
    ],
    'the API is exactly the contract''s: names of parameters, defaults and answers included'
);
select is(
    (select string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' order by a.attnum)
       from pg_attribute as a
       join pg_type as t on t.typrelid = a.attrelid
      where t.oid = 'outbox_delivery'::regtype
        and a.attnum > 0
        and not a.attisdropped),
    'lease bigint, id bigint, topic text, payload jsonb, headers jsonb, dedupe_key text, ordering_key text, priority integer, '
    'attempt integer, max_attempts integer, created_at timestamp with time zone, lease_expires_at timestamp with time zone',
    'outbox_delivery has the columns of the contract, in its order'
);
select set_eq(
    'select f.name from pg_temp.functions() as f join pg_proc as p using (oid) where f.is_api and p.proretset and p.prorows = 1',
    array['outbox_enqueue', 'outbox_reap', 'outbox_configure'],
    'functions that answer one row are set-returning with rows 1'
);
select is_empty(
    $$select f.name from pg_temp.functions() as f join pg_proc as p using (oid) where p.proargmodes && array['o', 'b']::"char"[]$$,
    'no function has out parameters'
);
select is_empty(
    'select f.name from pg_temp.functions() as f join pg_proc as p using (oid) where f.is_api and not p.prosecdef',
    'each function of the API is a security definer'
);
select is_empty(
    'select f.name from pg_temp.functions() as f join pg_proc as p using (oid) where f.is_api and p.proisstrict',
    'no function of the API is strict: a null is refused or has a meaning'
);
select is_empty(
    $$select name from pg_temp.functions() where name not like 'outbox\_%'
       union all
      select name from pg_temp.relations() where name not like 'outbox\_%' and kind <> 'i'
       union all
      select t.typname from pg_type as t where t.typnamespace = 'public'::regnamespace and t.typname !~ '^_?(outbox_|_?yoyo_)'$$,
    'all names of ours begin with outbox_'
);

-- plpgsql_check
select case
           when exists (select from pg_extension where extname = 'plpgsql_check') then is_empty(
               $$select f.oid::regprocedure, c.lineno, c.level, c.sqlstate, c.message
                   from pg_temp.functions() as f
                   join pg_proc as p using (oid)
                  cross join lateral (select p.prorettype = 'trigger'::regtype as is_trigger) as t
                  cross join lateral plpgsql_check_function_tb(
                            funcoid => f.oid,
                            relid => case when t.is_trigger then 'outbox_events'::regclass else 0 end,
                            newtable => case when t.is_trigger then 'new_events' end,
                            fatal_errors => false,
                            other_warnings => true,
                            extra_warnings => true,
                            performance_warnings => true,
                            security_warnings => true
                        ) as c
                  where f.language = 'plpgsql'$$,
               'plpgsql_check finds nothing in any function, the trigger included'
           )
           else skip('the extension plpgsql_check is not installed on this server: the functions were not checked by it', 1)
       end;

-- search_path
select is_empty(
    $$select f.oid::regprocedure
        from pg_temp.functions() as f
        join pg_proc as p using (oid)
       where not coalesce(p.proconfig, '{}') @> array['search_path=public, pg_temp']$$,
    'each function pins its search_path to the schema of the install, the temporary schema last'
);

-- Comments
select is_empty(
    $$select name from pg_temp.relations() where kind = 'r' and obj_description(oid, 'pg_class') is null$$,
    'each table has a comment'
);
select is_empty(
    $$select r.name, a.attname
        from pg_temp.relations() as r
        join pg_attribute as a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
       where r.kind = 'r'
         and col_description(r.oid, a.attnum) is null$$,
    'each column of a table has a comment'
);
select is_empty(
    $$select name from pg_temp.relations() where kind in ('v', 'm') and obj_description(oid, 'pg_class') is null$$,
    'each view has a comment'
);
select is_empty(
    $$select r.name, a.attname
        from pg_temp.relations() as r
        join pg_attribute as a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
       where r.kind in ('v', 'm')
         and col_description(r.oid, a.attnum) is null$$,
    'each column of a view has a comment'
);
select is_empty(
    'select oid::regprocedure from pg_temp.functions() where obj_description(oid, ''pg_proc'') is null',
    'each function has a comment'
);
select is_empty(
    $$select t.typname
        from pg_type as t
        left join pg_class as c on c.oid = t.typrelid
       where t.typnamespace = 'public'::regnamespace
         and (t.typtype in ('d', 'e', 'r') or c.relkind = 'c')
         and obj_description(t.oid, 'pg_type') is null$$,
    'each type has a comment'
);
select is_empty(
    $$select r.name, a.attname
        from pg_temp.relations() as r
        join pg_attribute as a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
       where r.kind = 'c'
         and col_description(r.oid, a.attnum) is null$$,
    'each attribute of a type has a comment'
);
select is_empty(
    $$select r.name
        from pg_temp.relations() as r
       where r.kind = 'S'
         and obj_description(r.oid, 'pg_class') is null
         and not exists (
                 select from pg_depend as d
                  where d.classid = 'pg_class'::regclass and d.objid = r.oid and d.refclassid = 'pg_class'::regclass and d.deptype = 'i'
             )$$,
    'each sequence that is not part of an identity column has a comment'
);
select is_empty(
    $$select r.name
        from pg_temp.relations() as r
       where r.kind = 'i'
         and obj_description(r.oid, 'pg_class') is null
         and not exists (select from pg_constraint as c where c.conindid = r.oid)$$,
    'each index that is not part of a constraint has a comment'
);
select is_empty(
    $$select t.tgname
        from pg_trigger as t
        join pg_temp.relations() as r on r.oid = t.tgrelid
       where not t.tgisinternal
         and obj_description(t.oid, 'pg_trigger') is null$$,
    'each trigger has a comment'
);

-- Names of constraints and indexes
select is_empty(
    $$select r.name, c.conname
        from pg_constraint as c
        join pg_temp.relations() as r on r.oid = c.conrelid
       cross join lateral (
                 select string_agg(a.attname, '_' order by array_position(c.conkey, a.attnum)) as columns
                   from pg_attribute as a
                  where a.attrelid = c.conrelid and a.attnum = any (c.conkey)
             ) as k
       where c.conname <> case c.contype
                              when 'p' then r.name || '_pkey'
                              when 'u' then r.name || '_' || k.columns || '_key'
                              when 'c' then r.name || '_' || k.columns || '_check'
                              when 'f' then r.name || '_' || k.columns || '_fkey'
                              when 'n' then r.name || '_' || k.columns || '_not_null'
                              else ''
                          end$$,
    'each constraint is named after its table, its columns and its kind'
);
select is_empty(
    $$select r.name, i.relname
        from pg_index as x
        join pg_temp.relations() as r on r.oid = x.indrelid
        join pg_class as i on i.oid = x.indexrelid
       where not exists (select from pg_constraint as c where c.conindid = x.indexrelid)
         and not (i.relname like r.name || '\_%' and i.relname ~ case when x.indisunique then '_key$' else '_idx$' end)$$,
    'each other index is named after its table and ends in _idx, or _key where it is unique'
);
select is_empty(
    $$select r.name
        from pg_temp.relations() as r
       where r.kind = 'r'
         and r.persistence = 'p'
         and not exists (select from pg_constraint as c where c.conrelid = r.oid and c.contype = 'p')$$,
    'each logged table has a primary key, so that it can be published'
);

select * from finish();
rollback;
