-- The textbook outbox, the baseline of the ratios: one table with a status column, claimed and acknowledged by UPDATE.
create schema textbook;

create table textbook.events (
    id bigint generated always as identity primary key,
    topic text not null,
    payload jsonb not null,
    dedupe_key text not null unique,
    status text not null default 'pending',
    attempts integer not null default 0,
    max_attempts integer not null default 5,
    available_at timestamptz not null default now(),
    locked_by text,
    locked_at timestamptz,
    created_at timestamptz not null default now()
);

create index events_waiting on textbook.events (available_at) where status in ('pending', 'retry');

create function textbook.claim(
    worker text,
    n integer
)
returns setof textbook.events
language plpgsql
as $$
begin
    return query
    with picked as (
        select e.id
          from textbook.events as e
         where e.status in ('pending', 'retry')
           and e.available_at <= clock_timestamp()
         order by e.available_at
         limit claim.n
           for update skip locked
    )
    update textbook.events as e
       set status = 'processing',
           attempts = e.attempts + 1,
           locked_by = claim.worker,
           locked_at = now()
      from picked as p
     where e.id = p.id
    returning e.*;
end;
$$;

create function textbook.ack(ids bigint[])
returns bigint
language plpgsql
as $$
declare
    v_acked bigint;
begin
    update textbook.events as e
       set status = 'done',
           locked_by = null,
           locked_at = null
     where e.id = any (ack.ids)
       and e.status = 'processing';
    get diagnostics v_acked = row_count;
    return v_acked;
end;
$$;
