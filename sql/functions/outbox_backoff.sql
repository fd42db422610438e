create or replace function outbox_backoff(
    attempt integer,
    base interval,
    cap interval
)
returns interval
language sql
volatile
set search_path from current
as $$
    -- The exponent is bounded so that the power stays a finite number.
    select make_interval(secs => (0.5 + random() / 2) * least(
        extract(epoch from cap),
        extract(epoch from base) * power(2, least(attempt, 100) - 1)
    )::double precision)
$$;

comment on function outbox_backoff(integer, interval, interval) is
    'Internal. How long to wait after this attempt: least(cap, base * 2^(attempt - 1)) times a random 0.5 to 1.0.';

revoke all on function outbox_backoff(integer, interval, interval) from public;
