"""Bytes alive over the run, by category."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from togi.footprint.account.allocations import Block
from togi.footprint.account.owners import category_of
from togi.footprint.account.record import Category, Timeline
from togi.footprint.account.watch import Watch
from togi.footprint.ledger import Piece

_POINTS = 1200
"""More than a picture has columns."""


def timeline_of(watch: Watch, owner: Mapping[Block, Piece]) -> Timeline:
    """What was there before the run counts from its start to its end."""
    stream = watch.stream
    changes: dict[Category, list[int]] = {}
    for block in stream.blocks:
        piece = owner.get(block)
        category = category_of(piece, watch) if piece else Category.WORKSPACE
        series = changes.setdefault(category, [0] * (len(stream.sums) + 1))
        series[block.order] += block.bytes
        series[len(stream.sums) if block.freed is None else block.freed] -= block.bytes
    for piece in watch.ledger.pieces:
        if piece.op == "" and piece.category:
            series = changes.setdefault(Category(piece.category), [0] * (len(stream.sums) + 1))
            series[0] += piece.bytes
    kept = _points([total for _, total in stream.sums])
    start = stream.sums[0][0]
    return Timeline(
        ms=tuple((stream.sums[order][0] - start) * 1e-6 for order in kept),
        bytes={category: _sums_at(series, kept) for category, series in changes.items()},
    )


def _points(totals: Sequence[int]) -> list[int]:
    """Of every stretch the place of its highest and of its last total, so that no peak is lost."""
    width = max(1, 2 * len(totals) // _POINTS)
    kept: set[int] = set()
    for first in range(0, len(totals), width):
        stretch = range(first, min(first + width, len(totals)))
        kept |= {max(stretch, key=totals.__getitem__), stretch[-1]}
    return sorted(kept)


def _sums_at(changes: Sequence[int], places: Sequence[int]) -> tuple[int, ...]:
    total, sums = 0, []
    for change in changes:
        total += change
        sums.append(total)
    return tuple(sums[place] for place in places)
