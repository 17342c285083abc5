"""An account of a CUDA memory snapshot as one offline HTML file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import togi
from togi.core.quantities import plural, size
from togi.footprint.snapshot.record import DeviceAccount, History, Pool, SnapshotAccount
from togi.render.html.document import bullets, document, section, tile
from togi.render.html.markup import Markup, element
from togi.render.html.timeline import timeline_figure
from togi.render.snapshot_text import by_line, by_pool, end_text, failure_text, fragmentation_text, moment_text

_SHOWN = 40


def snapshot_html(account: SnapshotAccount) -> str:
    """The same bytes for the same account."""
    return document(
        Path(account.path).name,
        header=_header(account),
        sections=[part for device in account.devices for part in _device(device)] + _notes(account),
        footer=f"togi {togi.__version__}. Read from {account.path}, {account.file_bytes:,} bytes.",
        script="account.js",
    )


def _header(account: SnapshotAccount) -> Markup:
    tiles = [
        tile(
            f"device {one.device}",
            size(one.history.peak_allocated_bytes if one.history else one.allocated_bytes),
            "allocated at the peak" if one.history else "allocated in the end",
        )
        for one in account.devices
    ]
    return element(
        "header",
        None,
        element("p", {"class": "brand"}, "togi", element("small", None, "CUDA memory snapshot")),
        element("h1", None, Path(account.path).name),
        element("p", {"class": "headline"}, element("strong", None, size(account.peak_bytes)), "allocated at most"),
        element("dl", {"class": "tiles"}, *tiles),
    )


def _notes(account: SnapshotAccount) -> list[Markup]:
    notes = [*account.notes, *(f"Device {one.device}: {note}" for one in account.devices for note in one.notes)]
    return [section("What to know", bullets(notes), kind="notice")] if notes else []


def _device(device: DeviceAccount) -> Iterator[Markup]:
    name = f"Device {device.device}"
    if device.history is not None:
        yield from _history(name, device.history)
    yield section(
        f"{name}: in the end",
        element("p", None, f"{end_text(device)}."),
        _pools(device.pools),
        _owners(by_line(device.alive)),
    )


def _history(name: str, history: History) -> Iterator[Markup]:
    if history.out_of_memory:
        said = [failure_text(failure, history) for failure in history.out_of_memory]
        yield section(f"{name}: out of memory", bullets(said), kind="notice")
    when = moment_text(history.peak, history)
    about = (
        f"Peak {size(history.peak_allocated_bytes)} allocated at {when}: {fragmentation_text(history)}. Peak "
        f"{size(history.peak_reserved_bytes)} reserved. Point at a moment to read it."
    )
    unit = "ms, recorded" if history.timed else "events, recorded"
    figure = timeline_figure(history.timeline, what="memory reserved, MiB", unit=unit)
    yield section(f"{name}: memory over time", element("p", None, about), figure)
    yield section(
        f"{name}: owners at the peak", _owners(by_line(history.holdings)), _owners(by_pool(history.holdings), "pool")
    )


def _owners(sums: Sequence[tuple[str, int, int | None]], heading: str = "line") -> Markup:
    rows = ((size(bytes), "" if blocks is None else f"{blocks:,}", name) for name, bytes, blocks in sums[:_SHOWN])
    return _table(("bytes", "blocks", heading), rows, len(sums) - _SHOWN)


def _pools(pools: Sequence[Pool]) -> Markup:
    rows = (
        (
            f"{pool.pool}, stream {pool.stream}, {pool.kind}",
            f"{pool.segments:,}",
            size(pool.reserved_bytes),
            size(pool.allocated_bytes),
            size(pool.free_bytes),
            size(pool.largest_free_bytes),
        )
        for pool in pools[:_SHOWN]
    )
    return _table(("pool", "segments", "reserved", "allocated", "free", "largest free"), rows, len(pools) - _SHOWN)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], more: int) -> Markup:
    head = element("tr", None, *(element("th", {"scope": "col"}, heading) for heading in headings))
    body = (element("tr", None, *(element("td", None, cell) for cell in row)) for row in rows)
    table = element("table", {"class": "plain"}, element("thead", None, head), element("tbody", None, *body))
    rest = element("p", None, f"and {plural(more, 'smaller one')}; --json has them all") if more > 0 else None
    return element("div", {"class": "scroll"}, table, rest)
