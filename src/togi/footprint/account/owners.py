"""Joins the ledger with the allocator's stream: every block gets an owner, and every byte of the peak a line."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

from togi.footprint.account.allocations import Block, Stream
from togi.footprint.account.names import Name
from togi.footprint.account.record import Category, HeldName, Holding, Kept, Moment
from togi.footprint.account.watch import Watch
from togi.footprint.ledger import Piece
from togi.footprint.whereabouts import FORWARD

_WORTH = 0.005
"""Share of the peak below which a name is not worth a line of code."""


def owners(watch: Watch) -> dict[Block, Piece]:
    """Block -> the piece that it holds. Blocks without one are workspace."""
    by_address: dict[int, list[Block]] = {}
    for block in watch.stream.blocks:
        by_address.setdefault(block.address, []).append(block)
    found: dict[Block, Piece] = {}
    for address, pieces in watch.ledger.addresses.items():
        blocks = by_address.get(address, [])
        born = [block.operation for block in blocks]
        for piece in pieces:
            number = bisect_right(born, piece.born) - 1
            if number >= 0 and blocks[number] not in found:
                found[blocks[number]] = piece
    return found


def category_of(piece: Piece, watch: Watch) -> Category:
    if piece.category and piece not in watch.kept:
        return Category(piece.category)
    start = watch.backward_at
    made = piece.where.phase == FORWARD and piece.op != ""
    if made and start is not None and piece.born < start and piece.alive_at(start):
        return Category.ACTIVATION
    return Category(piece.category) if piece.category else Category.TEMPORARY


def holdings_at(watch: Watch, order: int, owner: Mapping[Block, Piece]) -> tuple[Holding, ...]:
    """Who held what after that allocation, the largest first; equal owners are one."""
    operation = _operation_at(watch.stream, order)
    single = [_before(piece) for piece in _entered(watch) if piece.alive_at(operation)]
    single += [_of_block(block, owner.get(block), watch) for block in watch.stream.alive_at(order)]
    merged: dict[tuple[object, ...], Holding] = {}
    for holding in single:
        key = (holding.category, holding.module, holding.line, holding.op, holding.phase)
        known = merged.get(key)
        merged[key] = holding if known is None else _sum(known, holding)
    return tuple(sorted(merged.values(), key=lambda holding: -holding.bytes))


def moment(watch: Watch, order: int, owner: Mapping[Block, Piece]) -> Moment:
    """What was running when the block at ``order`` was taken."""
    block = next(block for block in watch.stream.blocks if block.order == order)
    piece = owner.get(block)
    sibling = piece or next((p for b, p in owner.items() if b.operation == block.operation), None)
    first, last = watch.stream.sums[0][0], watch.stream.sums[-1][0]
    share = (block.born_ns - first) / (last - first) if last > first else 0.0
    if sibling is None:
        return Moment(op=block.maker, share_of_run=share)
    where = sibling.where
    return Moment(op=sibling.op, module=where.module, line=where.line, phase=where.phase, share_of_run=share)


def kept_by_autograd(watch: Watch) -> tuple[Kept, ...]:
    """The largest first; what was there before the run (weights) included, since autograd keeps a reference to it."""
    found = [
        Kept(
            bytes=piece.bytes,
            kept_by=tuple(sorted(set(places))),
            category=category_of(piece, watch),
            module=piece.where.module,
            line=piece.where.line,
            op=piece.op,
        )
        for piece, places in watch.kept.items()
    ]
    return tuple(sorted(found, key=lambda kept: -kept.bytes))


def held_names(watch: Watch, order: int, owner: Mapping[Block, Piece]) -> tuple[HeldName, ...]:
    """Names that hold memory at the peak which nobody uses again, with what deleting them would bring."""
    operation = _operation_at(watch.stream, order)
    names = next((names for height, names in reversed(watch.heights) if height <= operation), {})
    idle = {piece: who for piece, who in names.items() if _idle(piece, operation, watch)}
    idle = {piece: who for piece, who in idle.items() if piece.bytes >= _WORTH * watch.stream.sums[order][1]}
    block_of = {piece: block for block, piece in owner.items()}
    peak = watch.stream.sums[order][1]
    found: list[HeldName] = []
    for line in {name.line for who in idle.values() for name in who}:
        pieces = [piece for piece, who in idle.items() if any(name.line == line for name in who)]
        early = {block_of[piece]: piece.used for piece in pieces if piece in block_of}
        saved = peak - _peak_with(watch.stream, early)
        found += [
            HeldName(name=name.name, line=line, bytes=piece.bytes, saved_bytes=saved)
            for piece in pieces
            for name in _unique(idle[piece])
            if name.line == line and saved > 0
        ]
    return tuple(sorted(found, key=lambda held: (-held.saved_bytes, held.line, held.name)))


def _idle(piece: Piece, operation: int, watch: Watch) -> bool:
    """Nobody uses it again, nothing but the name keeps it, and it was made in this run."""
    kept = piece in watch.kept or piece.category in (Category.OUTPUT, Category.GRADIENT, Category.OPTIMIZER)
    return piece.used < operation and not kept and piece.op != ""


def _peak_with(stream: Stream, early: Mapping[Block, int]) -> int:
    """The peak if each of these blocks were freed after the operation given for it."""
    changes = [0] * (len(stream.sums) + 1)
    operations = _operations(stream)
    for block in stream.blocks:
        changes[block.order] += block.bytes
        freed = len(stream.sums) if block.freed is None else block.freed
        if block in early:
            freed = min(freed, max(block.order + 1, bisect_right(operations, early[block])))
        changes[freed] -= block.bytes
    total = highest = 0
    for change in changes:
        total += change
        highest = max(highest, total)
    return highest


def _operations(stream: Stream) -> list[int]:
    """The operation that was running, or the last one before, at every place of the stream."""
    born = {block.order: block.operation for block in stream.blocks}
    found, now = [], 0
    for order in range(len(stream.sums)):
        now = max(now, born.get(order, now))
        found.append(now)
    return found


def _operation_at(stream: Stream, order: int) -> int:
    return _operations(stream)[order]


def _entered(watch: Watch) -> Iterable[Piece]:
    return (piece for piece in watch.ledger.pieces if piece.op == "" and piece.category)


def _before(piece: Piece) -> Holding:
    return Holding(bytes=piece.bytes, blocks=1, category=Category(piece.category), module=piece.where.module)


def _of_block(block: Block, piece: Piece | None, watch: Watch) -> Holding:
    if piece is None:
        return Holding(bytes=block.bytes, blocks=1, category=Category.WORKSPACE, op=block.maker)
    where = piece.where
    return Holding(
        bytes=block.bytes,
        blocks=1,
        category=category_of(piece, watch),
        module=where.module,
        line=where.line,
        op=piece.op,
        phase=where.phase,
    )


def _sum(first: Holding, second: Holding) -> Holding:
    return first.model_copy(update={"bytes": first.bytes + second.bytes, "blocks": first.blocks + second.blocks})


def _unique(names: Iterable[Name]) -> Iterable[Name]:
    return dict.fromkeys(names)
