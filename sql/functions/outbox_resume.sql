create or replace function outbox_resume(topic text)
returns void
language plpgsql
volatile
security definer
set search_path from current
as $$
begin
    perform outbox_check_text('topic', topic, 200);
    update outbox_topics as t
       set paused = false
     where t.topic = outbox_resume.topic;
end;
$$;

comment on function outbox_resume(text) is
    'Resumes delivery of a topic for claims that start after the commit. Raises 22004 for a null topic.';

revoke all on function outbox_resume(text) from public;
