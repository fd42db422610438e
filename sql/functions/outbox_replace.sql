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
    v_now timestamptz := clock_timestamp();
    v_due_at timestamptz := case when outbox_replace.available_at > v_now then outbox_replace.available_at end;
    v_found boolean;
begin
    perform from outbox_events as e where e.id = outbox_replace.id for update;
    if not found then
        return null;
    end if;

    -- A ready row stays as it is and keeps its place; it is locked, so that no claim delivers the old payload before
    -- this commits. A row that a claim has locked counts as in flight.
    if v_due_at is null then
        perform from outbox_ready as r where r.id = outbox_replace.id for update skip locked;
        v_found := found;
    else
        with waiting as (
            delete from outbox_ready as r
             where r.ctid = any (array(
                       select c.ctid from outbox_ready as c where c.id = outbox_replace.id for update skip locked
                   ))
            returning r.*
        )
        insert into outbox_scheduled (available_at, lane, id, attempts, lost_leases, keyed, last_error)
        select v_due_at, w.lane, w.id, w.attempts, w.lost_leases, w.keyed, w.last_error from waiting as w;
        v_found := found;
    end if;

    if not v_found then
        with waiting as (
            delete from outbox_scheduled as s
             where s.ctid = any (array(
                       select c.ctid from outbox_scheduled as c where c.id = outbox_replace.id for update skip locked
                   ))
            returning s.*
        ), scheduled as (
            insert into outbox_scheduled (available_at, lane, id, attempts, lost_leases, keyed, last_error)
            select v_due_at, w.lane, w.id, w.attempts, w.lost_leases, w.keyed, w.last_error
              from waiting as w
             where v_due_at is not null
        ), ready as (
            insert into outbox_ready (lane, id, attempts, lost_leases, keyed, last_error)
            select w.lane, w.id, w.attempts, w.lost_leases, w.keyed, w.last_error
              from waiting as w
             where v_due_at is null
        )
        select exists (select from waiting) into v_found;
    end if;

    if not v_found then
        with waiting as (
            select b.ctid
              from outbox_events as e
              join outbox_blocked as b on b.topic = e.topic and b.ordering_key = e.ordering_key and b.id = e.id
             where e.id = outbox_replace.id
               for update of b skip locked
        )
        update outbox_blocked as b
           set available_at = v_due_at
          from waiting as w
         where b.ctid = w.ctid;
        v_found := found;
    end if;

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
