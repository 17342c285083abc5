"""What togi keeps on this machine, as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from togi.core.quantities import plural, size
from togi.doctor.storage import StoredEntry
from togi.render.terminal import clean, listing, stack


def storage_text(entries: Sequence[StoredEntry], chosen: Sequence[StoredEntry], limit_bytes: int) -> RenderableType:
    """A line for each kind and place; ``chosen`` are marked: what the command removes, or would remove."""
    if not entries:
        return Text("togi keeps nothing here.")
    going = {entry.path for entry in chosen}
    grid = listing(3)
    for (kind, what), group in groupby(entries, key=lambda entry: (entry.kind, entry.what)):
        members = list(group)
        gone = sum(entry.path in going for entry in members)
        mark = f"> {kind.value}" if gone else f"  {kind.value}"
        grid.add_row(Text(mark, "bold" if gone else ""), Text(size(_bytes(members))), _line(what, members, gone))
    return stack(grid, Text(f"All of it: {size(_bytes(entries))}. Caches may hold {size(limit_bytes)}.", "dim"))


def _line(what: str, members: Sequence[StoredEntry], gone: int) -> Text:
    line = Text(f"{what}, {plural(len(members), 'item')}")
    if 0 < gone < len(members):
        line.append(f", {gone} of them may go")
    line.append(f"\n{clean(_folder(members))}", "dim")
    for reason in dict.fromkeys(entry.stays for entry in members if entry.stays):
        line.append(f"\nstays: {clean(reason)}", "dim")
    return line


def _folder(members: Sequence[StoredEntry]) -> str:
    return members[0].path if len(members) == 1 else str(Path(members[0].path).parent)


def _bytes(entries: Sequence[StoredEntry]) -> int:
    return sum(entry.size_bytes for entry in entries)
