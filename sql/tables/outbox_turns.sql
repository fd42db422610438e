create table if not exists outbox_turns (
    topic text not null,
    ordering_key text not null,
    head bigint,
    turn bigint not null,
    constraint outbox_turns_pkey primary key (topic, ordering_key)
);

comment on table outbox_turns is
    'Internal. Whose turn it is in each ordering key. Made and removed by who holds the key''s row in outbox_keys; changed by who holds this one.';
comment on column outbox_turns.topic is 'The topic.';
comment on column outbox_turns.ordering_key is 'The key.';
comment on column outbox_turns.head is 'The one event of the key that is in outbox_ready, outbox_scheduled or outbox_leases, or stands in outbox_dead. Null, or an event that has ended, where a handover waits.';
comment on column outbox_turns.turn is 'Number of the turn, new with each head: the same event can be head twice.';

revoke all on table outbox_turns from public;
