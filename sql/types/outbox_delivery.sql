do $$
begin
    if to_regtype('outbox_delivery') is null then
        create type outbox_delivery as (
            lease bigint,
            id bigint,
            topic text,
            payload jsonb,
            headers jsonb,
            dedupe_key text,
            ordering_key text,
            priority integer,
            attempt integer,
            max_attempts integer,
            created_at timestamptz,
            lease_expires_at timestamptz
        );
    end if;
end;
$$;

comment on type outbox_delivery is
    'One event as outbox_claim delivers it. Grows only at its end: read the columns by name.';
comment on column outbox_delivery.lease is 'The number to ack, fail, extend or release with; all rows of one claim share it.';
comment on column outbox_delivery.id is 'The event.';
comment on column outbox_delivery.topic is 'The event''s topic.';
comment on column outbox_delivery.payload is 'The event''s payload, any JSON value.';
comment on column outbox_delivery.headers is 'The event''s headers, {} unless the producer gave some.';
comment on column outbox_delivery.dedupe_key is 'The event''s dedupe key, or null.';
comment on column outbox_delivery.ordering_key is 'The event''s ordering key, or null.';
comment on column outbox_delivery.priority is '-10 to 10, higher first.';
comment on column outbox_delivery.attempt is 'Which attempt this delivery is, from 1.';
comment on column outbox_delivery.max_attempts is 'After a failure of this attempt number the event is dead.';
comment on column outbox_delivery.created_at is 'When the event was enqueued, by the database''s clock.';
comment on column outbox_delivery.lease_expires_at is 'Until when nobody else is given the event, by the database''s clock; outbox_extend moves it.';
