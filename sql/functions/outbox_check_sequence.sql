create or replace function outbox_check_sequence()
returns void
language plpgsql
stable
set search_path from current
as $$
declare
    v_given bigint := (select q.last_value from outbox_events_id_seq as q);
    v_taken bigint := (select max(e.id) from outbox_events as e);
begin
    if v_given < v_taken then
        raise exception using
            errcode = 'unique_violation',
            message = format('outbox_events_id_seq is at %s, behind the last event, %s', v_given, v_taken),
            hint = 'Run: select setval(''outbox_events_id_seq'', max(id)) from outbox_events';
    end if;
end;
$$;

comment on function outbox_check_sequence() is
    'Internal. Raises 23505 where the sequence gives ids that are taken, as after a restore or replication without it.';

revoke all on function outbox_check_sequence() from public;
