create sequence if not exists outbox_turn_seq as bigint;

comment on sequence outbox_turn_seq is
    'Internal. Numbers the turns of all ordering keys, so that a handover left for one turn never ends another.';

revoke all on sequence outbox_turn_seq from public;
