create or replace function outbox_refuse_ids()
returns void
language plpgsql
stable
set search_path from current
as $$
begin
    raise exception using
        errcode = 'unique_violation',
        message = 'outbox_events_id_seq is behind the ids of outbox_events',
        hint = 'Run: select setval(''outbox_events_id_seq'', max(id)) from outbox_events';
end;
$$;

comment on function outbox_refuse_ids() is
    'Internal. Raises 23505: the sequence gives ids that are taken, as after a restore or replication without it.';

revoke all on function outbox_refuse_ids() from public;
