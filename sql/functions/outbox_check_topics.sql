create or replace function outbox_check_topics(topics text[])
returns void
language plpgsql
immutable
set search_path from current
as $$
begin
    if cardinality(topics) = 0 then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = 'topics is an empty array',
            hint = 'Name at least one topic, or give null for all topics.';
    end if;
end;
$$;

comment on function outbox_check_topics(text[]) is
    'Internal. Raises 22023 for an empty array; null means all topics.';

revoke all on function outbox_check_topics(text[]) from public;
