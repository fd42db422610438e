"""What a role that may write in the schema can do to the queue, and what the install leaves granted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from concurrency import (
    Connection,
    ack,
    cancel,
    claim,
    configure,
    enqueue,
    enqueue_many,
    expire,
    extend,
    fail,
    ids,
    make_due,
    reap,
    redrive,
    release,
)
from conftest import ROOT, Databases, yoyo
from pgoutbox._postgres import Server
from psycopg import sql

ZERO = timedelta(0)

# The last step of each migration.
PRIVILEGES = Path(ROOT, "sql", "privileges.sql").read_text()


@pytest.fixture
def role(server: Server) -> Iterator[sql.Identifier]:
    """A role that nobody has granted anything; it goes after the databases of its test."""
    role = sql.Identifier(f"pgoutbox_test_{uuid4().hex[:12]}")
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("create role {}").format(role))
        yield role
        admin.execute(sql.SQL("drop role {}").format(role))


@pytest.fixture
def dsn(role: sql.Identifier, databases: Databases, template: str) -> Iterator[str]:
    with databases.database(template) as dsn:
        yield dsn


@pytest.fixture
def empty_dsn(role: sql.Identifier, databases: Databases) -> Iterator[str]:
    with databases.database() as dsn:
        yield dsn


# Functions that somebody else puts into the schema ----------------------------------------------


def trap(conn: Connection, role: sql.Identifier, *statements: str) -> None:
    """The role, which may create things in the schema, makes these."""
    conn.execute(sql.SQL("grant create, usage on schema public to {}").format(role))
    conn.execute(sql.SQL("set role {}").format(role))
    for statement in statements:
        conn.execute(statement)
    conn.execute("reset role")


def use_everything(conn: Connection) -> None:
    """Every function of the queue, and most of the ways through it."""
    configure(conn, backoff_base=ZERO, retention=ZERO)
    enqueue_many(conn, [{"payload": 1, "dedupe_key": k, "ordering_key": "k"} for k in "abb"])
    enqueue_many(conn, [{"payload": 1, "available_at": "2100-01-01T00:00:00Z"}])
    for on_duplicate in "ignore", "replace", "requeue":
        enqueue(conn, dedupe_key="a", ordering_key="k", on_duplicate=on_duplicate)
    conn.execute("insert into outbox_events (topic, payload, ordering_key) values ('t', '1', 'j')")
    make_due(conn)
    reap(conn)
    for dead in False, True:
        lease = claim(conn, 9)[0].lease
        extend(conn, lease)
        release(conn, lease)
        fail(conn, claim(conn, 9)[0].lease, error="as told", dead=dead)
    dead_letters = [id for (id,) in conn.execute("select id from outbox_dead_letters").fetchall()]
    assert sorted(redrive(conn, dead_letters)) == sorted(dead_letters) != []
    claim(conn, 9)
    expire(conn)
    assert reap(conn).expired > 0
    while rows := claim(conn, 9):
        ack(conn, rows[0].lease, ids(rows[:1]))
        ack(conn, rows[0].lease)
        reap(conn)
    made = enqueue(conn, ordering_key="k").id
    assert cancel(conn, [made]) == [made]
    conn.execute("select outbox_pause('t'), outbox_resume('t'), outbox_version(), outbox_channel()")
    for relation in "outbox_event_status", "outbox_stats", "outbox_dead_letters":
        conn.execute(f"select * from {relation}")
    conn.execute("select outbox_next_due()")


@pytest.mark.parametrize(
    "function",
    [
        "nextval(text)",
        "nextval(name)",
        "nextval(varchar)",
        "setval(text, bigint)",
        "setval(text, integer)",
        "setval(varchar, bigint)",
        "currval(text)",
        "lastval(text)",
    ],
)
def test_a_sequence_function_in_the_schema_is_not_run(
    function: str, conn: Connection, role: sql.Identifier
) -> None:
    trap(
        conn,
        role,
        f"create function {function} returns bigint language plpgsql as"
        " $$ begin raise exception 'run with the rights of %', current_user; end $$",
    )
    use_everything(conn)


RAISE = (
    "language plpgsql as $$ begin raise exception 'run with the rights of %', current_user; end $$"
)


@pytest.mark.xfail(
    raises=psycopg.errors.RaiseException,
    reason="who may create in the schema is trusted: an exact match goes before a built-in function",
)
@pytest.mark.parametrize(
    "statements",
    [
        (
            f"create function add(bigint[], bigint) returns bigint[] {RAISE}",
            "create aggregate array_agg(bigint) (sfunc = add, stype = bigint[], initcond = '{}')",
        ),
        (f"create function unnest(bigint[]) returns setof bigint {RAISE}",),
        (f"create function cardinality(bigint[]) returns integer {RAISE}",),
        (f"create function quote_ident(name) returns text {RAISE}",),
        (
            f"create function less(double precision, numeric) returns boolean {RAISE}",
            "create operator < (leftarg = double precision, rightarg = numeric, function = less)",
        ),
    ],
    ids=["array_agg", "unnest", "cardinality", "quote_ident", "<"],
)
def test_a_closer_match_for_a_built_in_is_not_run(
    statements: tuple[str, ...], conn: Connection, role: sql.Identifier
) -> None:
    trap(conn, role, *statements)
    use_everything(conn)


# What is granted --------------------------------------------------------------------------------

# Of the schema's objects: kind, name as the privileges step has it, full name, owner, privileges.
OBJECTS = """
    select case r.relkind when 'S' then 'sequence' else 'table' end as kind, r.relname::text as name,
           r.oid::regclass::text as signature, r.relowner as owner, r.relacl as acl
      from pg_class as r
     where r.relnamespace = 'public'::regnamespace
       and r.relkind not in ('i', 'I', 'c')
       and r.relname !~ 'yoyo'
    union all
    select 'function', f.proname::text, f.oid::regprocedure::text, f.proowner, f.proacl
      from pg_proc as f
     where f.pronamespace = 'public'::regnamespace
"""


def strangers(conn: Connection) -> list[tuple[str, str]]:
    """Who but the owner has what, on objects whose privileges were ever changed or not."""
    return conn.execute(
        f"""
        select o.signature, a.grantee::regrole::text || ' ' || a.privilege_type
          from ({OBJECTS}) as o
         cross join lateral aclexplode(coalesce(
                   o.acl,
                   acldefault(case o.kind when 'sequence' then 's' when 'table' then 'r' else 'f' end::"char", o.owner)
               )) as a
         where a.grantee <> o.owner
        union all
        select c.attrelid::regclass::text, c.attname
          from pg_attribute as c
          join pg_class as r on r.oid = c.attrelid and r.relnamespace = 'public'::regnamespace
         where c.attacl is not null
        """
    ).fetchall()


@pytest.mark.parametrize("to_public", [False, True], ids=["to a role", "to everybody"])
@pytest.mark.parametrize("where", ["in schema public", ""], ids=["schema", "database"])
def test_default_privileges_leave_nobody_with_anything(
    where: str, to_public: bool, empty_dsn: str, role: sql.Identifier
) -> None:
    """As hosted services set them before anybody installs anything."""
    grantee = sql.SQL("public") if to_public else role
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        for kind in "tables", "sequences", "functions":
            conn.execute(
                sql.SQL(f"alter default privileges {where} grant all on {kind} to {{}}").format(
                    grantee
                )
            )
        conn.execute("create table somebody_elses ()")
        assert ("somebody_elses", "-" if to_public else role.as_string(None).strip('"')) in {
            (name, privilege.split()[0]) for name, privilege in strangers(conn)
        }
        conn.execute("drop table somebody_elses")
        yoyo("apply", empty_dsn)
        assert strangers(conn) == []
        (kit,) = conn.execute(f"select count(*) from ({OBJECTS}) as o").fetchone() or (0,)
        assert kit > 50


def test_the_privileges_step_leaves_what_is_not_of_the_kit(
    conn: Connection, role: sql.Identifier
) -> None:
    theirs = (
        "table outbox_customer_mail",
        "sequence outbox_customer_seq",
        "function outbox_mine()",
    )
    conn.execute("create table outbox_customer_mail (id bigint)")
    conn.execute("create view outbox_eventful as select 1 as one")
    conn.execute("create sequence outbox_customer_seq")
    conn.execute("create function outbox_mine() returns integer language sql as 'select 1'")
    conn.execute("revoke all on function outbox_mine() from public")
    for what in (*theirs, "table outbox_eventful"):
        conn.execute(sql.SQL(f"grant all on {what} to {{}}").format(role))
    before = strangers(conn)
    assert {name for name, _ in before} == {
        "outbox_customer_mail",
        "outbox_customer_seq",
        "outbox_eventful",
        "outbox_mine()",
    }
    for ours in "table outbox_events", "sequence outbox_lease_seq", "function outbox_version()":
        conn.execute(sql.SQL(f"grant all on {ours} to {{}} with grant option").format(role))
    assert len(strangers(conn)) > len(before)
    conn.execute(PRIVILEGES)
    assert sorted(strangers(conn)) == sorted(before)


@pytest.mark.once
def test_the_privileges_step_names_what_the_kit_has(conn: Connection) -> None:
    named = {
        array: re.findall(r"'(\w+)'", names)
        for array, names in re.findall(
            r"(\w+) constant text\[\] := array\[(.*?)\];", PRIVILEGES, re.S
        )
    }
    objects = conn.execute(f"select kind = 'function', name from ({OBJECTS}) as o").fetchall()
    assert named == {
        "c_relations": sorted({name for is_function, name in objects if not is_function}),
        "c_functions": sorted({name for is_function, name in objects if is_function}),
    }
