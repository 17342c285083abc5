"""Calls the modules that a plan names with one slice of their inputs after the other.

A call that is not of the kind for which slices were shown to be independent runs whole, and a warning says so: other
arguments, another rank, a size that was 1, a part in training mode, gradients that are being recorded. Other sizes are
asked for when they come, once: a module may branch by a size.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from togi.core.errors import FitError, nearest
from togi.footprint.dry_run import dry_run_of
from togi.footprint.fit.forward import ReplacedForward, restore, why_not_replaceable
from togi.footprint.fit.policies import CUT, ONE, Chunk
from togi.graph.dependence.proof import RowProof
from togi.subject.inputs import Inputs
from togi.torch_internals.autograd import stands_for_another
from togi.torch_internals.layouts import room_for
from togi.torch_internals.tensors import keystr, tree_flatten, tree_flatten_with_path, tree_unflatten

CONSTANTS = (type(None), bool, int, float, str, torch.dtype, torch.device)
_MOST_FORMS = 4096
Cut = tuple[int | None, ...]
"""Along which dimension each tensor of the arguments is cut, in their order; None where it is passed whole."""


class ChunkWarning(UserWarning):
    """A module runs whole although a plan wants it to run in slices: right, but it takes the memory it always took."""


def chunk(
    module: nn.Module, chunks: Sequence[Chunk], *, at_most_parts: int | None = None, asks: bool = True
) -> list[nn.Module]:
    """Chunk the parts of ``module`` in place; the parts. Raises FitError, and changes nothing then.

    Args:
        at_most_parts: leave the rest of a result without values; for simulations, where one slice is like the others.
        asks: whether slices are independent at the sizes of a call. A planner asks that itself.
    """
    parts = [_part(module, entry) for entry in chunks]
    if len({id(part) for part in parts}) < len(parts):
        raise FitError("the plan cuts one module twice: keep one of the two entries")
    for part, planned in zip(parts, chunks, strict=True):
        ChunkedForward(part, planned, at_most_parts=at_most_parts, asks=asks).put()
    return parts


class ChunkedForward(ReplacedForward):
    """A module's forward, called with slices; whole where the call is not of the planned kind."""

    def __init__(self, module: nn.Module, entry: Chunk, *, at_most_parts: int | None = None, asks: bool = True) -> None:
        super().__init__(module)
        self.entry, self.at_most_parts, self.asks = entry, at_most_parts, asks
        self._dependent: dict[Any, str] = {}
        """Why they are not, by the sizes and dtypes of a call; empty where they are."""
        self._busy = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.retired or self._busy:
            return self.original(*args, **kwargs)
        leaves = named_leaves(type(self.module).forward, args, kwargs)
        if reason := self._why_whole(leaves) or self._why_dependent(leaves, Inputs(args, kwargs)):
            warnings.warn(
                f"the plan runs {self.entry.label} whole, which takes more memory than planned: {reason}",
                ChunkWarning,
                stacklevel=2,
            )
            return self.original(*args, **kwargs)
        length = next(leaf.shape[d] for name, leaf in leaves.items() if (d := self._dimension(name)) is not None)
        if length <= self.entry.size:
            return self.original(*args, **kwargs)
        return self._in_slices(leaves, tree_flatten((args, kwargs))[1], length)

    def _dimension(self, name: str) -> int | None:
        shape = self.entry.inputs.get(name, ())
        return shape.index(CUT) if CUT in shape else None

    def _why_whole(self, leaves: Mapping[str, Any]) -> str:
        tensors = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, Tensor)}
        if torch.is_grad_enabled() and any(t.requires_grad for t in (*tensors.values(), *self.module.parameters())):
            return "gradients are being recorded, which keeps every slice. Call it under torch.no_grad()"
        return _other_arguments(self.entry, tensors, leaves) or _other_shapes(self.entry, tensors) or self._other_mode()

    def _other_mode(self) -> str:
        if not self.entry.training and any(part.training for part in self.module.modules()):
            return "a part of it is in training mode, and was not when the plan was made. Call eval()"
        return ""

    def _why_dependent(self, leaves: Mapping[str, Any], sample: Inputs) -> str:
        tensors = [leaf for leaf in leaves.values() if isinstance(leaf, Tensor)]
        if not self.asks or any(map(stands_for_another, tensors)):
            return ""
        form = tuple((tensor.shape, tensor.dtype) for tensor in tensors)
        if form not in self._dependent:
            if len(self._dependent) > _MOST_FORMS:
                self._dependent.clear()
            self._busy = True  # a wrapper round this one would come back here
            try:
                self._dependent[form] = _asked(self.module, self.entry, sample)
            finally:
                self._busy = False
        reason = self._dependent[form]
        return f"at these sizes, slices are not known to be independent ({reason})" if reason else ""

    def _in_slices(self, leaves: Mapping[str, Any], form: Any, length: int) -> Any:
        joined: list[Tensor] = []
        answer: Any = None
        for number, start in enumerate(range(0, length, self.entry.size)):
            if number == self.at_most_parts:
                break
            size = min(self.entry.size, length - start)
            args, kwargs = tree_unflatten([self._slice(*item, start, size) for item in leaves.items()], form)
            results, answer_form = tree_flatten(self.original(*args, **kwargs))
            del args, kwargs
            tensors = [result for result in results if isinstance(result, Tensor)]
            self._check(tensors, size)
            if not joined:
                joined = [room_for(t, d, length) for t, d in zip(tensors, self.entry.outputs, strict=True)]
                waiting = iter(joined)
                answer = tree_unflatten([next(waiting) if isinstance(r, Tensor) else r for r in results], answer_form)
            for whole, tensor, d in zip(joined, tensors, self.entry.outputs, strict=True):
                whole.narrow(d, start, size).copy_(tensor)
            del results, tensors
        return answer

    def _slice(self, name: str, leaf: Any, start: int, size: int) -> Any:
        dimension = self._dimension(name)
        return leaf if dimension is None else leaf.narrow(dimension, start, size)

    def _check(self, tensors: Sequence[Tensor], size: int) -> None:
        shapes = [tuple(tensor.shape) for tensor in tensors]
        fits = [d < len(shape) and shape[d] == size for shape, d in zip(shapes, self.entry.outputs, strict=False)]
        if len(tensors) != len(self.entry.outputs) or not all(fits):
            raise FitError(
                f"{self.entry.label}: {size} slices gave results of the shapes {shapes}, and the plan joins them along "
                f"dimensions {self.entry.outputs}. The module does something else than when it was planned: run "
                "'togi fit --inference' again."
            )


def _other_arguments(entry: Chunk, tensors: Mapping[str, Tensor], leaves: Mapping[str, Any]) -> str:
    if missing := entry.inputs.keys() ^ tensors.keys():
        return f"it was planned with other tensors ({', '.join(sorted(missing))})"
    if strange := unknown(leaves):
        return f"it gets {strange}"
    if (now := constants(leaves)) != entry.constants:
        names = sorted(
            name for name in now.keys() | entry.constants.keys() if now.get(name) != entry.constants.get(name)
        )
        return f"it was planned with other values of {', '.join(names)}"
    return ""


def _other_shapes(entry: Chunk, tensors: Mapping[str, Tensor]) -> str:
    lengths = set()
    for name, tensor in tensors.items():
        planned = entry.inputs[name]
        alike = len(planned) == tensor.dim() and all(
            size == 1 for size, kind in zip(tensor.shape, planned, strict=True) if kind == ONE
        )
        if not alike:
            return f"{name} has the shape {tuple(tensor.shape)}, and was planned as ({', '.join(planned)})"
        if CUT in planned:
            lengths.add(tensor.shape[planned.index(CUT)])
    if len(lengths) != 1:
        return f"the tensors that are cut differ in size there ({sorted(lengths)})"
    return ""


def _part(module: nn.Module, entry: Chunk) -> nn.Module:
    names: dict[str, nn.Module] = dict(module.named_modules(remove_duplicate=False))
    if entry.module not in names:
        raise FitError(
            f"the plan cuts '{entry.module}', which {type(module).__name__} does not have"
            f"{nearest(entry.module, names) or '.'} A plan belongs to the architecture that it was made for: run "
            "'togi fit --inference' on this one."
        )
    if reason := why_not_replaceable(names[entry.module]):
        raise FitError(f"{entry.label} cannot be cut: {reason}")
    if entry.size < 1 or not any(CUT in shape for shape in entry.inputs.values()):
        raise FitError(f"{entry.label}: the plan cuts nothing of it (size {entry.size}); a size is 1 or more")
    return names[entry.module]


def named_leaves(forward: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Every leaf in order: ``hidden_states``, ``position_embeddings[0]``. ``forward`` is unbound: it has a ``self``."""
    names = _positional(forward)
    leaves = {}
    for path, leaf in tree_flatten_with_path((tuple(args), dict(kwargs)))[0]:
        side, key, *rest = path
        if getattr(side, "idx", 0) == 0:
            at = int(key.idx)  # type: ignore[attr-defined]
            name = names[at] if at < len(names) else f"argument {at}"
        else:
            name = str(key.key)  # type: ignore[attr-defined]
        leaves[name + keystr(tuple(rest))] = leaf
    return leaves


def constants(leaves: Mapping[str, Any]) -> dict[str, str]:
    return {name: repr(leaf) for name, leaf in leaves.items() if isinstance(leaf, CONSTANTS)}


def unknown(leaves: Mapping[str, Any]) -> str:
    """The first leaf that is neither a tensor nor a constant, such as a cache object; empty where there is none."""
    for name, leaf in leaves.items():
        if not isinstance(leaf, (Tensor, *CONSTANTS)):
            return f"{name}, a {type(leaf).__name__}"
    return ""


def slices_proof(part: nn.Module, sample: Inputs, cut: Cut) -> RowProof:
    """Asks about a call of the module without its plan."""

    def call(*tensors: Tensor) -> Any:
        waiting = iter(tensors)
        given = sample.map(lambda _: next(waiting))
        with dry_run_of(part) as dry:
            if not isinstance(dry.program, nn.Module) or dry.program is part:
                raise TypeError("it cannot be copied")
            restore(dry.program.modules())
            return dry.program.forward(*given.args, **given.kwargs)

    return RowProof(call, sample.tensors(), cut)


def why_dependent(part: nn.Module, entry: Chunk, sample: Inputs) -> str:
    """The reason why slices of the size that the plan says depend on each other in this call; empty where they do
    not."""
    leaves = named_leaves(type(part).forward, sample.args, sample.kwargs)
    shapes = [entry.inputs[name] for name, leaf in leaves.items() if isinstance(leaf, Tensor)]
    cut = tuple(shape.index(CUT) if CUT in shape else None for shape in shapes)
    tensors = [leaf for leaf in leaves.values() if isinstance(leaf, Tensor)]
    length = next(t.shape[d] for t, d in zip(tensors, cut, strict=True) if d is not None)
    if length <= entry.size:
        return ""
    verdict = slices_proof(part, sample, cut).of([entry.size, length % entry.size or entry.size])
    if not verdict.reason and verdict.along != entry.outputs:
        return "its results have their slices along other dimensions than the plan joins them"
    return verdict.reason


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _asked(part: nn.Module, entry: Chunk, sample: Inputs) -> str:
    with torch.no_grad():
        return why_dependent(part, entry, sample)


@functools.lru_cache(maxsize=4096)
def _positional(forward: Callable[..., Any]) -> tuple[str, ...]:
    try:
        parameters = list(inspect.signature(forward).parameters.values())[1:]
    except (TypeError, ValueError):  # written in C
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(parameter.name for parameter in parameters if parameter.kind in kinds)
