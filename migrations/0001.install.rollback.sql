select set_config('search_path', format('%I, pg_temp', current_schema()), true);


drop view if exists outbox_dead_letters;

drop view if exists outbox_stats;

drop view if exists outbox_event_status;

drop function if exists outbox_resume(text);

drop function if exists outbox_pause(text);

drop function if exists outbox_configure(text, integer, interval, interval, interval, interval, boolean, text);

drop function if exists outbox_cancel(bigint[]);

drop function if exists outbox_redrive(bigint[], text, integer);

drop function if exists outbox_reap(integer);

drop function if exists outbox_prune(integer);

drop function if exists outbox_next_due(text[]);

drop function if exists outbox_release(bigint, bigint[]);

drop function if exists outbox_extend(bigint, bigint[], interval);

drop function if exists outbox_fail(bigint, bigint[], text, interval, boolean);

drop function if exists outbox_ack(bigint, bigint[]);

drop function if exists outbox_ack(bigint);

drop function if exists outbox_finish(bigint[], bigint[]);

drop function if exists outbox_claim(text, integer, text[], interval);

drop function if exists outbox_move_heads();

drop function if exists outbox_reclaim(integer, timestamptz, text[]);

drop function if exists outbox_end_attempts(bigint[], bigint[], text, interval, boolean, boolean);

drop function if exists outbox_bury_spent(bigint[], boolean);

drop function if exists outbox_settle_dead(bigint[]);

drop function if exists outbox_backoff(integer, interval, interval);

drop function if exists outbox_enqueue_many(jsonb);

drop function if exists outbox_enqueue(text, jsonb, text, text, jsonb, integer, timestamptz, integer, text);

drop function if exists outbox_requeue(bigint, timestamptz);

drop function if exists outbox_replace(bigint, jsonb, jsonb, timestamptz);

drop trigger if exists outbox_events_route on outbox_events;

drop function if exists outbox_route();

drop function if exists outbox_channel();

drop function if exists outbox_version();

drop function if exists outbox_hand_over(integer, timestamptz, text[]);

drop function if exists outbox_give_way(bigint[]);

drop function if exists outbox_unblock(bigint[]);

drop function if exists outbox_reseat(text[], text[]);

drop function if exists outbox_seat(text[], text[]);

drop function if exists outbox_lock_keys(text[], text[]);

drop function if exists outbox_lane(text, integer, boolean);

drop function if exists outbox_check_sequence();

drop function if exists outbox_check_event(text, jsonb, text, text, integer, timestamptz, integer, text, text);

drop function if exists outbox_check_topics(text[]);

drop function if exists outbox_check_lease(bigint);

drop function if exists outbox_check_ids(bigint[]);

drop function if exists outbox_check_interval(text, interval, interval, interval);

drop function if exists outbox_check_integer(text, integer, integer, integer);

drop function if exists outbox_check_text(text, text, integer);

drop view if exists outbox_fronts;

drop view if exists outbox_walks;

drop view if exists outbox_policies;

drop view if exists outbox_defaults;

drop sequence if exists outbox_prune_seq;

drop table if exists outbox_handovers;

drop table if exists outbox_blocked;

drop table if exists outbox_turns;

drop table if exists outbox_keys;

drop sequence if exists outbox_turn_seq;

drop table if exists outbox_dead;

drop table if exists outbox_leases;

drop sequence if exists outbox_lease_seq;

drop table if exists outbox_scheduled;

drop table if exists outbox_heads;

drop function if exists outbox_made(integer);

drop table if exists outbox_ready;

drop table if exists outbox_events;

drop table if exists outbox_lanes;

drop table if exists outbox_topics;

drop function if exists outbox_stamp(bigint);


drop type if exists outbox_policy;

drop type if exists outbox_delivery;
