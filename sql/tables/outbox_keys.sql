-- A row's lock is the turnstile of its key: enqueue takes it before it draws the id and keeps it until it commits, so
-- that id order is commit order. Whose turn it is stands in outbox_turns, which a producer does not hold.
create table if not exists outbox_keys (
    topic text not null,
    ordering_key text not null,
    transactions bigint not null default 1,
    constraint outbox_keys_pkey primary key (topic, ordering_key)
);

comment on table outbox_keys is
    'Internal. Ordering keys in use: a row is there while the key has an event that waits, is in flight or stands dead.';
comment on column outbox_keys.topic is 'The topic.';
comment on column outbox_keys.ordering_key is 'The key.';
comment on column outbox_keys.transactions is 'How many have locked the row. Each writes it, so that an ack with an older snapshot raises 40001 instead of overlooking what was enqueued.';

revoke all on table outbox_keys from public;
