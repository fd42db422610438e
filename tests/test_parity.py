"""migrations/ leads to what sql/ says: the same bytes out of pg_dump."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from conftest import ROOT, Databases, run, yoyo
from psycopg import sql
from tools.migrations import changed_files, migrations


def test_the_migrations_contain_the_sql_files_as_they_are() -> None:
    assert changed_files(migrations()) == [], "make migration NAME=what_changes"


@pytest.mark.parametrize("schema", ["public", "Other"])
def test_yoyo_and_psql_build_the_same_database(
    schema: str,
    databases: Databases,
    dump: Callable[[str], str],
    program: Callable[[str], Path],
) -> None:
    with databases.database() as by_yoyo, databases.database() as by_psql:
        for dsn in by_yoyo, by_psql:
            with psycopg.connect(dsn) as conn:
                conn.execute(
                    sql.SQL("create schema if not exists {}").format(sql.Identifier(schema))
                )
        search_path = f'-csearch_path="{schema}"'
        yoyo("apply", f"{by_yoyo}?options={quote(search_path)}")
        run(
            *(program("psql"), "--no-psqlrc", "--quiet"),
            *("--file", ROOT / "sql" / "install.sql", "--dbname", by_psql),
            PGOPTIONS=search_path,
        )
        assert dump(by_yoyo) == dump(by_psql)
