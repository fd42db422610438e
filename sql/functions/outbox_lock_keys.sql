create or replace function outbox_lock_keys(
    topics text[],
    keys text[]
)
returns void
language plpgsql
volatile
set search_path from current
as $$
begin
    -- All who lock several keys in one statement go by one order, so that such statements cannot deadlock with each
    -- other. A transaction writes a row once; where the condition fails, the row is locked all the same.
    insert into outbox_keys as k (topic, ordering_key)
    select w.topic, w.key
      from unnest(topics, keys) as w (topic, key)
     where w.key is not null
     group by w.topic, w.key
     order by w.topic collate "C", w.key collate "C"
    on conflict on constraint outbox_keys_pkey do update
       set transactions = k.transactions + 1
     where k.xmin <> pg_current_xact_id()::xid;
end;
$$;

comment on function outbox_lock_keys(text[], text[]) is
    'Internal. Locks the rows of these ordering keys in outbox_keys until the transaction ends, making those that are missing; waits for others who hold one. Null keys are passed over.';

revoke all on function outbox_lock_keys(text[], text[]) from public;
