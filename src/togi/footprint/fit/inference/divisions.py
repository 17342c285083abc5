"""Along which dimensions the calls of a module may be cut: where its operators are shown to keep slices apart.

The first question is put for halves. What a plan then cuts is asked once more for slices of the plan's size
(``why_dependent_in_full``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from togi.footprint.fit.inference.chunked import (
    CONSTANTS,
    Cut,
    constants,
    named_leaves,
    slices_proof,
    why_dependent,
)
from togi.footprint.fit.inference.simulate import Site
from togi.footprint.fit.measure import random_state
from togi.footprint.fit.policies import ANY, CUT, ONE, Chunk
from togi.footprint.fit.proof import outputs_of
from togi.footprint.step import Step
from togi.subject.inputs import Inputs
from togi.torch_internals.autograd import version_of
from togi.torch_internals.tensors import tree_leaves, tree_structure

_RANDOM = "the random state"


@dataclass(frozen=True)
class Division:
    """One way to cut a module's calls: the entry of a plan but for the size."""

    entry: Chunk
    length: int
    """Of the dimension, at most, over the calls."""


@dataclass
class Divisions:
    """The ways to cut a module's calls, and what stands against others."""

    ways: list[Division] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class _Enough(BaseException):
    """All that was asked has been answered; no error, and not for a model to catch."""


def divisions_of(step: Step, sites: Sequence[Site]) -> dict[str, Divisions]:
    """Run the pass as far as needed, and ask each of the modules at its first call. None of them has a problem."""
    asking = _Asking({site.name: site for site in sites})
    parts = dict(step.module.named_modules())
    with ExitStack() as hooks:
        for site in sites:
            part = parts[site.name]
            hooks.callback(part.register_forward_pre_hook(asking.before(site), with_kwargs=True).remove)
            hooks.callback(part.register_forward_hook(asking.after(site), with_kwargs=True).remove)
        with suppress(_Enough):
            step.run()
    return asking.found


class _Asking:
    """Asks before a module's first call, and looks afterwards at what that call did besides its result."""

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self._sites = dict(sites)
        self._busy = False
        self._before: dict[str, dict[str, Any]] = {}
        self.found: dict[str, Divisions] = {}

    def before(self, site: Site) -> Any:
        def ask(part: nn.Module, args: Any, kwargs: Any) -> None:
            if self._busy or site.name in self._before:
                return
            self._busy = True  # modules inside are now called with two slices, which are not the pass's
            try:
                self.found[site.name] = _divisions(site, part, Inputs(args, kwargs))
            finally:
                self._busy = False
            self._before[site.name] = _state(part, Inputs(args, kwargs))

        return ask

    def after(self, site: Site) -> Any:
        done: set[str] = set()

        def look(part: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if self._busy or site.name in done:
                return
            done.add(site.name)
            if reason := _side_effect(self._before[site.name], _state(part, Inputs(args, kwargs)), output):
                self.found[site.name] = Divisions([], [reason])
            del self._sites[site.name]
            if not self._sites:
                raise _Enough

        return look


def _divisions(site: Site, part: nn.Module, sample: Inputs) -> Divisions:
    result = Divisions()
    for length, cut in _cuts(sample):
        way, reason = _way(site, part, sample, length, cut)
        if way is not None and all(way.entry.inputs != other.entry.inputs for other in result.ways):
            result.ways.append(way)
        elif reason:
            result.problems.append(reason)
    return result


def _way(site: Site, part: nn.Module, sample: Inputs, length: int, cut: Cut) -> tuple[Division | None, str]:
    dimension = next(d for d in cut if d is not None)
    verdict = slices_proof(part, sample, cut).of([-(-length // 2)])
    if verdict.reason:
        return None, f"dimension {dimension}: {verdict.reason}"
    shapes = _shapes(part, sample, cut)
    entry = Chunk(
        module=site.name,
        inputs=shapes,
        outputs=verdict.along,
        size=length,
        constants=constants(_leaves(part, sample)),
        training=any(inner.training for inner in part.modules()),
    )
    lengths = [call.shapes[n][shape.index(CUT)] for call in site.calls for n, shape in shapes.items() if CUT in shape]
    return Division(entry, max(lengths)), ""


def _side_effect(before: Mapping[str, Any], after: Mapping[str, Any], output: Any) -> str:
    """The effect that a call has besides its result; empty where nothing was seen."""
    if before[_RANDOM] != after[_RANDOM]:
        return "it draws random numbers, which would be others in slices"
    if changed := [name for name, value in after.items() if before.get(name) != value]:
        return f"a call changes {changed[0]}, and slices would change it several times"
    for leaf in tree_leaves(output):
        if not isinstance(leaf, (Tensor, *CONSTANTS)):
            return f"it returns a {type(leaf).__name__}, which cannot be put together from slices"
    return ""


def _state(part: nn.Module, sample: Inputs) -> dict[str, Any]:
    """All that must be afterwards as it was: values of buffers, versions of what else can be written, plain
    attributes, lists and dicts among the arguments."""
    state: dict[str, Any] = {_RANDOM: random_state(part).numpy().tobytes()}
    state["its arguments"] = str(tree_structure((sample.args, dict(sample.kwargs))))
    for name, buffer in part.named_buffers():
        state[f"the buffer {name}"] = _digest(buffer)
    for name, parameter in part.named_parameters():
        state[f"the parameter {name}"] = version_of(parameter)
    for name, leaf in _leaves(part, sample).items():
        if isinstance(leaf, Tensor) and not leaf.is_inference():
            state[f"its input {name}"] = id(leaf), version_of(leaf)
    for prefix, inner in part.named_modules():
        for name, value in vars(inner).items():
            if (known := _plain_value(value)) is not None:
                state[f"the attribute {f'{prefix}.{name}'.lstrip('.')}"] = known
    return state


def _plain_value(value: Any) -> Any:
    """Something to compare an attribute by: itself, its identity and version, or its size. None for what is not
    looked at."""
    if isinstance(value, Tensor):
        return id(value), version_of(value) if not value.is_inference() else 0
    if isinstance(value, list | dict | set):
        return len(value)
    return repr(value) if isinstance(value, CONSTANTS) else None


def _digest(buffer: Tensor) -> tuple[float, ...]:
    """Batch norm's kernels write running statistics without counting a new version."""
    values = buffer.detach().double().nan_to_num()
    return float(values.sum()), float(values.square().sum())


def _cuts(sample: Inputs) -> Iterator[tuple[int, Cut]]:
    """Dimensions of the largest tensor, with those of the others that may belong to it."""
    tensors = sample.tensors()
    if not tensors:
        return
    largest = max(range(len(tensors)), key=lambda at: (tensors[at].dim(), tensors[at].numel()))
    for dimension, length in enumerate(tensors[largest].shape):
        if length > 1:
            for chosen in dict.fromkeys(_together(tensors, largest, dimension, length)):
                yield length, chosen


def _together(tensors: Sequence[Tensor], largest: int, dimension: int, length: int) -> Iterator[tuple[int | None, ...]]:
    """Every tensor that has the size there; every one that has it anywhere; the largest alone."""
    yield tuple(dimension if t.dim() > dimension and t.shape[dimension] == length else None for t in tensors)
    yield tuple(dimension if at == largest else _first(t, length) for at, t in enumerate(tensors))
    yield tuple(dimension if at == largest else None for at in range(len(tensors)))


def _first(tensor: Tensor, length: int) -> int | None:
    return next((d for d, size in enumerate(tensor.shape) if size == length), None)


def _shapes(part: nn.Module, sample: Inputs, cut: Cut) -> dict[str, tuple[str, ...]]:
    named = {name: leaf for name, leaf in _leaves(part, sample).items() if isinstance(leaf, Tensor)}
    return {
        name: tuple(CUT if d == dimension else ONE if size == 1 else ANY for d, size in enumerate(tensor.shape))
        for (name, tensor), dimension in zip(named.items(), cut, strict=True)
    }


def _leaves(part: nn.Module, sample: Inputs) -> dict[str, Any]:
    return named_leaves(type(part).forward, sample.args, sample.kwargs)


def why_dependent_in_full(step: Step, chunks: Sequence[Chunk], seed: int) -> dict[str, str]:
    """One pass; the calls of the modules that are cut are asked for slices of the plan's sizes. By module, why they
    depend on each other."""
    reasons: dict[str, str] = {}
    parts = dict(step.module.named_modules())
    asking = _AskingInFull(reasons)
    with ExitStack() as hooks:
        for entry in chunks:
            hook = parts[entry.module].register_forward_pre_hook(asking.about(entry), with_kwargs=True)
            hooks.callback(hook.remove)
        outputs_of(step, seed)
    return reasons


class _AskingInFull:
    """Modules inside one that is asked are called without values: those calls are not asked."""

    def __init__(self, reasons: dict[str, str]) -> None:
        self._found, self._busy = reasons, False

    def about(self, entry: Chunk) -> Any:
        def ask(part: nn.Module, args: Any, kwargs: Any) -> None:
            if self._busy or entry.module in self._found:
                return
            self._busy = True
            try:
                if reason := why_dependent(part, entry, Inputs(args, kwargs)):
                    self._found[entry.module] = reason
            finally:
                self._busy = False

        return ask
