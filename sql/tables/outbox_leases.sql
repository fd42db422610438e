-- The key is the fence: an answer for a lease that was lost finds no row.
create table if not exists outbox_leases (
    lease bigint not null,
    id bigint not null,
    locked_at timestamptz not null,
    expires_at timestamptz not null,
    lane integer not null,
    attempts smallint not null,
    lost_leases smallint not null,
    keyed boolean not null,
    locked_by text not null,
    last_error text,
    constraint outbox_leases_pkey primary key (lease, id)
) with (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 20000);

create index if not exists outbox_leases_expires_at_idx on outbox_leases (expires_at);

comment on table outbox_leases is 'Internal. Events in flight: which claim holds them, and until when.';
comment on column outbox_leases.lease is 'Number of the claim.';
comment on column outbox_leases.id is 'The event.';
comment on column outbox_leases.locked_at is 'When it was claimed.';
comment on column outbox_leases.expires_at is 'From when it may be taken back; outbox_extend moves it.';
comment on column outbox_leases.lane is 'The lane it was claimed from.';
comment on column outbox_leases.attempts is 'Attempts, this one included.';
comment on column outbox_leases.lost_leases is 'How many earlier attempts ended with a lost lease.';
comment on column outbox_leases.keyed is 'Whether the event has an ordering key, whose head it then is.';
comment on column outbox_leases.locked_by is 'The worker, as it called itself; for people to read, never a fence.';
comment on column outbox_leases.last_error is 'What the last failed attempt said.';
comment on index outbox_leases_expires_at_idx is 'Which leases have expired.';

revoke all on table outbox_leases from public;
