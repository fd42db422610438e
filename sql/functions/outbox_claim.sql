create or replace function outbox_claim(
    worker text,
    n integer default 1,
    topics text[] default null,
    lease_for interval default null
)
returns setof outbox_delivery
language plpgsql
volatile
security definer
rows 100
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_walk record;
    v_early tid[];
    v_ready tid[];
    v_late tid[];
    v_ids bigint[];
    v_retried boolean;
    v_spent boolean := false;
    v_lease bigint;
    v_delivered bigint;
    v_suspects_turn boolean := coalesce(nullif(current_setting('outbox.suspects_turn', true), '') = 'true', random() < 0.5);
    v_late_by interval;
    v_tidied boolean := false;
begin
    -- A check is called where it will raise: each call costs as much as a part of the claim.
    if worker is null or octet_length(worker) not between 1 and 200 then
        perform outbox_check_text('worker', worker, 200);
    end if;
    if n is null or n not between 1 and 10000 then
        perform outbox_check_integer('n', n, 1, 10000);
    end if;
    if cardinality(topics) = 0 then
        perform outbox_check_topics(topics);
    end if;
    if lease_for is not null then
        lease_for := outbox_check_interval('lease_for', lease_for, interval '0.1 seconds', interval '30 days');
    end if;

    -- Often enough that few dead entries lie before the first row, seldom enough to cost little.
    if random() < n / 1000.0 then
        perform outbox_move_heads();
    end if;
    loop
        -- Suspects are delivered alone and take turns with the others of their priority. The turn is the session's: one
        -- that is shared could give all of them to one of two workers with different topics.
        for v_walk in
            select w.suspect, w.lowest, w.step
              from (
                  select distinct s.priority
                    from outbox_policies as s
                   where s.suspect
                     and not s.paused
                     and (outbox_claim.topics is null or s.topic = any (outbox_claim.topics))
                     and (
                         exists (select from outbox_fronts as f where f.lane = s.lane offset 0)
                         or exists (
                                select from outbox_scheduled as d where d.lane = s.lane and d.available_at <= v_now offset 0
                            )
                     )
              ) as s
             cross join lateral (
                       values (false, s.priority + v_suspects_turn::integer, s.priority * 2 + 1), (true, s.priority, s.priority * 2)
                   ) as w (suspect, lowest, step)
            union all
            select false, -10, null
            order by step desc nulls last
        loop
            -- The walk: highest priority first, topics of one priority in random order, and in each lane what is ready
            -- and what is due. Rows are locked only as the limit lets them through, and what somebody else holds is
            -- skipped: no claim waits for another. Due events come before the ready ones when their time was before the
            -- first of these was enqueued, so that a backlog does not keep retries waiting.
            select array_agg(c.tid) filter (where c.stage = 1),
                   array_agg(c.tid) filter (where c.stage = 2),
                   array_agg(c.tid) filter (where c.stage = 3),
                   array_agg(c.id),
                   bool_or(c.attempts > 0)
              into v_early, v_ready, v_late, v_ids, v_retried
              from (
                  select c.*
                    from (
                        select l.lane
                          from outbox_policies as l
                         where l.suspect = v_walk.suspect
                           and l.priority >= v_walk.lowest
                           and not l.paused
                           and (outbox_claim.topics is null or l.topic = any (outbox_claim.topics))
                         order by l.priority desc, random()
                    ) as o
                   cross join lateral (
                             select w.lane, w.head_xid, w.head_id, w.stragglers, w.straggler_ids
                               from outbox_walks as w
                              where w.lane = o.lane
                              limit 1
                         ) as l
                   cross join lateral (
                             select case
                                        when exists (
                                            select
                                              from outbox_scheduled as s
                                             where s.lane = l.lane
                                               and s.available_at <= v_now
                                            offset 0
                                        ) then least(v_now, (
                                            select e.created_at
                                              from outbox_fronts as f
                                              join outbox_events as e on e.id = f.id
                                             where f.lane = l.lane
                                        ))
                                    end as early_by
                         ) as f
                   cross join lateral (
                             select *
                               from (
                                   select 1 as stage, s.ctid as tid, s.id, s.attempts
                                     from outbox_scheduled as s
                                    where s.lane = l.lane
                                      and s.available_at <= f.early_by
                                    order by s.available_at, s.id
                                    limit outbox_claim.n
                                      for update skip locked
                               ) as early
                             union all
                             select *
                               from (
                                   select 2, r.ctid, r.id, r.attempts
                                     from unnest(l.stragglers, l.straggler_ids) as s (xid, id)
                                    cross join lateral (
                                              select r.ctid, r.id, r.attempts
                                                from outbox_ready as r
                                               where r.lane = l.lane
                                                 and r.xid = s.xid
                                                 and r.id >= s.id
                                               order by r.id
                                               limit outbox_claim.n
                                                 for update skip locked
                                          ) as r
                                    where pg_visible_in_snapshot(s.xid, pg_current_snapshot())
                               ) as straggling
                             union all
                             select *
                               from (
                                   select 2, r.ctid, r.id, r.attempts
                                     from outbox_ready as r
                                    where r.lane = l.lane
                                      and (r.xid, r.id) >= (l.head_xid, l.head_id)
                                    order by r.xid, r.id
                                    limit outbox_claim.n
                                      for update skip locked
                               ) as ready
                             union all
                             select *
                               from (
                                   select 3, s.ctid, s.id, s.attempts
                                     from outbox_scheduled as s
                                    where s.lane = l.lane
                                      and s.available_at > f.early_by
                                      and s.available_at <= v_now
                                    order by s.available_at, s.id
                                    limit outbox_claim.n
                                      for update skip locked
                               ) as late
                         ) as c
                   limit case when v_walk.suspect then 1 else outbox_claim.n end
              ) as c;
            exit when v_ids is not null;
        end loop;

        v_delivered := 0;
        if v_ids is not null then
            -- The limit of a topic may have been lowered since an event's last attempt. When all that was found had to
            -- be buried, more is at once: one by one, the claim would walk over the buried again and again.
            if v_retried then
                perform outbox_bury_spent(v_ids, v_spent);
                v_spent := true;
            end if;
            -- A later statement than the locks: it delivers the payload as the last replace left it. With an older
            -- snapshot it could not, and raises 40001.
            if current_setting('transaction_isolation') <> 'read committed' then
                perform from outbox_events as e where e.id = any (v_ids) for share;
            end if;
            v_lease := nextval('outbox_lease_seq'::regclass) << 20 | floor(random() * 1048576)::bigint;
            return query
            with early as (
                delete from outbox_scheduled as s
                 where s.ctid = any (v_early)
                returning 1 as stage, s.available_at, null::xid8 as xid, s.id, s.lane, s.attempts, s.lost_leases, s.keyed, s.last_error
            ), ready as (
                delete from outbox_ready as r
                 where r.ctid = any (v_ready)
                returning 2, null::timestamptz, r.xid, r.id, r.lane, r.attempts, r.lost_leases, r.keyed, r.last_error
            ), late as (
                delete from outbox_scheduled as s
                 where s.ctid = any (v_late)
                returning 3, s.available_at, null::xid8, s.id, s.lane, s.attempts, s.lost_leases, s.keyed, s.last_error
            ), claimed as materialized (
                select w.*, p.max_attempts, v_now + coalesce(outbox_claim.lease_for, p.lease_for) as expires_at
                  from (table early union all table ready union all table late) as w
                 cross join lateral (select q.* from outbox_policies as q where q.lane = w.lane limit 1) as p
            ), leased as (
                insert into outbox_leases
                       (lease, id, locked_at, expires_at, lane, attempts, lost_leases, keyed, locked_by, last_error)
                select v_lease, c.id, v_now, c.expires_at, c.lane, c.attempts + 1, c.lost_leases, c.keyed,
                       outbox_claim.worker, c.last_error
                  from claimed as c
            )
            select v_lease, e.id, e.topic, e.payload, e.headers, e.dedupe_key, e.ordering_key, e.priority,
                   c.attempts + 1, coalesce(e.max_attempts, c.max_attempts), e.created_at, c.expires_at
              from claimed as c
              join outbox_events as e on e.id = c.id
             order by e.priority desc, c.lane, c.stage, c.available_at, c.xid, c.id;
            get diagnostics v_delivered = row_count;
            if v_walk.step is not null then
                perform set_config('outbox.suspects_turn', (not v_walk.suspect)::text, false);
            end if;
        end if;

        -- Where nobody reaps, claims do a share of it. What they touch stays out of others' reach until their transaction
        -- ends, so they touch no more than they could deliver: of expired leases one, since its event is a suspect now.
        -- A claim that found something leaves it alone until it is late.
        v_late_by := case when v_delivered = 0 then interval '0' else interval '5 seconds' end;
        if not v_tidied and (
            exists (select from outbox_leases as l where l.expires_at <= v_now - v_late_by)
            or exists (select from outbox_handovers as h where h.noted_at <= v_now - v_late_by)
        ) then
            v_tidied := true;
            perform outbox_hand_over(case when v_delivered = 0 then n else 1 end, v_now - v_late_by, topics);
            perform outbox_reclaim(1, v_now - v_late_by, topics);
            continue when v_delivered = 0;
        end if;
        exit when v_delivered > 0 or v_ids is null;
    end loop;
end;
$$;

comment on function outbox_claim(text, integer, text[], interval) is
    'Gives this worker up to n (1 to 10,000) ready events under one new lease, in delivery order; waits for nobody. Counts when its transaction commits: commit it before the work. topics: null for all. lease_for: 0.1 seconds to 30 days, null for the topic''s. Raises 22004 for a null worker, 22023 for a value out of bounds.';

revoke all on function outbox_claim(text, integer, text[], interval) from public;
