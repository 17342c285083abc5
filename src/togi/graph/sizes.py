"""Finds the sizes for which a captured graph is what the module does.

``torch.export`` tells what it decided by sizes, with two gaps. It asks of every tensor on the way whether a size is 0
or 1, for itself, and what a module asks looks the same. And it takes no input size that may vary for 0 or 1, so that
nothing tells of a branch there. Both are settled by running the graph next to the module.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from togi.core.records import TensorFacts
from togi.subject.behaviour import seed_all
from togi.subject.conditions import at_least, condition, sizes_in
from togi.subject.inputs import Inputs
from togi.torch_internals.sizes import Decided
from togi.verify.derived_inputs import Place, Sizes, resized, sizes_seen, sizes_that_lead

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate

_ROUNDING = 1e-2
"""Between the module and its graph in eager mode, of the largest value: what is another computation differs by more."""
_LARGEST_SEARCHED = 1024
_BEYOND = 1.25
"""How far beyond the largest size that was seen."""
_FEW = 2
"""A size that is small, and not treated as none."""


def sizes_held(candidate: Candidate, graph: nn.Module, decided: Decided, names: dict[Place, str]) -> list[str]:
    """Conditions on the sizes of a call under which ``graph`` is what the module does.

    Args:
        names: of dynamic sizes in the graph: those of one name are one size there.
    """
    beside = _Beside(candidate, graph, decided.firm)
    small = [text for text in decided.of_small if not beside.is_idle(text)]
    return list(dict.fromkeys([*decided.firm, *small, *beside.of_one_and_none(names)]))


class _Beside:
    """The graph next to the module, for sizes that no sample has."""

    def __init__(self, candidate: Candidate, graph: nn.Module, firm: list[str]) -> None:
        self.candidate = candidate
        self.graph = graph
        self.firm = [condition(text) for text in firm]
        self.taken = candidate.signature.under(firm)
        self.seen = sizes_seen(candidate.samples, candidate.signature)
        self.follows = sizes_that_lead(candidate.samples, candidate.signature)
        self.leads = list(dict.fromkeys(lead for lead, _ in self.follows.values()))
        self.largest = {lead: max(sizes[lead] for sizes in self.seen) for lead in self.leads}
        self._shapes = [tensor.shape for tensor in candidate.flat_samples()[0]]
        self._known: dict[tuple[int, ...], bool | None] = {}

    def is_idle(self, text: str) -> bool:
        """True if the graph is right also where the condition does not hold."""
        holds = condition(text)
        tried = [sizes for sizes in self.seen if not holds(self._of(sizes))]
        for sizes in self._searched(text):
            tensors = self._of(sizes)
            if not holds(tensors) and all(condition_holds(tensors) for condition_holds in self.firm):
                tried.append(sizes)
                break
        return bool(tried) and all(self.agree(sizes) for sizes in tried)

    def of_one_and_none(self, names: dict[Place, str]) -> Iterator[str]:
        """Conditions for what nothing tells of."""
        rest = []
        for lead in self.leads:
            smallest = min(sizes[lead] for sizes in self.seen)
            beside_few = dict.fromkeys(self.leads, _FEW) | {lead: 1}
            if smallest > 1 and (
                not self.agree(self._sizes({lead: 1})) or self.agree(self._sizes(beside_few)) is False
            ):
                yield at_least(2, *lead)
                continue
            rest.append(lead)
            if smallest > 0:
                yield at_least(1, *lead)
        all_one = self._sizes(dict.fromkeys(rest, 1))
        if len(rest) > 1 and all_one not in self.seen and self.agree(all_one) is False:
            yield " or ".join(at_least(2, *lead) for lead in rest)
        for places in self._apart(names):
            if self.agree(self._sizes({}) | dict.fromkeys(places, 1)) is False:
                yield at_least(2, *places[0])

    def agree(self, sizes: Sizes) -> bool | None:
        """True if the graph answers as the module does, up to rounding, in the form of its other answers. None where
        nobody can say: the module fails, or a call of it changes the next one."""
        key = tuple(sizes.values())
        if key not in self._known:
            self._known[key] = self._agree(resized(self.candidate.samples, self.candidate.signature, sizes, 0))
        return self._known[key]

    def _agree(self, given: Inputs) -> bool | None:
        own, signature = given.clone(), self.candidate.signature
        tensors = signature.flatten_inputs(given.args, given.kwargs)
        try:
            self.taken.check(tensors)
        except ValueError:
            return True  # no call that is taken has these sizes
        if self.candidate.facts.buffers_change:
            return None
        try:
            with torch.no_grad():
                seed_all(0)
                right = signature.flatten_outputs(self.candidate.module(*own.args, **own.kwargs))
        except Exception:  # foreign code: the module's own
            return None
        try:
            with torch.no_grad():
                seed_all(0)
                answer = self.graph(*tensors)
            return all(_same(*compared) for compared in zip(answer, right, signature.outputs_facts, strict=True))
        except Exception:  # whatever a graph of other sizes raises
            return False

    def _sizes(self, leading: Sizes) -> Sizes:
        """The sizes of all with these, the others as large as they were seen."""
        leading = self.largest | leading
        return {place: leading[lead] + more for place, (lead, more) in self.follows.items()}

    def _searched(self, text: str) -> Iterator[Sizes]:
        """The largest size that holds. From large to small: where a size on the way is 1 for many, the largest of them
        is least like 1 itself."""
        leads = list(dict.fromkeys(self.follows[place][0] for place in sizes_in(text) if place in self.follows))
        most = min(_LARGEST_SEARCHED, int(_BEYOND * max((self.largest[lead] for lead in leads), default=0)))
        for together in [*([lead] for lead in leads), leads]:
            for size in range(most, 0, -1):
                yield self._sizes(dict.fromkeys(together, size))

    def _of(self, sizes: Sizes) -> list[Tensor]:
        """A call with them."""
        shapes = [list(shape) for shape in self._shapes]
        for (i, dim), size in sizes.items():
            shapes[i][dim] = size
        return [torch.empty(shape, device="meta") for shape in shapes]

    def _apart(self, names: dict[Place, str]) -> Iterator[list[Place]]:
        """Sizes that were equal in all samples and are several in the graph."""
        for lead in self.leads:
            by_name: dict[str, list[Place]] = {}
            for place, (other, more) in self.follows.items():
                if other == lead and not more:
                    by_name.setdefault(names[place], []).append(place)
            if len(by_name) > 1:
                yield from by_name.values()


def _same(answer: Tensor, right: Tensor, facts: TensorFacts) -> bool:
    if answer.shape != right.shape or answer.dtype != right.dtype or answer.dim() != len(facts.shape):
        return False
    if not (answer.is_floating_point() or answer.is_complex()):
        return torch.equal(answer, right)
    largest = float(right.abs().nan_to_num(0.0, posinf=0.0).max()) if right.numel() else 0.0
    return torch.allclose(answer, right, rtol=0.0, atol=_ROUNDING * largest, equal_nan=True)
