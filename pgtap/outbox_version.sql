begin;
select plan(1);

select matches(
    outbox_version(), '^\d+\.\d+\.\d+([a-z.+-][0-9a-z.+-]*)?$',
    'the installed version is a version number'
);

select * from finish();
rollback;
