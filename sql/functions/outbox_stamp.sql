create or replace function outbox_stamp(id bigint)
returns xid8
language sql
immutable
set search_path from current
as $$
    -- Declared immutable though it is not: only an immutable function may generate a column.
    -- The argument keeps the planner from folding the call into a constant.
    select pg_current_xact_id()
$$;

comment on function outbox_stamp(bigint) is
    'Internal. The writing transaction''s id, as the generated column outbox_ready.xid takes it.';

revoke all on function outbox_stamp(bigint) from public;
