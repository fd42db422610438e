create or replace function outbox_replace(
    id bigint,
    payload jsonb,
    headers jsonb,
    available_at timestamptz
)
returns boolean
language plpgsql
volatile
set search_path from current
as $$
declare
    v_due_at timestamptz := case when outbox_replace.available_at > clock_timestamp() then outbox_replace.available_at end;
    v_found boolean;
begin
    perform from outbox_events as e where e.id = outbox_replace.id for update;
    if not found then
        return null;
    end if;

    -- A row that somebody holds may only be on its way from one place to the other: it is looked for again, for up to a
    -- second. A claim that stays open for longer counts as in flight.
    for v_look in 1 .. 100 loop
        -- A ready row that stays ready keeps its place; it is locked, so that no claim delivers the old payload before
        -- this commits.
        with kept as (
            select r.id
              from outbox_ready as r
             where r.id = outbox_replace.id
               and v_due_at is null
               for update skip locked
        ), from_ready as (
            delete from outbox_ready as r
             where r.ctid = any (array(
                       select c.ctid
                         from outbox_ready as c
                        where c.id = outbox_replace.id
                          and v_due_at is not null
                          for update skip locked
                   ))
            returning r.lane, r.id, r.attempts, r.lost_leases, r.keyed, r.last_error
        ), from_scheduled as (
            delete from outbox_scheduled as s
             where s.ctid = any (array(
                       select c.ctid from outbox_scheduled as c where c.id = outbox_replace.id for update skip locked
                   ))
            returning s.lane, s.id, s.attempts, s.lost_leases, s.keyed, s.last_error
        ), from_blocked as (
            delete from outbox_blocked as b
             where b.ctid = any (array(
                       select c.ctid
                         from outbox_events as e
                         join outbox_blocked as c on c.topic = e.topic and c.ordering_key = e.ordering_key and c.id = e.id
                        where e.id = outbox_replace.id
                          for update of c skip locked
                   ))
            returning b.*
        ), moved as materialized (
            table from_ready union all table from_scheduled
        ), scheduled as (
            insert into outbox_scheduled (available_at, lane, id, attempts, lost_leases, keyed, last_error)
            select v_due_at, m.lane, m.id, m.attempts, m.lost_leases, m.keyed, m.last_error
              from moved as m
             where v_due_at is not null
        ), ready as (
            insert into outbox_ready (lane, id, attempts, lost_leases, keyed, last_error)
            select m.lane, m.id, m.attempts, m.lost_leases, m.keyed, m.last_error
              from moved as m
             where v_due_at is null
        ), blocked as (
            insert into outbox_blocked (topic, ordering_key, id, lane, attempts, lost_leases, available_at, last_error)
            select b.topic, b.ordering_key, b.id, b.lane, b.attempts, b.lost_leases, v_due_at, b.last_error
              from from_blocked as b
        )
        select exists (select from kept) or exists (select from moved) or exists (select from from_blocked)
          into v_found;
        exit when v_found or current_setting('transaction_isolation') <> 'read committed';
        exit when not exists (select from outbox_ready as r where r.id = outbox_replace.id)
            and not exists (select from outbox_scheduled as s where s.id = outbox_replace.id)
            and not exists (
                    select
                      from outbox_events as e
                      join outbox_blocked as b on b.topic = e.topic and b.ordering_key = e.ordering_key and b.id = e.id
                     where e.id = outbox_replace.id
                );
        perform pg_sleep(0.01);
    end loop;

    if v_found then
        update outbox_events as e
           set payload = outbox_replace.payload,
               headers = outbox_replace.headers,
               available_at = v_due_at
         where e.id = outbox_replace.id;
    end if;
    return v_found;
end;
$$;

comment on function outbox_replace(bigint, jsonb, jsonb, timestamptz) is
    'Internal. Overwrites payload, headers and time of an event that waits; false when it does not wait, null when it is gone.';

revoke all on function outbox_replace(bigint, jsonb, jsonb, timestamptz) from public;
