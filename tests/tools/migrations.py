"""Keep migrations/ in step with sql/: `draft NAME`, `freeze`.

A migration carries every sql/ file that it installs verbatim between two markers:

    -- begin sql/functions/outbox_ack.sql
    -- end sql/functions/outbox_ack.sql

and what cannot be pasted again, a changed table or type and a removed file, as statements
written by hand below a marker with the hash of the file that they lead to:

    -- by hand sql/tables/outbox_events.sql 1b2c3d4e5f60

So the migrations themselves tell what they contain: a file has changed when it differs from its
last marker. What lies in sql/ itself, privileges.sql, is a last step and part of every migration.
A migration is released, and never touched again, once migrations/SHA256SUMS lists it.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pglast
from pglast.stream import RawStream

ROOT = Path(__file__).parents[2]
MIGRATIONS = ROOT / "migrations"
CHECKSUMS = MIGRATIONS / "SHA256SUMS"

REMOVED = "removed"
MARKED = re.compile(
    r"^-- begin (?P<pasted>\S+)\n(?P<text>.*?)^-- end (?P=pasted)\n"
    r"|^-- by hand (?P<written>\S+) (?P<hash>\w+)\n",
    re.MULTILINE | re.DOTALL,
)
HEADER = """\
{depends}
select set_config('search_path', format('%I, pg_temp', current_schema()), true);
"""


def table_of_contents() -> list[str]:
    """The sql/ files in the order in which sql/install.sql loads them."""
    lines = (ROOT / "sql" / "install.sql").read_text().splitlines()
    return [f"sql/{line.split()[1]}" for line in lines if line.startswith("\\ir ")]


def migrations() -> list[Path]:
    return sorted(p for p in MIGRATIONS.glob("*.sql") if not p.name.endswith(".rollback.sql"))


def released() -> dict[str, str]:
    """The checksum of each released file in migrations/."""
    if not CHECKSUMS.exists():
        return {}
    lines = (line.split() for line in CHECKSUMS.read_text().splitlines())
    return {name: checksum for checksum, name in lines}


def checksum(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def changed_files(contained_in: Iterable[Path]) -> list[str]:
    """The sql/ files that differ from what these migrations contain, in load order."""
    hashes, _ = _contents(contained_in)
    files = table_of_contents()
    gone = [file for file in hashes if file not in files and hashes[file] != REMOVED]
    return [file for file in files if hashes.get(file) != _hash(_text(file))] + gone


def draft(name: str) -> None:
    """Write migrations/NNNN.name.sql and its rollback, or bring an unreleased one up to date."""
    existing = [m for m in migrations() if m.name.split(".", 1)[1] == f"{name}.sql"]
    if existing and existing[-1].name in released():
        raise SystemExit(f"{existing[-1].name} is released: choose another name")
    earlier = [m for m in migrations() if m not in existing[-1:]]
    target = MIGRATIONS / f"{len(earlier) + 1:04}.{name}.sql"
    if existing and target != existing[-1]:
        raise SystemExit(f"{existing[-1].name} is not the last migration")
    changed = changed_files(earlier)
    if not changed:
        raise SystemExit("sql/ holds nothing that the migrations do not")
    steps = [file for file in table_of_contents() if Path(file).parent == Path("sql")]
    changed = [file for file in changed if file not in steps] + steps

    hashes, texts = _contents(earlier)
    if existing:
        migration = target.read_text()
    else:
        depends = f"-- depends: {earlier[-1].stem}\n" if earlier else ""
        migration = HEADER.format(depends=depends).lstrip()
    end = migration.index("current_schema()), true);\n") + len("current_schema()), true);\n")
    for file in changed:
        by_hand = _by_hand(file, hashes)
        hash_now = _hash(_text(file))
        block = f"-- by hand {file} {hash_now}\n" if by_hand else _block(file, _text(file))
        present = next((m for m in MARKED.finditer(migration) if _marked(m) == file), None)
        if present:
            migration = migration[: present.start()] + block + migration[present.end() :]
            end = present.start() + len(block)
        else:
            block = "\n" + block
            migration = migration[:end] + block + migration[end:]
            end += len(block)
        if by_hand:
            print(f"by hand: {file}")
            # What is written by hand reaches to the next marker.
            following = MARKED.search(migration, end)
            end = following.start() - 1 if following else len(migration)
    for match in reversed(list(MARKED.finditer(migration))):
        if _marked(match) not in changed:
            migration = migration[: match.start()].rstrip("\n") + "\n" + migration[match.end() :]
    target.write_text(migration)
    print(f"{target.relative_to(ROOT)}: {len(changed)} files")

    rollback = target.with_suffix(".rollback.sql")
    if rollback.exists():
        print(f"{rollback.relative_to(ROOT)}: kept; remove it to have it drafted again")
        return
    undone = [HEADER.format(depends="").lstrip()]
    for file in changed[: -len(steps)][::-1] + steps:
        if _by_hand(file, hashes) and _text(file):
            undone.append(f"-- by hand {file} {hashes[file]}\n")
        else:
            # The text of an earlier migration, else nothing of it is to be left.
            undone.append(_block(file, texts[file]) if file in texts else _drops(file))
    rollback.write_text("\n".join(filter(None, undone)))
    print(f"{rollback.relative_to(ROOT)}: drafted, to be read")


def freeze() -> None:
    """List every migration as released."""
    files = sorted(MIGRATIONS.glob("*.sql"))
    CHECKSUMS.write_text("".join(f"{checksum(file)}  {file.name}\n" for file in files))


def _text(file: str) -> str:
    """The text of a sql/ file, empty where install.sql does not load it."""
    return (ROOT / file).read_text().rstrip() + "\n" if file in table_of_contents() else ""


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12] if text else REMOVED


def _block(file: str, text: str) -> str:
    return f"-- begin {file}\n{text}-- end {file}\n"


def _marked(match: re.Match[str]) -> str:
    return match["pasted"] or match["written"]


def _contents(of: Iterable[Path]) -> tuple[dict[str, str], dict[str, str]]:
    """Each file's hash as the migrations leave it, and its text as last pasted."""
    hashes, texts = {}, {}
    for migration in of:
        for match in MARKED.finditer(migration.read_text()):
            if match["pasted"]:
                texts[match["pasted"]] = match["text"]
            hashes[_marked(match)] = match["hash"] or _hash(match["text"])
    return hashes, texts


def _by_hand(file: str, hashes: dict[str, str]) -> bool:
    exists = hashes.get(file, REMOVED) != REMOVED
    return exists and (not _text(file) or Path(file).parent.name in ("tables", "types"))


def _drops(file: str) -> str:
    """The statements that undo a file's create statements, last first."""
    drops = []
    for raw in pglast.parse_sql(_text(file)):
        statement: Any = raw.stmt
        match type(statement).__name__:
            case "CreateFunctionStmt":
                name = statement.funcname[-1].sval
                taken = (p for p in statement.parameters or () if p.mode.value in "di")
                types = ", ".join(RawStream()(parameter.argType) for parameter in taken)
                drops.append(f"function if exists {name}({types})")
            case "CreateStmt":
                drops.append(f"table if exists {statement.relation.relname}")
            case "ViewStmt":
                drops.append(f"view if exists {statement.view.relname}")
            case "CreateSeqStmt":
                drops.append(f"sequence if exists {statement.sequence.relname}")
    return "".join(f"drop {drop};\n" for drop in reversed(drops))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["draft", name] if re.fullmatch(r"[a-z0-9_-]+", name):
            draft(name)
        case ["freeze"]:
            freeze()
        case _:
            raise SystemExit("usage: migrations.py draft NAME | freeze")
