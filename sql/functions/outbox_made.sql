create or replace function outbox_made(lane integer)
returns timestamptz
language sql
immutable
set search_path from current
as $$
    -- Declared immutable though it is not, as outbox_stamp is.
    select now()
$$;

comment on function outbox_made(integer) is
    'Internal. The writing transaction''s start, as the generated column outbox_heads.stamp takes it.';

revoke all on function outbox_made(integer) from public;
