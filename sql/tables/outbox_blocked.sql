create table if not exists outbox_blocked (
    topic text not null,
    ordering_key text not null,
    id bigint not null,
    lane integer not null,
    attempts smallint not null default 0,
    lost_leases smallint not null default 0,
    available_at timestamptz,
    last_error text,
    constraint outbox_blocked_pkey primary key (topic, ordering_key, id)
) with (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 20000);

comment on table outbox_blocked is 'Internal. Events behind an earlier one with the same ordering key.';
comment on column outbox_blocked.topic is 'The topic.';
comment on column outbox_blocked.ordering_key is 'The key.';
comment on column outbox_blocked.id is 'The event; the lowest is let in next.';
comment on column outbox_blocked.lane is 'The lane it will be claimed from.';
comment on column outbox_blocked.attempts is 'Attempts so far.';
comment on column outbox_blocked.lost_leases is 'How many of the attempts ended with a lost lease.';
comment on column outbox_blocked.available_at is 'Not before this time once it is the event''s turn; null: at once.';
comment on column outbox_blocked.last_error is 'What the last failed attempt said.';

revoke all on table outbox_blocked from public;
