-- A row's lock is the turnstile of its key: enqueue takes it before it draws the id, so that id order is commit order,
-- and an ack takes it (or leaves a handover) to let the next event in.
create table if not exists outbox_keys (
    topic text not null,
    ordering_key text not null,
    head bigint,
    turn bigint not null default 0,
    tail bigint not null default 0,
    constraint outbox_keys_pkey primary key (topic, ordering_key)
);

comment on table outbox_keys is
    'Internal. Ordering keys in use: a row is there while the key has an event that waits, is in flight or stands dead.';
comment on column outbox_keys.topic is 'The topic.';
comment on column outbox_keys.ordering_key is 'The key.';
comment on column outbox_keys.head is 'The one event of the key that is in outbox_ready, outbox_scheduled or outbox_leases, or stands in outbox_dead; null only between two statements of one transaction, or until a handover is done.';
comment on column outbox_keys.turn is 'Number of the turn of the head, new with each head: the same event can be head twice.';
comment on column outbox_keys.tail is 'Highest id enqueued. Each keyed enqueue writes it, so that an ack with an older snapshot raises 40001 instead of overlooking the new event.';

revoke all on table outbox_keys from public;
