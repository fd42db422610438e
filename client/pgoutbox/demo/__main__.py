"""`python -m pgoutbox.demo`: exit code 0, 1 where a promise was broken, 2 for a bad file."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import psycopg

from pgoutbox._postgres import ServerNotFound
from pgoutbox.migrate import MigrateError

try:
    from rich.console import Console
except ImportError:
    sys.exit("the demo needs: pip install 'pgoutbox[demo]'")

from . import report
from .play import BadInput, Failed, play

KEYS = {"topic", "payload", "dedupe_key", "ordering_key", "headers", "priority", "available_at"}
KEYS |= {"max_attempts"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the demo and print what it found."""
    parser = argparse.ArgumentParser(
        prog="python -m pgoutbox.demo",
        description="Play a shop on a PostgreSQL server, and count what became of each promise.",
    )
    parser.add_argument(
        "--input",
        metavar="FILE",
        help=f"send the events of a file instead, a JSON object a line: {', '.join(sorted(KEYS))}",
    )
    parser.add_argument("--seconds", type=float, default=24.0, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    console = Console(highlight=False)
    try:
        found = play(console, given.seconds, _lines(given.input) if given.input else None)
    except BadInput as error:
        print(f"{given.input}: {error}", file=sys.stderr)
        return 2
    except (ServerNotFound, MigrateError, Failed, psycopg.Error) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; everything has been removed again")
        return 130
    console.print(report.table(found))
    broken = [figure for figure in found if figure.kept is False]
    for figure in broken:
        console.print(f"BROKEN: {figure.name} {figure.found} {figure.note}", markup=False)
    return 1 if broken else 0


def _lines(path: str) -> list[tuple[int, str]]:
    """The numbers and texts of the file's lines; what jsonb makes of them is not judged here."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise BadInput(error.strerror) from error
    lines = []
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            text = line.decode()
            event = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"line {number}: {error}") from error
        if not isinstance(event, dict):
            raise BadInput(f"line {number}: is not a JSON object")
        if unknown := event.keys() - KEYS:
            raise BadInput(f"line {number}: has an unknown key {min(unknown)!r}")
        lines.append((number, text))
    if not lines:
        raise BadInput("has no events")
    return lines


def _stop(number: int, _: object) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" leaves it ignored
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    sys.exit(main())
