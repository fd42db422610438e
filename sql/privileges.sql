-- Hosted services grant to roles of theirs by default privileges, which a revoke from PUBLIC leaves in place.
do $$
declare
    c_relations constant text[] := array[
        'outbox_blocked', 'outbox_dead', 'outbox_dead_letters', 'outbox_defaults', 'outbox_event_status',
        'outbox_events', 'outbox_events_id_seq', 'outbox_fronts', 'outbox_handovers',
        'outbox_handovers_handover_seq', 'outbox_heads', 'outbox_keys', 'outbox_lanes', 'outbox_lanes_lane_seq',
        'outbox_lease_seq', 'outbox_leases', 'outbox_policies', 'outbox_prune_seq', 'outbox_ready',
        'outbox_scheduled', 'outbox_stats', 'outbox_topics', 'outbox_turn_seq', 'outbox_turns', 'outbox_walks'
    ];
    c_functions constant text[] := array[
        'outbox_ack', 'outbox_backoff', 'outbox_bury_spent', 'outbox_cancel', 'outbox_channel', 'outbox_check_event',
        'outbox_check_ids', 'outbox_check_integer', 'outbox_check_interval', 'outbox_check_lease',
        'outbox_check_sequence', 'outbox_check_text', 'outbox_check_topics', 'outbox_claim', 'outbox_configure',
        'outbox_end_attempts', 'outbox_enqueue', 'outbox_enqueue_many', 'outbox_extend', 'outbox_fail',
        'outbox_finish', 'outbox_give_way', 'outbox_hand_over', 'outbox_lane', 'outbox_lock_keys', 'outbox_made',
        'outbox_move_heads', 'outbox_next_due', 'outbox_pause', 'outbox_prune', 'outbox_reap', 'outbox_reclaim',
        'outbox_redrive', 'outbox_release', 'outbox_replace', 'outbox_requeue', 'outbox_reseat', 'outbox_resume',
        'outbox_route', 'outbox_seat', 'outbox_settle_dead', 'outbox_stamp', 'outbox_unblock', 'outbox_version'
    ];
    v_grant record;
begin
    for v_grant in
        select distinct o.kind, o.name, case when a.grantee = 0 then 'public' else a.grantee::regrole::text end as grantee
          from (
              select case r.relkind when 'S' then 'sequence' else 'table' end as kind, r.oid::regclass::text as name,
                     r.relacl as acl, r.relowner as owner
                from pg_class as r
               where r.relnamespace = quote_ident(current_schema())::regnamespace
                 and r.relname = any (c_relations)
              union all
              select 'function', f.oid::regprocedure::text, f.proacl, f.proowner
                from pg_proc as f
               where f.pronamespace = quote_ident(current_schema())::regnamespace
                 and f.proname = any (c_functions)
          ) as o
         cross join lateral aclexplode(o.acl) as a
         where a.grantee <> o.owner
    loop
        execute format('revoke all on %s %s from %s cascade', v_grant.kind, v_grant.name, v_grant.grantee);
    end loop;
end;
$$;
