create or replace function outbox_channel()
returns text
language sql
stable
security definer
set search_path from current
as $$
    -- By oid: a schema's name could overflow the 63 bytes of a channel.
    select 'outbox_' || quote_ident(current_schema())::regnamespace::oid
$$;

comment on function outbox_channel() is
    'What to LISTEN on. A topic notifies here, without a payload, when outbox_configure has set its notify.';

revoke all on function outbox_channel() from public;
