"""An account of memory (``togi memory``) as text for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from togi.core.quantities import plural, size
from togi.footprint.account.record import Account, Category, HeldName, Holding, Kept
from togi.render.terminal import clean

_BEFORE = (Category.PARAMETER, Category.BUFFER, Category.INPUT, Category.OPTIMIZER)


def account_text(account: Account, *, limit: int = 10) -> RenderableType:
    """The peak and its moment, its owners by category, by module and by line, what is kept, what could go earlier."""
    parts: list[RenderableType] = [*_headline(account), Text(), _categories(account)]
    made = [holding for holding in account.holdings if holding.category not in _BEFORE]
    if made:
        parts += [Text(), _owners("by module", _summed(made, lambda h: h.module or "(outside of modules)"), limit)]
        parts += [Text(), _owners("by line", _summed(made, lambda h: short_line(h.line) or f"({h.op})"), limit)]
    kept = [kept for kept in account.kept if kept.category not in _BEFORE]
    if kept:
        parts += [Text(), _kept(kept, limit)]
    parts += _names(account.held_names)
    notes = [*account.notes, *_costs(account)]
    return Group(*parts, *((Text(), *(Text(f"- {clean(note)}") for note in notes)) if notes else ()))


def short_line(line: str) -> str:
    """``resnet.py:154 in forward``: the file's name is enough beside its function."""
    path, _, rest = line.partition(":")
    return f"{Path(path).name}:{rest}" if line else ""


def _headline(account: Account) -> Iterable[Text]:
    peak = account.peak
    text = Text("Peak ", style="bold").append(size(account.peak_bytes), style="bold cyan")
    text.append(f" in {peak.op or 'an operation'}", style="bold")
    text.append(f" of {peak.module}" if peak.module else "").append(f", {peak.phase}" if peak.phase else "")
    yield text.append(f", after {peak.share_of_run:.0%} of the allocations' time", style="dim")
    if peak.line:
        yield Text(f"  {clean(peak.line)}", style="dim")
    if account.minimum_bytes:
        needed = "parameters, inputs, outputs" + (", gradients, optimizer state" if account.train else "")
        yield Text(f"  {account.factor_x:.2f} x the least possible, {size(account.minimum_bytes)} ({needed})")


def _categories(account: Account) -> Table:
    table = _table("at the peak", "bytes", "share")
    for category, bytes in account.by_category().items():
        table.add_row(category.value, size(bytes), f"{bytes / account.peak_bytes:.1%}")
    return table


def _owners(title: str, sums: Sequence[tuple[str, int, int]], limit: int) -> Table:
    table = _table(title, "bytes", "blocks")
    for name, bytes, blocks in sums[:limit]:
        table.add_row(Text(clean(name), overflow="fold"), size(bytes), f"{blocks:,}")
    if rest := sums[limit:]:
        bytes, blocks = sum(row[1] for row in rest), sum(row[2] for row in rest)
        table.add_row(f"and {len(rest)} more", size(bytes), f"{blocks:,}", style="dim")
    return table


def _summed(holdings: Iterable[Holding], name: Callable[[Holding], str]) -> list[tuple[str, int, int]]:
    sums: dict[str, tuple[int, int]] = {}
    for holding in holdings:
        bytes, blocks = sums.get(key := name(holding), (0, 0))
        sums[key] = (bytes + holding.bytes, blocks + holding.blocks)
    return sorted(((key, *values) for key, values in sums.items()), key=lambda row: -row[1])


def _kept(kept: Sequence[Kept], limit: int) -> Table:
    total = sum(one.bytes for one in kept)
    table = _table(f"kept for backward: {size(total)} in {plural(len(kept), 'tensor')}", "bytes", "kept by")
    table.columns[2].justify = "left"
    for one in kept[:limit]:
        made = " ".join(filter(None, (one.module, one.op.removeprefix("aten."), short_line(one.line))))
        table.add_row(Text(clean(made), overflow="fold"), size(one.bytes), ", ".join(one.kept_by))
    if rest := kept[limit:]:
        table.add_row(f"and {len(rest)} more", size(sum(one.bytes for one in rest)), "", style="dim")
    return table


def _names(held: Sequence[HeldName]) -> Iterable[Text]:
    by_line: dict[str, list[HeldName]] = {}
    for one in held:
        by_line.setdefault(one.line, []).append(one)
    for line, names in by_line.items():
        text = Text("\ndel ", style="bold yellow").append(", ".join(sorted({one.name for one in names})), "bold yellow")
        text.append(f" before {short_line(line)} lowers the peak by {size(names[0].saved_bytes)}")
        yield text.append(": nobody uses them after it", style="dim")


def _costs(account: Account) -> Iterable[str]:
    if account.plain_ms:
        yield f"watched in {account.watched_ms:,.0f} ms; unwatched the run took {account.plain_ms:,.0f} ms"


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column(headings[0], ratio=1)
    for heading in headings[1:]:
        table.add_column(heading, justify="right")
    return table
