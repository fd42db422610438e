create or replace function outbox_check_event(
    topic text,
    payload jsonb,
    dedupe_key text,
    ordering_key text,
    priority integer,
    available_at timestamptz,
    max_attempts integer,
    on_duplicate text,
    place text default ''
)
returns void
language plpgsql
immutable
set search_path from current
as $$
begin
    -- One expression for the event that is as it should be: this runs for each event.
    if octet_length(topic) between 1 and 200
        and payload is not null
        and (dedupe_key is null or octet_length(dedupe_key) between 1 and 500)
        and (ordering_key is null or octet_length(ordering_key) between 1 and 500)
        and priority between -10 and 10
        and (available_at is null or isfinite(available_at))
        and (max_attempts is null or max_attempts between 1 and 1000)
        and on_duplicate in ('ignore', 'replace', 'requeue')
    then
        return;
    end if;
    perform outbox_check_text(place || 'topic', topic, 200);
    if payload is null then
        raise exception using
            errcode = 'null_value_not_allowed',
            message = format('%spayload is null', place),
            hint = 'For a JSON null give ''null''::jsonb.';
    end if;
    if dedupe_key is not null then
        perform outbox_check_text(place || 'dedupe_key', dedupe_key, 500);
    end if;
    if ordering_key is not null then
        perform outbox_check_text(place || 'ordering_key', ordering_key, 500);
    end if;
    perform outbox_check_integer(place || 'priority', priority, -10, 10);
    if not isfinite(available_at) then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = format('%savailable_at is %s', place, available_at),
            hint = 'Give a finite time, or null for at once.';
    end if;
    if max_attempts is not null then
        perform outbox_check_integer(place || 'max_attempts', max_attempts, 1, 1000);
    end if;
    raise exception using
        errcode = 'invalid_parameter_value',
        message = format('%son_duplicate is "%s"', place, left(on_duplicate, 60)),
        hint = 'Give ignore, replace or requeue.';
end;
$$;

comment on function outbox_check_event(text, jsonb, text, text, integer, timestamptz, integer, text, text) is
    'Internal. Raises 22004 or 22023 for the first fault of an event; place stands before the argument''s name in the message.';

revoke all on function outbox_check_event(text, jsonb, text, text, integer, timestamptz, integer, text, text) from public;
