"""Runs each file of pgtap/ in a database of its own, with pgTAP in the schema tap."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from conftest import ROOT, Databases, run
from pgoutbox._postgres import Server

FILES = sorted((ROOT / "pgtap").glob("*.sql"))
assert FILES, "pgtap/ is empty"

WAYS_TO_PGTAP = """\
pgTAP is not to be had. One of these brings it:
  install Debian's package postgresql-NN-pgtap, also for a server that is not Debian's
  make test-docker, with a Docker engine: the image has it
  OUTBOX_TEST_DSN=postgresql://… of a server that offers the extension pgtap"""


@pytest.fixture(scope="module")
def pgtap_template(
    server: Server, databases: Databases, template: str
) -> Iterator[tuple[str, str]]:
    """The database that each file gets a copy of, and the settings of its sessions."""
    settings = "-csearch_path=public,tap"
    with databases.database(template) as dsn:
        with psycopg.connect(dsn) as conn:
            conn.execute("create schema tap")
            offered = {name for (name,) in conn.execute("select name from pg_available_extensions")}
            if "pgtap" in offered:
                conn.execute("create extension pgtap schema tap")
            elif script := _debians_script():
                conn.execute("set local search_path = tap, public")
                conn.execute(script.read_bytes())
            else:
                pytest.fail(WAYS_TO_PGTAP, pytrace=False)
            if "plpgsql_check" in offered:
                conn.execute("create extension plpgsql_check schema tap")
                # It refuses to work where it is loaded after the first call of a function.
                settings += " -csession_preload_libraries=plpgsql_check"
            elif server.way in ("docker", "local"):
                pytest.fail("plpgsql_check is missing: install postgresql-NN-plpgsql-check")
        yield dsn, settings


def _debians_script() -> Path | None:
    """pgTAP as one SQL file, which loads into any server."""
    scripts = Path("/usr/share/postgresql").glob("*/extension/pgtap--*.sql")
    return max((s for s in scripts if re.fullmatch(r"pgtap--[\d.]+\.sql", s.name)), default=None)


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_pgtap(
    file: Path,
    databases: Databases,
    pgtap_template: tuple[str, str],
    program: Callable[[str], Path],
) -> None:
    prove = shutil.which("pg_prove") or shutil.which("prove")
    if prove is None:
        pytest.fail("pgTAP files run by pg_prove, or by Perl's prove: install the package perl")
    psql = program("psql")
    template, session_settings = pgtap_template
    with databases.database(template) as dsn:
        if prove.endswith("pg_prove"):
            options: list[str | Path] = ["--psql-bin", psql, "--dbname", dsn]
        else:
            settings = "--no-psqlrc --quiet --no-align --tuples-only --set ON_ERROR_STOP=1"
            options = ["--exec", f"{psql} {settings} --dbname {dsn} --file"]
        print(run(prove, "--verbose", *options, file, PGOPTIONS=session_settings))
