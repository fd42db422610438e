create or replace function outbox_finish(
    ids bigint[],
    keyed bigint[]
)
returns void
language plpgsql
volatile
set search_path from current
as $$
begin
    if keyed is not null then
        perform outbox_unblock(keyed);
    end if;
    -- A log row that a producer holds (a requeue or replace that has not committed) is left to the reaper.
    if exists (select from outbox_topics as t where t.retention = interval '0') then
        delete from outbox_events as e
         where e.ctid = any (array(
                   select c.ctid
                     from outbox_events as c
                     join outbox_topics as t on t.topic = c.topic and t.retention = interval '0'
                    where c.id = any (outbox_finish.ids)
                      for update of c skip locked
               ));
    end if;
end;
$$;

comment on function outbox_finish(bigint[], bigint[]) is
    'Internal. These events are done: lets the successors of the keyed ones in and removes those whose topic keeps nothing.';

revoke all on function outbox_finish(bigint[], bigint[]) from public;
