create table if not exists outbox_handovers (
    handover bigint generated always as identity,
    topic text not null,
    ordering_key text not null,
    turn bigint not null,
    noted_at timestamptz not null default clock_timestamp(),
    constraint outbox_handovers_pkey primary key (handover)
);

comment on table outbox_handovers is
    'Internal. Turns that ended while somebody else held a row that is needed to pass them on: rather than wait, they are left here for a claim or the reaper.';
comment on column outbox_handovers.handover is 'Number of the handover.';
comment on column outbox_handovers.topic is 'The topic.';
comment on column outbox_handovers.ordering_key is 'The key.';
comment on column outbox_handovers.turn is 'The turn that ended: while the key is still at this turn, its next event may be let in.';
comment on column outbox_handovers.noted_at is 'When it was left.';

create index if not exists outbox_handovers_noted_at_idx on outbox_handovers (noted_at);

comment on index outbox_handovers_noted_at_idx is 'Whether there are handovers to be done.';

revoke all on table outbox_handovers from public;
revoke all on sequence outbox_handovers_handover_seq from public;
