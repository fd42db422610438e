create or replace function outbox_lock_keys(
    topics text[],
    keys text[]
)
returns void
language plpgsql
volatile
set search_path from current
as $$
declare
    v_wanted bigint;
    v_locked bigint;
begin
    -- All who lock several keys in one statement go by one order, so that such statements cannot deadlock. A key's row
    -- can vanish between the two statements, when an ack empties the key: then it is made anew.
    select count(*)
      into v_wanted
      from (select distinct w.topic, w.key from unnest(topics, keys) as w (topic, key)) as w;
    loop
        insert into outbox_keys (topic, ordering_key)
        select w.topic, w.key
          from unnest(topics, keys) as w (topic, key)
         group by w.topic, w.key
         order by w.topic collate "C", w.key collate "C"
        on conflict do nothing;

        select count(*)
          into v_locked
          from (
              select
                from outbox_keys as k
               where (k.topic, k.ordering_key) in (
                         select w.topic, w.key from unnest(topics, keys) as w (topic, key)
                     )
               order by k.topic collate "C", k.ordering_key collate "C"
                 for update
          ) as k;
        exit when v_locked = v_wanted;
    end loop;
end;
$$;

comment on function outbox_lock_keys(text[], text[]) is
    'Internal. Locks the rows of these ordering keys until the transaction ends, making those that are missing; waits for others who hold one.';

revoke all on function outbox_lock_keys(text[], text[]) from public;
