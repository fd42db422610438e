create or replace function outbox_next_due(topics text[] default null)
returns timestamptz
language plpgsql
stable
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_lanes integer[];
    v_due timestamptz;
begin
    perform outbox_check_topics(topics);
    v_lanes := array(
        select p.lane
          from outbox_policies as p
         where not p.paused
           and (outbox_next_due.topics is null or p.topic = any (outbox_next_due.topics))
    );
    if exists (
        select from unnest(v_lanes) as l (lane)
         where exists (select from outbox_fronts as f where f.lane = l.lane offset 0)
    ) then
        return v_now;
    end if;
    -- A turn that waits to be passed on, to an event that can be seen.
    if exists (
        select
          from outbox_handovers as h
          join outbox_blocked as b on b.topic = h.topic and b.ordering_key = h.ordering_key
         where b.available_at is null
           and (b.lane in (select unnest(v_lanes))) is true
    ) then
        return v_now;
    end if;
    select least(
               (select min(s.available_at)
                  from unnest(v_lanes) as l (lane)
                 cross join lateral (
                           select s.available_at
                             from outbox_scheduled as s
                            where s.lane = l.lane
                            order by s.available_at
                            limit 1
                       ) as s),
               (select l.expires_at
                  from outbox_leases as l
                 where (l.lane in (select unnest(v_lanes))) is true
                 order by l.expires_at
                 limit 1)
           )
      into v_due;
    return case when v_due < v_now then v_now else v_due end;
end;
$$;

comment on function outbox_next_due(text[]) is
    'When something already there can next be claimed: now if an event is ready, else the earliest due time or lease expiry; blocked events and paused topics do not count; null when there is nothing. Subtract clock_timestamp() in SQL: the client''s clock may differ. Raises 22023 for an empty array.';

revoke all on function outbox_next_due(text[]) from public;
