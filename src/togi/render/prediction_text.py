"""A prediction of memory (``togi memory --predict``) as text for a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from togi.core.quantities import seconds, size
from togi.footprint.prediction.record import Prediction
from togi.render.terminal import clean


def prediction_text(found: Prediction) -> RenderableType:
    """The peak with its range, its moment, its owners, and the batches that fit."""
    parts: list[RenderableType] = [*_headline(found), Text(), _categories(found)]
    if found.memory_bytes is not None:
        parts += [Text(), _batches(found)]
    notes = [*found.notes, f"predicted without running the model, in {seconds(found.seconds)}"]
    return Group(*parts, Text(), *(Text(f"- {clean(note)}") for note in notes))


def _headline(found: Prediction) -> list[Text]:
    peak = found.peak
    text = Text("Predicted peak ", style="bold").append(size(found.peak_bytes), style="bold cyan")
    text.append(f" on {found.device}{', compiled' if found.compiled else ''}", style="bold").append(
        _range(found.low_bytes, found.high_bytes)
    )
    where = f"  in {peak.op or 'an operation'}" + (f" of {peak.module}" if peak.module else "")
    lines = [text, Text(clean(f"{where}, {peak.phase}" + (f", {peak.line}" if peak.line else "")), style="dim")]
    if found.device != "cpu":
        reserved = Text(f"  {size(found.reserved_bytes)} reserved by the caching allocator")
        reserved.append(_range(found.reserved_low_bytes, found.reserved_high_bytes))
        reserved.append(f"; the context takes {size(found.context_low_bytes)} to {size(found.context_high_bytes)} more")
        lines += [reserved, Text(f"  at most {size(found.device_high_bytes)} of the device, all told")]
    return lines


def _range(low: int, high: int) -> str:
    return f" ({size(low)} to {size(high)})" if low != high else ""


def _categories(found: Prediction) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("at the peak", ratio=1)
    for heading in ("bytes", "share"):
        table.add_column(heading, justify="right")
    for category, bytes in found.by_category.items():
        table.add_row(category.value, size(bytes), f"{bytes / found.peak_bytes:.1%}")
    return table


def _batches(found: Prediction) -> RenderableType:
    assert found.memory_bytes is not None
    if not found.largest_batch:
        text = Text(f"Not even a batch of 1 fits {size(found.memory_bytes)}", style="bold yellow")
    else:
        text = Text("The largest batch that fits ", style="bold").append(size(found.memory_bytes), style="bold")
        text.append(" is ", style="bold").append(f"{found.largest_batch:,}", style="bold cyan")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for heading in ("batch", "peak", "reserved", "at most, all told"):
        table.add_column(heading, justify="right")
    for need in found.batches:
        table.add_row(f"{need.batch:,}", size(need.peak_bytes), size(need.reserved_bytes), size(need.device_high_bytes))
    return Group(text, table)
