-- Hosted services grant to roles of theirs by default privileges, which a revoke from PUBLIC leaves in place.
-- Names that begin with outbox_ in the install's schema are the kit's.
do $$
declare
    v_acl record;
begin
    for v_acl in
        select distinct a.kind, a.name, case when x.grantee = 0 then 'public' else x.grantee::regrole::text end as grantee
          from (
              select case c.relkind when 'S' then 'sequence' else 'table' end as kind, c.oid::regclass::text as name, c.relacl as acl, c.relowner as owner
                from pg_class as c
               where c.relnamespace = quote_ident(current_schema())::regnamespace
                 and c.relkind in ('r', 'v', 'S')
                 and c.relname like 'outbox\_%'
              union all
              select 'function', p.oid::regprocedure::text, p.proacl, p.proowner
                from pg_proc as p
               where p.pronamespace = quote_ident(current_schema())::regnamespace
                 and p.proname like 'outbox\_%'
          ) as a
         cross join lateral aclexplode(a.acl) as x
         where a.owner = quote_ident(current_user)::regrole
           and x.grantee <> a.owner
    loop
        execute format('revoke all on %s %s from %s', v_acl.kind, v_acl.name, v_acl.grantee);
    end loop;
end;
$$;
