create or replace function outbox_lane(
    topic text,
    priority integer,
    suspect boolean
)
returns integer
language plpgsql
volatile
set search_path from current
as $$
declare
    v_lane integer;
begin
    select min(l.lane)
      into v_lane
      from outbox_lanes as l
     where l.topic = outbox_lane.topic
       and l.priority = outbox_lane.priority
       and l.suspect = outbox_lane.suspect;
    if v_lane is null then
        insert into outbox_lanes as l (topic, priority, suspect)
        values (outbox_lane.topic, outbox_lane.priority, outbox_lane.suspect)
        returning l.lane into v_lane;
    end if;
    return v_lane;
end;
$$;

comment on function outbox_lane(text, integer, boolean) is
    'Internal. The lane of a topic and priority, for suspects or others; made if there is none.';

revoke all on function outbox_lane(text, integer, boolean) from public;
