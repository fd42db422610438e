"""What a user gets from the built package, in an environment of its own."""

from __future__ import annotations

import os
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pgoutbox
import psycopg
import pytest
from conftest import run
from pgoutbox import Outbox

ROOT = Path(__file__).parents[1]
MIGRATIONS = {path.name for path in (ROOT / "migrations").glob("*.sql")}
NAMES = sorted(name[:-4] for name in MIGRATIONS if not name.endswith(".rollback.sql"))


@dataclass
class Package:
    wheel: Path
    sdist: Path
    bin: Path  # of an environment in which the wheel is installed


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    folder = tmp_path_factory.mktemp("package")
    # The wheel is made from the sdist.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    [wheel] = folder.glob("*.whl")
    [sdist] = folder.glob("*.tar.gz")
    venv.create(folder / "venv", with_pip=True)
    bin = folder / "venv" / "bin"
    run(bin / "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    return Package(wheel, sdist, bin)


def test_the_wheel_and_the_sdist_hold_the_migrations(package: Package) -> None:
    with zipfile.ZipFile(package.wheel) as wheel:
        names = wheel.namelist()
        prefix = "pgoutbox/migrations/"
        assert {n.removeprefix(prefix) for n in names if n.startswith(prefix)} == MIGRATIONS
        for name in MIGRATIONS:
            assert wheel.read(prefix + name) == (ROOT / "migrations" / name).read_bytes()
        assert "pgoutbox/py.typed" in names
        assert not [name for name in names if not name.startswith("pgoutbox")]
    with tarfile.open(package.sdist) as sdist:
        names = sdist.getnames()
    base = f"pgoutbox-{pgoutbox.__version__}"
    assert {f"{base}/client/pgoutbox/migrations/{name}" for name in MIGRATIONS} <= set(names)
    assert f"{base}/sql/install.sql" in names


def test_the_version_is_said_once(package: Package) -> None:
    version = pgoutbox.__version__
    assert f"-{version}-" in package.wheel.name
    said = f"pgoutbox {version}\n"
    assert run(package.bin / "pgoutbox", "--version") == said
    assert run(package.bin / "python", "-m", "pgoutbox", "--version") == said


def test_the_command_installs_the_queue(package: Package, empty_dsn: str) -> None:
    program = "from yoyo import read_migrations as r; print(len(r('package:pgoutbox:migrations')))"
    assert run(package.bin / "python", "-c", program) == f"{len(NAMES)}\n"
    said = run(package.bin / "pgoutbox", "migrate", DATABASE_URL=empty_dsn)
    assert said.endswith(f"applied {', '.join(NAMES)}\n")
    with psycopg.connect(empty_dsn) as conn:
        assert Outbox(conn).version() == pgoutbox.__version__


def test_yoyos_own_command_reads_the_package(package: Package, empty_dsn: str) -> None:
    url = empty_dsn.replace("postgresql://", "postgresql+psycopg://", 1)
    source = "package:pgoutbox:migrations"
    options = ("--batch", "--no-config-file", "--database", url, source)
    run(package.bin / "yoyo", "apply", *options)
    with psycopg.connect(empty_dsn) as conn:
        assert Outbox(conn).version() == pgoutbox.__version__
        conn.commit()
        run(package.bin / "yoyo", "rollback", "--all", *options)
        assert conn.execute("select to_regclass('outbox_events')").fetchone() == (None,)


def test_the_worker_runs_from_the_package(package: Package, dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        Outbox(conn).enqueue("t", "hello")
    program = (
        "import sys\n"
        "from pgoutbox.worker import Worker\n"
        "def handle(delivery):\n"
        "    print(delivery.payload)\n"
        "    worker.stop()\n"
        "worker = Worker(sys.argv[1], handle)\n"
        "worker.run()\n"
    )
    assert run(package.bin / "python", "-c", program, dsn) == "hello\n"


@pytest.mark.once
def test_the_editable_package_has_the_migrations_too() -> None:
    assert os.readlink(ROOT / "client" / "pgoutbox" / "migrations") == "../../migrations"
