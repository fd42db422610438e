-- The table of contents: psql -f sql/install.sql loads the kit into the first schema of the search_path.
-- People use the migrations instead; the parity test proves that both roads lead to the same schema.
\set ON_ERROR_STOP on
begin;
select set_config('search_path', format('%I, pg_temp', current_schema()), true);

-- A queue's tables are often empty when they are analyzed and full an hour later. So that no plan of that hour turns
-- quadratic or scans what is full now, each entry point plans generically and without sequential scans, and a lookup by
-- key for each of many rows stands in a lateral subquery with a limit or a lock, or in an exists with offset 0: neither
-- is flattened into a join.

-- What an event is, and where it waits
\ir types/outbox_delivery.sql
\ir types/outbox_policy.sql
\ir functions/outbox_stamp.sql
\ir functions/outbox_made.sql
\ir tables/outbox_topics.sql
\ir tables/outbox_lanes.sql
\ir tables/outbox_events.sql
\ir tables/outbox_ready.sql
\ir tables/outbox_heads.sql
\ir tables/outbox_scheduled.sql
\ir tables/outbox_lease_seq.sql
\ir tables/outbox_leases.sql
\ir tables/outbox_dead.sql
\ir tables/outbox_turn_seq.sql
\ir tables/outbox_keys.sql
\ir tables/outbox_turns.sql
\ir tables/outbox_blocked.sql
\ir tables/outbox_handovers.sql
\ir tables/outbox_prune_seq.sql
\ir views/outbox_defaults.sql
\ir views/outbox_policies.sql
\ir views/outbox_walks.sql
\ir views/outbox_fronts.sql

-- Arguments that are not as they should be
\ir functions/outbox_check_text.sql
\ir functions/outbox_check_integer.sql
\ir functions/outbox_check_interval.sql
\ir functions/outbox_check_ids.sql
\ir functions/outbox_check_lease.sql
\ir functions/outbox_check_topics.sql
\ir functions/outbox_check_event.sql
\ir functions/outbox_check_sequence.sql

-- Lanes and ordering keys
\ir functions/outbox_lane.sql
\ir functions/outbox_lock_keys.sql
\ir functions/outbox_seat.sql
\ir functions/outbox_reseat.sql
\ir functions/outbox_unblock.sql
\ir functions/outbox_give_way.sql
\ir functions/outbox_hand_over.sql

-- Enqueue
\ir functions/outbox_version.sql
\ir functions/outbox_channel.sql
\ir functions/outbox_route.sql
\ir functions/outbox_replace.sql
\ir functions/outbox_requeue.sql
\ir functions/outbox_enqueue.sql
\ir functions/outbox_enqueue_many.sql

-- Claim, and the ways an attempt ends
\ir functions/outbox_backoff.sql
\ir functions/outbox_settle_dead.sql
\ir functions/outbox_bury_spent.sql
\ir functions/outbox_end_attempts.sql
\ir functions/outbox_reclaim.sql
\ir functions/outbox_move_heads.sql
\ir functions/outbox_claim.sql
\ir functions/outbox_finish.sql
\ir functions/outbox_ack.sql
\ir functions/outbox_ack_ids.sql
\ir functions/outbox_fail.sql
\ir functions/outbox_extend.sql
\ir functions/outbox_release.sql
\ir functions/outbox_next_due.sql

-- Housekeeping and operation
\ir functions/outbox_prune.sql
\ir functions/outbox_reap.sql
\ir functions/outbox_redrive.sql
\ir functions/outbox_cancel.sql
\ir functions/outbox_configure.sql
\ir functions/outbox_pause.sql
\ir functions/outbox_resume.sql
\ir views/outbox_event_status.sql
\ir views/outbox_stats.sql
\ir views/outbox_dead_letters.sql

-- Last: nothing stays granted that nobody asked for
\ir privileges.sql
commit;
