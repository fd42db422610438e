create or replace function outbox_version()
returns text
language sql
immutable
security definer
set search_path from current
as $$
    select '0.1.0'
$$;

comment on function outbox_version() is 'The installed version of pgoutbox.';

revoke all on function outbox_version() from public;
