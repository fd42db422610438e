create or replace view outbox_stats as
select
    k.topic,
    coalesce(r.ready, 0) + coalesce(s.due, 0) as ready,
    coalesce(s.scheduled, 0) as scheduled,
    coalesce(s.retry, 0) as retry,
    coalesce(b.blocked, 0) as blocked,
    coalesce(h.processing, 0) as processing,
    coalesce(h.expired, 0) as expired,
    coalesce(d.dead, 0) as dead,
    case when least(r.oldest, s.oldest) is not null
        then greatest(clock_timestamp() - least(r.oldest, s.oldest), interval '0')
    end as oldest_ready_age,
    coalesce(t.paused, false) as paused
from (
    select l.topic from outbox_lanes as l
    union
    select t.topic from outbox_topics as t
) as k
left join outbox_topics as t on t.topic = k.topic
left join (
    -- The first of a lane stands for its oldest.
    select l.topic, sum(r.ready)::bigint as ready, min(f.since) as oldest
    from (select q.lane, count(*) as ready from outbox_ready as q group by q.lane) as r
    join outbox_lanes as l on l.lane = r.lane
    cross join lateral (
        select greatest(e.created_at, e.available_at) as since
        from outbox_ready as q
        join outbox_events as e on e.id = q.id
        where q.lane = r.lane
        order by q.xid, q.id
        limit 1
    ) as f
    group by l.topic
) as r on r.topic = k.topic
left join (
    select
        l.topic,
        count(*) filter (where q.available_at <= clock_timestamp()) as due,
        count(*) filter (where q.available_at > clock_timestamp() and q.attempts = 0) as scheduled,
        count(*) filter (where q.available_at > clock_timestamp() and q.attempts > 0) as retry,
        min(q.available_at) filter (where q.available_at <= clock_timestamp()) as oldest
    from outbox_scheduled as q
    join outbox_lanes as l on l.lane = q.lane
    group by l.topic
) as s on s.topic = k.topic
left join (
    select q.topic, count(*) as blocked from outbox_blocked as q group by q.topic
) as b on b.topic = k.topic
left join (
    select
        l.topic,
        count(*) filter (where q.expires_at > clock_timestamp()) as processing,
        count(*) filter (where q.expires_at <= clock_timestamp()) as expired
    from outbox_leases as q
    join outbox_lanes as l on l.lane = q.lane
    group by l.topic
) as h on h.topic = k.topic
left join (
    select l.topic, count(*) as dead
    from outbox_dead as q
    join outbox_lanes as l on l.lane = q.lane
    group by l.topic
) as d on d.topic = k.topic;

comment on view outbox_stats is
    'Exact counts per topic; each event that waits, is in flight or dead is counted once. The cost is linear in what waits.';
comment on column outbox_stats.topic is 'The topic.';
comment on column outbox_stats.ready is 'Can be claimed now, retries that are due included.';
comment on column outbox_stats.scheduled is 'Wait for the time of their first attempt.';
comment on column outbox_stats.retry is 'Wait after a failed or lost attempt.';
comment on column outbox_stats.blocked is 'Wait behind an earlier event with the same ordering key.';
comment on column outbox_stats.processing is 'In flight under a lease that has not expired.';
comment on column outbox_stats.expired is 'In flight under a lease that has expired and was not taken back yet.';
comment on column outbox_stats.dead is 'Dead letters.';
comment on column outbox_stats.oldest_ready_age is 'How long the first ready event has been waiting; null when none is ready.';
comment on column outbox_stats.paused is 'Whether claims pass the topic over.';

revoke all on table outbox_stats from public;
