create table if not exists outbox_handovers (
    handover bigint generated always as identity,
    topic text not null,
    ordering_key text not null,
    turn bigint not null,
    noted_at timestamptz not null default clock_timestamp(),
    constraint outbox_handovers_pkey primary key (handover)
);

comment on table outbox_handovers is
    'Internal. Ordering keys whose head ended while somebody else held the key''s row: rather than wait, the turn is left here for the next claim or reap to pass on.';
comment on column outbox_handovers.handover is 'Number of the handover.';
comment on column outbox_handovers.topic is 'The topic.';
comment on column outbox_handovers.ordering_key is 'The key.';
comment on column outbox_handovers.turn is 'The turn that ended: while the key is still at this turn, its next event may be let in.';
comment on column outbox_handovers.noted_at is 'When it was left.';

revoke all on table outbox_handovers from public;
revoke all on sequence outbox_handovers_handover_seq from public;
