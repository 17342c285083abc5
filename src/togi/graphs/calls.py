"""The calls that graphs can serve, what they return and which gradients they record: learned from the samples, and by
calling the function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from togi.core.quantities import plural
from togi.graphs import runs
from togi.graphs.form import SharedTensors, same_values, shape_at, shapes_of, size_of, with_tensors, without_tensors
from togi.graphs.gradient import gradients_of, plus_and_minus
from togi.graphs.held import Held, weights_of
from togi.graphs.pool import Device, GraphError, Run
from togi.subject.inputs import Inputs
from togi.torch_internals.autograd import version_of
from togi.torch_internals.behind import parts_behind
from togi.torch_internals.tensors import tree_flatten


class ServedCalls:
    """Calls of one function that differ in their size alone, in memory that all of them share."""

    def __init__(
        self, fn: Callable[..., Any], samples: Sequence[Inputs], pad: float | Sequence[float], *, gradients: bool
    ) -> None:
        self.fn, self.gradients = fn, gradients
        flat = [tree_flatten((sample.args, dict(sample.kwargs))) for sample in samples]
        self._form, self._others = flat[0][1], without_tensors(flat[0][0])
        self._plain_arguments = all(isinstance(each, Tensor) for each in samples[0].args) and not samples[0].kwargs
        rows = [[leaf for leaf in leaves if isinstance(leaf, Tensor)] for leaves, _ in flat]
        kinds = [[(t.dtype, t.device, t.dim()) for t in row] for row in rows]
        if any(form != self._form for _, form in flat) or not all(
            same_values(self._others, without_tensors(leaves)) for leaves, _ in flat
        ):
            raise GraphError("the samples differ in more than their sizes: give calls of one kind")
        if any(kind != kinds[0] for kind in kinds) or not rows[0]:
            raise GraphError("the samples differ in dtypes, devices or numbers of tensors (or hold none)")
        sizes = [size_of(row, shapes_of(rows)) for row in rows]
        if len(set(sizes)) < 2 or None in sizes:
            raise GraphError(
                "which dimensions are the size cannot be seen from the samples: give at least two whose sizes differ, "
                f"with the same number in every dimension that differs (found {sizes})"
            )
        largest = max(range(len(rows)), key=lambda at: sizes[at] or 0)
        self.tensors = rows[largest]
        """Of the largest sample."""
        self.inputs = SharedTensors(shapes_of(rows), self.tensors)
        self._required = [gradients and tensor.requires_grad for tensor in self.tensors]
        self.wanted = self._required
        """By input: its gradient is computed. As learned, only where one arrives."""
        self.pads = list(pad) if isinstance(pad, Sequence) else [pad] * len(rows[0])
        if len(self.pads) != len(rows[0]):
            raise GraphError(f"pad has {len(self.pads)} values, and a sample {plural(len(rows[0]), 'tensor')}")
        if len({t.device for t in rows[0]}) > 1:
            raise GraphError(
                f"the tensors of a sample are on several devices: {sorted({str(t.device) for t in rows[0]})}"
            )
        parts = parts_behind(fn)
        self._parts, self._have_modes = parts, [part for part in parts.values() if hasattr(part, "training")]
        self._modes = self._modes_now()

    def learn_results(self, few: int, many: int, device: Device) -> None:
        """Call it with these two sizes, to learn what it returns and what that depends on."""
        rows, rest_of_leaves, forms = [], [], []
        for n in (few, many):
            sample = self.sample(n)
            before = [version_of(tensor) for tensor in sample.tensors()]
            with torch.set_grad_enabled(n == few):
                leaves, form = tree_flatten(self.fn(*sample.args, **sample.kwargs))
            if [version_of(tensor) for tensor in sample.tensors()] != before:
                raise GraphError("it writes to its inputs, which would not reach the caller's: return what it computes")
            rows.append([leaf for leaf in leaves if isinstance(leaf, Tensor)])
            rest_of_leaves.append(without_tensors(leaves))
            forms.append(form)
            if n == few:
                self.differentiable = [tensor.requires_grad for tensor in rows[0]]
                self.weights = weights_of(rows[0], sample.tensors())
                self.held = Held(self._parts, self.weights)
        self._result_leaves, self._result_form = rest_of_leaves[0], forms[0]
        kinds = [[(t.dtype, t.dim()) for t in row] for row in rows]
        if forms[0] != forms[1] or not same_values(*rest_of_leaves) or kinds[0] != kinds[1] or not rows[0]:
            raise GraphError(
                "what it returns depends on the size in more than the shapes of tensors (or is not a tensor)"
            )
        shapes = shapes_of(rows)
        if [tuple(t.shape) for t in rows[1]] != [shape_at(shape, many) for shape in shapes]:
            raise GraphError(
                f"it returns {[tuple(t.shape) for t in rows[1]]} for size {many}: a dimension that varies must be the "
                "size itself, or nobody knows which part of a padded result is real"
            )
        self.results = SharedTensors(shapes, [t.detach() for t in rows[1]])
        if self.gradients:
            self._learn_gradients(few, device)

    def _learn_gradients(self, n: int, device: Device) -> None:
        """Learn the gradients of the wanted inputs and of the weights. It must be possible to repeat the forward
        pass."""
        if not any(self.differentiable):
            raise GraphError("gradients=True, and nothing that it returns depends on what requires gradients")
        sample, before, drawn = self.sample(n), self.held.versions(), device.random_state()
        gradients = gradients_of(self.fn, self.weights, self.wanted, plus_and_minus, zeros=False)
        found = gradients(*sample.args, **sample.kwargs)
        if self.held.versions() != before:
            raise GraphError(
                "gradients=True, and it changes its buffers: backward, which repeats it, would do so again"
            )
        if not torch.equal(device.random_state(), drawn):
            raise GraphError(
                "gradients=True, and it draws random numbers: backward, which repeats it, would draw others"
            )
        self._leave_out_what_gets_none(found)
        pairs = zip(self.inputs.shapes, self.tensors, self.wanted, strict=True)
        differentiated = [(shape, tensor) for shape, tensor, wants in pairs if wants]
        self.found = SharedTensors(
            [*(shape for shape, _ in differentiated), *(tuple(weight.shape) for weight in self.weights)],
            [*(tensor for _, tensor in differentiated), *self.weights],
        )
        self._trained = self.held.trained()

    def _leave_out_what_gets_none(self, found: Sequence[Tensor | None]) -> None:
        """In eager its ``.grad`` stays None, and optimizers leave it alone; zeros they would not."""
        gradients = iter(found)
        self.wanted = [wants and next(gradients) is not None for wants in self._required]
        pairs = zip(self.weights, gradients, strict=True)
        self.weights = [weight for weight, gradient in pairs if gradient is not None]
        if not any(self.wanted) and not self.weights:
            raise GraphError("gradients=True, and no gradient arrives at anything that requires one")

    def sample(self, n: int) -> Inputs:
        """The largest sample, cut to size ``n`` or repeated up to it."""
        tensors = []
        for tensor, shape, requires in zip(self.tensors, self.inputs.shapes, self._required, strict=True):
            for dim, extent in enumerate(shape):
                if extent is None:
                    tensor = tensor.index_select(dim, torch.arange(n, device=tensor.device) % tensor.shape[dim])
            tensors.append(tensor.detach().clone().requires_grad_(requires))
        args, kwargs = self.arguments(tensors)
        return Inputs(tuple(args), kwargs)

    def arguments(self, tensors: Sequence[Tensor]) -> tuple[Sequence[Any], dict[str, Any]]:
        """Those of a call with these tensors."""
        args, kwargs = with_tensors(self._others, tensors, self._form)
        return args, kwargs

    def returned(self, results: Sequence[Tensor]) -> Any:
        """Build what a call returns that computes these tensors."""
        return with_tensors(self._result_leaves, results, self._result_form)

    def flat(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Any]:
        """The leaves of a call's arguments, and their form. Of tensors by position that is known: taking it apart
        would take longer than the replay of a small graph."""
        alike = self._plain_arguments and not kwargs and len(args) == len(self.tensors)
        if alike and all(isinstance(each, Tensor) for each in args):
            return args, self._form
        return tree_flatten((args, kwargs))

    def size_of(self, leaves: Sequence[Any], form: Any) -> int | str:
        """The size of a call that a graph could serve; else the reason why none could."""
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        known = form is self._form or form == self._form
        if not known or not same_values(self._others, without_tensors(leaves)):
            return "other arguments than the samples'"
        alike = zip(tensors, self.tensors, strict=True)
        if any((t.dtype, t.device, t.dim()) != (s.dtype, s.device, s.dim()) for t, s in alike):
            return "inputs of another device, dtype or rank than the samples'"
        if self.record_gradients(tensors):
            if not self.gradients:
                return "gradients are recorded (call it under torch.no_grad, or capture it with gradients=True)"
            if [t.requires_grad for t in tensors] != self._required or self.held.trained() != self._trained:
                return "gradients of other tensors are recorded than at the capture"
        if self._modes_now() != self._modes:
            return "another autocast or training mode than at the capture"
        n = size_of(tensors, self.inputs.shapes)
        return n or "other shapes than the samples', or empty"

    def record_gradients(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether a call with these tensors records gradients now."""
        return torch.is_grad_enabled() and (any(self.differentiable) or any(t.requires_grad for t in tensors))

    def autocast(self) -> torch.autocast:
        """Autocast as it was at the capture."""
        cast = self._modes[0]
        return torch.autocast(self.tensors[0].device.type, dtype=cast or None, enabled=bool(cast))

    def _modes_now(self) -> tuple[Any, ...]:
        kind = self.tensors[0].device.type
        cast = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
        return cast, [part.training for part in self._have_modes]

    def allocate(self, largest: int) -> int:
        """Memory that calls of sizes up to ``largest`` share; bytes."""
        shared = [self.inputs, self.results, *([self.found] if self.gradients else [])]
        allocated = sum(tensors.allocate(largest) for tensors in shared)
        for tensor, pad in zip(self.inputs.views(largest), self.pads, strict=True):
            tensor.fill_(pad)  # indices among them must be valid ones in a capture
        return allocated

    @property
    def runs(self) -> list[Run]:
        """The functions that are captured for each bucket. They hold no reference to this object: a pool keeps them."""
        call = functools.partial(_called, self.fn, self._form, self._others)
        forward = functools.partial(runs.forward, call, self.results)
        if not self.gradients:
            return [forward]
        memory = (self.inputs, self.results, self.found)
        of_these = (self.weights, self.wanted, self.differentiable)
        return [forward, functools.partial(runs.gradients, call, *of_these, memory)]


def _called(fn: Callable[..., Any], form: Any, leaves: Sequence[Any], *tensors: Tensor) -> Any:
    args, kwargs = with_tensors(leaves, tensors, form)
    return fn(*args, **kwargs)
