create sequence if not exists outbox_lease_seq as bigint maxvalue 8796093022207;

comment on sequence outbox_lease_seq is
    'Internal. The upper 43 bits of a lease number; the lower 20 are random, so that a number is not repeated when a failover or a restore runs the sequence again.';

revoke all on sequence outbox_lease_seq from public;
