"""One row per place in a program's tree of calls: times of one run before and after, and what runs it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from togi.core.quantities import milliseconds, plural, times
from togi.core.records import Obstacle, PartResult, ProgramTree, Study, measured

_MUCH = 0.3
"""Of the program's time."""


@dataclass(frozen=True)
class PlaceRow:
    """A place in a program's tree of calls, as people read it: the program, a part of it, an obstacle, what leads to
    them, or the Python between them."""

    name: str
    """Below its caller's."""
    what: str
    """Its class and its calls."""
    depth: int
    before: str
    """Time of one run, and its share."""
    after: str
    """Of the program as it was raced; of all else with what its parts showed alone."""
    outcome: str
    """What runs it and how much faster, or why nothing does."""
    faster: bool = False


def part_rows(study: Study) -> list[PlaceRow]:
    """The tree of a program down to its parts and what cannot be captured, and the time outside of all modules."""
    tree = study.program
    if tree is None:
        return []
    places = {call.path: index for index, call in reversed(list(enumerate(tree.calls)))}
    parts, obstacles = defaultdict[int, list[PartResult]](list), defaultdict[int, list[Obstacle]](list)
    for part in tree.parts:
        parts[places.get(part.key.path, 0)].append(part)
    for obstacle in tree.obstacles:
        obstacles[places.get(obstacle.path, 0)].append(obstacle)

    def below(index: int, caller: str, depth: int) -> tuple[list[PlaceRow], float]:
        """The rows of a place, and the ms that are saved there."""
        call, rows, saved_ms = tree.calls[index], list[PlaceRow](), 0.0
        prefix = f"{call.path}." * bool(call.path)
        for child in tree.children(index):
            found, saved = below(child, prefix, depth + 1)
            rows, saved_ms = rows + found, saved_ms + saved
        name = call.path.removeprefix(caller) or "(the program)"
        own = [_part_row(part, name, depth, tree.total_ms) for part in parts[index]]
        saved_ms += sum(_saved(part) * tree.total_ms for part in parts[index])
        reason = "; ".join(f"not captured whole: {obstacle.reason}" for obstacle in obstacles[index])
        if reason or (rows and not own) or index == 0:
            after_ms = call.ms - saved_ms if index else _raced_ms(study, tree)
            what = f"{call.module}, {plural(call.calls, 'call')}"
            before, after = _time(call.ms, tree.total_ms), milliseconds(after_ms)
            own.insert(0, PlaceRow(name, what, depth, before, after, reason, after_ms < call.ms and index == 0))
        return own + rows, saved_ms

    outside_ms = max(0.0, tree.total_ms - sum(tree.calls[index].ms for index in tree.children(0)))
    outside = PlaceRow(
        "(outside of modules)", "Python", 1, _time(outside_ms, tree.total_ms), milliseconds(outside_ms), "as it is"
    )
    return [*below(0, "", 0)[0], outside]


def bounded_by(study: Study) -> str:
    """Which part bounds what the whole can gain: it takes much of the time, and nothing that was tried is faster there.
    Empty where there is none."""
    parts = () if study.program is None else study.program.parts
    slow = [part for part in parts if part.tried and part.recipe is None and part.speedup_x is None]
    share = sum(part.share for part in slow)
    if share < _MUCH:
        return ""
    largest = max(slow, key=lambda part: part.share)
    more = f" (and {plural(len(slow) - 1, 'more part')})" if slow[1:] else ""
    tried = plural(sum(part.tried for part in slow), "recipe")
    return (
        f"{largest.key.path or 'The program'} ({largest.module}){more} takes {share:.0%} of the time, and nothing of "
        f"what was tried there ({tried}) is faster: whatever the rest gains, the whole gains "
        f"{times(1.0 / min(share, 1.0))} at most."
    )


def _part_row(part: PartResult, name: str, depth: int, total_ms: float) -> PlaceRow:
    if part.key.form:
        name = f"{name}#{part.key.form}"
    if len(part.copies) > 1:
        name = f"{name} and {len(part.copies) - 1} alike"
    outcome = part.reason
    if part.recipe is not None and part.speedup_x is not None:
        alone = f"{part.recipe.label}: {times(part.speedup_x.median)} alone"
        outcome = f"{alone}; {part.reason}" if part.reason else alone
    before_ms = part.share * total_ms
    after = milliseconds(before_ms - _saved(part) * total_ms)
    what = f"{part.module}, {plural(part.calls, 'call')}"
    return PlaceRow(name, what, depth, _time(before_ms, total_ms), after, outcome, part.recipe is not None)


def _saved(part: PartResult) -> float:
    """The share of the program's time that it saves, going by its trial alone."""
    if part.recipe is None or part.speedup_x is None:
        return 0.0
    return part.share * (1.0 - 1.0 / part.speedup_x.median)


def _raced_ms(study: Study, tree: ProgramTree) -> float:
    """A run with the parts in place: as long as one before, less what the race showed."""
    of_best = [trial for trial in measured(study.trials) if trial.recipe == study.best]
    return tree.total_ms / of_best[-1].speedup_x.median if of_best else tree.total_ms


def _time(ms: float, total_ms: float) -> str:
    return f"{milliseconds(ms)}, {ms / total_ms:.0%}" if total_ms else milliseconds(ms)
