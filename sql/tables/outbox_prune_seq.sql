create sequence if not exists outbox_prune_seq as bigint minvalue 0 start 0;

comment on sequence outbox_prune_seq is
    'Internal. How far the pruning of done events has walked through outbox_events, by id. A hint that needs no lock: a wrong value costs one more round.';

revoke all on sequence outbox_prune_seq from public;
