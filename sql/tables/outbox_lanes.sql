-- Not unique on (topic, priority): with a unique row the first producer of a topic would make all others wait for its
-- commit, and two such producers could deadlock. Everyone uses the lowest visible lane; a surplus one,
-- whose events are in order among themselves only, drains and stays.
create table if not exists outbox_lanes (
    lane integer generated always as identity,
    topic text not null,
    priority integer not null,
    suspect boolean not null default false,
    constraint outbox_lanes_pkey primary key (lane)
);

create index if not exists outbox_lanes_topic_idx on outbox_lanes (topic, priority, suspect, lane);
create index if not exists outbox_lanes_suspect_idx on outbox_lanes (lane) where suspect;

comment on table outbox_lanes is
    'Internal. A lane holds the events of one topic and priority that are ready, in order; made on first use, never removed.';
comment on column outbox_lanes.lane is 'Number of the lane.';
comment on column outbox_lanes.topic is 'The topic of its events.';
comment on column outbox_lanes.priority is 'The priority of its events, -10 to 10.';
comment on column outbox_lanes.suspect is 'Whether its events have lost a lease: these are delivered alone.';
comment on index outbox_lanes_topic_idx is 'Finds the lowest lane of a topic and priority.';
comment on index outbox_lanes_suspect_idx is 'Lets a claim see that there are no suspects without reading all lanes.';

revoke all on table outbox_lanes from public;
revoke all on sequence outbox_lanes_lane_seq from public;
