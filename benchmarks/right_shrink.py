"""Shrinks a module and a call that an engine answers wrongly to a test (``right.py``).

Steps of the chain are left out, from the front (the call is then what they made of it) and in between; then values of
the call go back to those of the sample, all at once, by halves, one by one. What is still wrong is kept.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import final

import torch
from benchmarks.right_modules import Chain, Drawn, drawn
from torch import Tensor

IsWrong = Callable[[list[Tensor], bool], bool]
"""Whether a call (its tensors, and whether they are meant exactly) is answered wrongly."""
EngineOf = Callable[[str, Drawn], IsWrong | None]

LONGEST_S = 90.0
"""For one fault: each module that is tried is built, verified and saved."""


@final
@dataclass(frozen=True)
class Fault:
    seed: int
    engine: str
    given: list[Tensor]
    exact: bool
    first: int = 0
    """The step that the call goes into."""
    kept: tuple[int, ...] | None = None
    """Steps of the chain. None: all."""

    @property
    def case(self) -> Drawn:
        return part(self.seed, self.first, self.kept)


def part(seed: int, first: int = 0, kept: tuple[int, ...] | None = None) -> Drawn:
    """Some steps of a drawn chain; its sample is what the steps before ``first`` make of the whole's."""
    whole = drawn(seed)
    if not isinstance(whole.module, Chain):
        return whole
    kind, _, words = whole.name.partition(": ")
    names, steps = words.split(), whole.module.steps
    chosen = range(len(steps)) if kept is None else kept
    sample = _made_by(steps[:first], whole.sample)
    return Drawn(f"{kind}: {' '.join(names[i] for i in chosen)}", Chain([steps[i] for i in chosen]).eval(), sample)


def _made_by(steps: list[Callable[[Tensor], Tensor]], tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Of the one tensor that a chain takes."""
    with torch.no_grad():
        for step in steps:
            tensors = (step(tensors[0]),)
    return tuple(tensor.detach().clone() for tensor in tensors)


def shrunk(fault: Fault, engine_of: EngineOf) -> Fault:
    """The smallest that is found in ``LONGEST_S``."""
    until = time.monotonic() + LONGEST_S
    smaller: Fault | None = fault
    while smaller is not None:
        fault = smaller
        tried = itertools.takewhile(lambda _: time.monotonic() < until, _with_fewer_steps(fault))
        smaller = next((candidate for candidate in tried if _is_wrong(candidate, engine_of)), None)
    is_wrong = engine_of(fault.engine, fault.case)
    return fault if is_wrong is None else _with_fewer_values(fault, is_wrong, until)


def _is_wrong(fault: Fault, engine_of: EngineOf) -> bool:
    try:
        is_wrong = engine_of(fault.engine, fault.case)
        return is_wrong is not None and is_wrong(fault.given, fault.exact)
    except Exception:  # foreign code: steps that do not go together
        return False


def _with_fewer_steps(fault: Fault) -> Iterator[Fault]:
    module = drawn(fault.seed).module
    if not isinstance(module, Chain):
        return
    kept = tuple(range(len(module.steps))) if fault.kept is None else fault.kept
    if len(kept) < 2:
        return
    if kept[0] == fault.first:
        made = _made_by([module.steps[fault.first]], tuple(fault.given))
        yield replace(fault, first=fault.first + 1, kept=kept[1:], given=list(made))
    for left_out in kept:
        yield replace(fault, kept=tuple(step for step in kept if step != left_out))


def _with_fewer_values(fault: Fault, is_wrong: IsWrong, until: float) -> Fault:
    """As few as possible that are not the sample's."""
    for i, start, size in _ranges(fault.given):
        simpler = fault.given[i].clone()
        simpler.view(-1)[start : start + size] = fault.case.sample[i].reshape(-1)[start : start + size]
        given = [*fault.given[:i], simpler, *fault.given[i + 1 :]]
        if torch.equal(simpler, fault.given[i]):
            continue
        if time.monotonic() > until:
            break
        if is_wrong(given, fault.exact):
            fault = replace(fault, given=given)
    return fault


def _ranges(tensors: list[Tensor]) -> Iterator[tuple[int, int, int]]:
    """A tensor, where a range of it begins and how long that is: all of it, halves, ... single elements."""
    for i, tensor in enumerate(tensors):
        size = tensor.numel()
        while size:
            yield from ((i, start, size) for start in range(0, tensor.numel(), size))
            size //= 2


def as_test(fault: Fault) -> str:
    """A file with one function that pytest finds, and that fails while the fault is there."""
    kept = None if fault.kept is None else tuple(fault.kept)
    given = "".join(f"        {_written(tensor)},\n" for tensor in fault.given)
    return f'''"""Found by benchmarks.right and shrunk. Run it with pytest in the root of the repository."""

import torch
from benchmarks.right import engine_of
from benchmarks.right_shrink import part
from torch import inf, nan  # noqa: F401 - values may be these


def test_seed_{fault.seed}_in_{fault.engine}() -> None:
    case = part({fault.seed}, first={fault.first}, kept={kept})
    assert case.name == {fault.case.name!r}, "the grammar has changed: this is another module"
    given = [
{given}    ]
    is_wrong = engine_of({fault.engine!r}, case)
    assert is_wrong is None or not is_wrong(given, {fault.exact})
'''


def _written(tensor: Tensor) -> str:
    return f"torch.tensor({tensor.tolist()}, dtype={tensor.dtype})"
