-- Rows are inserted and deleted, never updated: claims delete what they locked by its ctid.
create table if not exists outbox_scheduled (
    available_at timestamptz not null,
    id bigint not null,
    lane integer not null,
    attempts smallint not null default 0,
    lost_leases smallint not null default 0,
    keyed boolean not null default false,
    last_error text,
    constraint outbox_scheduled_pkey primary key (lane, available_at, id),
    constraint outbox_scheduled_id_key unique (id),
    constraint outbox_scheduled_available_at_check check (isfinite(available_at))
) with (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 20000);

comment on table outbox_scheduled is
    'Internal. Events that wait for their time: a first attempt in the future, or a retry.';
comment on column outbox_scheduled.available_at is 'When the event is due.';
comment on column outbox_scheduled.id is 'The event.';
comment on column outbox_scheduled.lane is 'The lane it will be claimed from.';
comment on column outbox_scheduled.attempts is 'Attempts so far.';
comment on column outbox_scheduled.lost_leases is 'How many of the attempts ended with a lost lease.';
comment on column outbox_scheduled.keyed is 'Whether the event has an ordering key, whose head it then is.';
comment on column outbox_scheduled.last_error is 'What the last failed attempt said.';

revoke all on table outbox_scheduled from public;
