create table if not exists outbox_dead (
    id bigint not null,
    lane integer not null,
    attempts smallint not null,
    lost_leases smallint not null,
    reason text not null,
    last_error text,
    dead_at timestamptz not null,
    standing_topic text,
    standing_key text,
    constraint outbox_dead_pkey primary key (id),
    constraint outbox_dead_reason_check check (reason in ('failed', 'discarded', 'lost lease'))
);

create index if not exists outbox_dead_standing_idx
    on outbox_dead (standing_topic, standing_key, id) where standing_key is not null;

comment on table outbox_dead is 'Internal. Dead letters: not tried again until outbox_redrive; outbox_cancel removes them.';
comment on column outbox_dead.id is 'The event.';
comment on column outbox_dead.lane is 'The lane it came from.';
comment on column outbox_dead.attempts is 'Attempts made.';
comment on column outbox_dead.lost_leases is 'How many of them ended with a lost lease.';
comment on column outbox_dead.reason is 'failed: the attempts are spent; discarded: the worker said so; lost lease: the attempts are spent, the last by a lost lease; where a limit was lowered later, one of them.';
comment on column outbox_dead.last_error is 'What the last failed attempt said.';
comment on column outbox_dead.dead_at is 'When it died.';
comment on column outbox_dead.standing_topic is 'With standing_key: the ordering key that stands until this event is redriven or cancelled.';
comment on column outbox_dead.standing_key is 'Null unless the topic''s on_dead was block when the event died.';
comment on index outbox_dead_standing_idx is 'Whether a dead event stands in the way of an ordering key.';

revoke all on table outbox_dead from public;
