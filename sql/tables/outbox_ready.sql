-- Rows are inserted and deleted, never updated: a row that comes back is a new row with the xid of its own transaction.
create table if not exists outbox_ready (
    xid xid8 generated always as (outbox_stamp(id)) stored,
    id bigint not null,
    lane integer not null,
    attempts smallint not null default 0,
    lost_leases smallint not null default 0,
    keyed boolean not null default false,
    last_error text,
    constraint outbox_ready_pkey primary key (lane, xid, id),
    constraint outbox_ready_id_key unique (id),
    constraint outbox_ready_id_check check (id > 0)
) with (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 20000);

comment on table outbox_ready is
    'Internal. Events that can be claimed: a lane is read in the order (xid, id).';
comment on column outbox_ready.xid is 'The transaction that made the event ready: generated, so that neither a client nor a restore chooses it.';
comment on column outbox_ready.id is 'The event.';
comment on column outbox_ready.lane is 'Its lane.';
comment on column outbox_ready.attempts is 'Attempts so far.';
comment on column outbox_ready.lost_leases is 'How many of the attempts ended with a lost lease.';
comment on column outbox_ready.keyed is 'Whether the event has an ordering key, whose head it then is.';
comment on column outbox_ready.last_error is 'What the last failed attempt said.';

revoke all on table outbox_ready from public;
