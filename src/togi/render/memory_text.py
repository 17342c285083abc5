"""Memory as text for a terminal: an account and its changes, and a prediction (``togi memory``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from togi.core.quantities import plural, seconds, size
from togi.footprint.account.change import NO_MODULE, AccountChange, Change
from togi.footprint.account.record import BEFORE_THE_RUN, Account, Category, HeldName, Holding, KeptStorage
from togi.footprint.prediction.record import Prediction
from togi.footprint.snapshot.record import HeldMemory
from togi.render.terminal import bullets, clean, stack, table

AnyHeld = TypeVar("AnyHeld", Holding, HeldMemory)
Owner = tuple[str, int, int | None]
"""Name, bytes, and blocks, which are None where they are unknown."""


def account_text(account: Account, *, limit: int = 10) -> RenderableType:
    """The peak and its moment, its owners by category, by module and by line, what is kept, what could go earlier."""
    of_the_run = [holding for holding in account.holdings if holding.category not in BEFORE_THE_RUN]
    kept = [kept for kept in account.kept if kept.category not in BEFORE_THE_RUN]
    watched = f"watched in {account.watched_ms:,.0f} ms; unwatched the run took {account.plain_ms:,.0f} ms"
    return stack(
        Group(*_headline(account)),
        _categories(account.by_category(), account.peak_bytes),
        *(_owners_of_the_run(of_the_run, limit) if of_the_run else ()),
        _kept(kept, limit) if kept else None,
        *_names(account.held_names),
        bullets([*account.notes, *([watched] if account.plain_ms else [])]),
    )


def _owners_of_the_run(holdings: Sequence[Holding], limit: int) -> Iterator[Table]:
    of_all = f", of {size(sum(holding.bytes for holding in holdings))} that the run made"
    yield owners(f"by module{of_all}", summed(holdings, lambda holding: holding.module or NO_MODULE), limit)
    yield owners(f"by line{of_all}", summed(holdings, lambda h: short_line(h.line) or f"({h.op})"), limit)


def short_line(line: str) -> str:
    """``resnet.py:154 in forward``: the file's name is enough next to its function."""
    path, _, rest = line.partition(":")
    return f"{Path(path).name}:{rest}" if line else ""


def _headline(account: Account) -> Iterable[Text]:
    peak = account.peak
    text = Text("Peak ", style="bold").append(size(account.peak_bytes), style="bold cyan")
    text.append(f" in {peak.op or 'an operation'}", style="bold")
    text.append(f" of {peak.module}" if peak.module else "").append(f", {peak.phase}" if peak.phase else "")
    yield text.append(f", {peak.share_of_run:.0%} of the way through the run", style="dim")
    if peak.line:
        yield Text(f"  {clean(peak.line)}", style="dim")
    if account.minimum_bytes:
        needed = "parameters, inputs, outputs" + (", gradients, optimizer state" if account.train else "")
        yield Text(f"  {account.factor_x:.2f} x the least possible, {size(account.minimum_bytes)} ({needed})")


def _categories(by_category: Mapping[Category, int], peak_bytes: int) -> Table:
    grid = table("at the peak", "bytes", "share")
    for category, bytes in by_category.items():
        grid.add_row(category.value, size(bytes), f"{bytes / peak_bytes:.1%}")
    return grid


def owners(title: str, sums: Sequence[Owner], limit: int) -> Table:
    """Name, bytes and blocks of the largest owners; blocks are None where they are unknown."""
    grid = table(title, "bytes", "blocks")
    for name, bytes, blocks in sums[:limit]:
        grid.add_row(Text(clean(name), overflow="fold"), size(bytes), "" if blocks is None else f"{blocks:,}")
    if rest := sums[limit:]:
        more = f"and {plural(len(rest), 'smaller one')}: --json has them all"
        grid.add_row(more, size(sum(bytes for _, bytes, _ in rest)), "", style="dim")
    return grid


def summed(held: Iterable[AnyHeld], name: Callable[[AnyHeld], str]) -> list[Owner]:
    """Owners of the same name together, the largest first."""
    sums: dict[str, tuple[int, int | None]] = {}
    for holding in held:
        bytes, blocks = sums.get(name(holding), (0, 0))
        both = None if blocks is None or holding.blocks is None else blocks + holding.blocks
        sums[name(holding)] = (bytes + holding.bytes, both)
    rows = [(owner, bytes, blocks) for owner, (bytes, blocks) in sums.items()]
    return sorted(rows, key=lambda row: (-row[1], row[0]))


def _kept(kept: Sequence[KeptStorage], limit: int) -> Table:
    total = sum(tensor.bytes for tensor in kept)
    grid = table(
        f"kept for backward: {size(total)} in {plural(len(kept), 'tensor')}", "bytes", "kept by", left=("kept by",)
    )
    for tensor in kept[:limit]:
        origin = " ".join(filter(None, (tensor.module, tensor.op.removeprefix("aten."), short_line(tensor.line))))
        grid.add_row(Text(clean(origin), overflow="fold"), size(tensor.bytes), ", ".join(tensor.kept_by))
    if rest := kept[limit:]:
        grid.add_row(f"and {len(rest)} more", size(sum(tensor.bytes for tensor in rest)), "", style="dim")
    return grid


def deletions(held: Sequence[HeldName]) -> Iterator[tuple[str, str]]:
    """List for each line the names to delete there, and ``before net.py:12 in forward lowers the peak by 2 MiB``."""
    by_line: dict[str, list[HeldName]] = {}
    for name_held in held:
        by_line.setdefault(name_held.line, []).append(name_held)
    for line, names in by_line.items():
        saved = f"before {short_line(line)} lowers the peak by {size(names[0].saved_bytes)}"
        yield ", ".join(sorted({name_held.name for name_held in names})), saved


def _names(held: Sequence[HeldName]) -> Iterable[Text]:
    for names, saved in deletions(held):
        text = Text(f"del {names}", style="bold yellow").append(f" {saved}")
        yield text.append(": nobody uses them after it", style="dim")


def change_text(change: AccountChange, *, limit: int = 10) -> RenderableType:
    """The headline, then the owners that changed most."""
    verb = "grew" if change.after_bytes > change.before_bytes else "shrank"
    moved = abs(change.after_bytes - change.before_bytes)
    if not moved:
        return Text(f"The peak is the same as before, {size(change.after_bytes)}.", style="bold")
    headline = Text(f"The peak {verb} by {size(moved)}", style="bold")
    headline.append(f", from {size(change.before_bytes)} to {size(change.after_bytes)}", style="not bold")
    groups = {"by category": change.by_category, "by module": change.by_module, "by line": change.by_line}
    return stack(headline, *(_changed(title, rows[:limit]) for title, rows in groups.items() if rows))


def _changed(title: str, rows: Sequence[Change]) -> Table:
    grid = table(title, "before", "after", "change")
    for row in rows:
        sign, style = ("+", "red") if row.gained_bytes > 0 else ("-", "green")
        changed = Text(f"{sign}{size(abs(row.gained_bytes))}", style=style)
        grid.add_row(Text(clean(row.owner), overflow="fold"), size(row.before_bytes), size(row.after_bytes), changed)
    return grid


def prediction_text(prediction: Prediction) -> RenderableType:
    """The peak with its range, its moment, its owners, and the batches that fit."""
    predicted = f"predicted without running the model, in {seconds(prediction.seconds)}"
    return stack(
        Group(*_predicted(prediction)),
        _categories(prediction.by_category, prediction.peak_bytes),
        *(_batches(prediction, prediction.memory_bytes) if prediction.memory_bytes is not None else ()),
        bullets([*prediction.notes, predicted]),
    )


def _predicted(prediction: Prediction) -> list[Text]:
    peak = prediction.peak
    text = Text("Predicted peak ", style="bold").append(size(prediction.peak_bytes), style="bold cyan")
    text.append(f" on {prediction.device}{', compiled' if prediction.compiled else ''}", style="bold").append(
        _range(prediction.low_bytes, prediction.high_bytes)
    )
    where = f"  in {peak.op or 'an operation'}" + (f" of {peak.module}" if peak.module else "")
    lines = [text, Text(clean(f"{where}, {peak.phase}" + (f", {peak.line}" if peak.line else "")), style="dim")]
    if prediction.device != "cpu":
        reserved = Text(f"  {size(prediction.reserved_bytes)} reserved by the caching allocator")
        reserved.append(_range(prediction.reserved_low_bytes, prediction.reserved_high_bytes))
        reserved.append(
            f"; the context takes {size(prediction.context_low_bytes)} to {size(prediction.context_high_bytes)} more"
        )
        lines += [reserved, Text(f"  at most {size(prediction.device_high_bytes)} of the device, all told")]
    return lines


def _range(low: int, high: int) -> str:
    return f" ({size(low)} to {size(high)})" if low != high else ""


def _batches(prediction: Prediction, memory_bytes: int) -> Iterator[RenderableType]:
    if not prediction.largest_batch:
        yield Text(f"Not even a batch of 1 fits {size(memory_bytes)}", style="bold yellow")
    else:
        text = Text(f"The largest batch that fits {size(memory_bytes)} is ", style="bold")
        yield text.append(f"{prediction.largest_batch:,}", style="cyan")
    grid = table("batch", "peak", "reserved", "at most, all told", wide=False)
    for need in prediction.batches:
        grid.add_row(f"{need.batch:,}", size(need.peak_bytes), size(need.reserved_bytes), size(need.device_high_bytes))
    yield grid
