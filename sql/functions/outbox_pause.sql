create or replace function outbox_pause(topic text)
returns void
language plpgsql
volatile
security definer
set search_path from current
as $$
begin
    perform outbox_check_text('topic', topic, 200);
    insert into outbox_topics as t (topic, paused)
    values (outbox_pause.topic, true)
    on conflict on constraint outbox_topics_pkey do update
       set paused = true;
end;
$$;

comment on function outbox_pause(text) is
    'Stops delivery of a topic, known or not, for claims that start after the commit. Enqueue goes on; leases in flight end as usual. Raises 22004 for a null topic.';

revoke all on function outbox_pause(text) from public;
