"""Runs a step on fake tensors and records it: what lived when, and each operation with its arguments."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from togi.core.errors import SubjectError
from togi.core.quantities import first_line
from togi.footprint.account.record import BEFORE_THE_RUN, Category, PeakMoment
from togi.footprint.prediction.compiled import compilation_notes, compiled, where_in
from togi.footprint.prediction.operation_call import OperationCall, OtherSpec, TensorSpec, spec_of
from togi.footprint.step import Step, fake_step
from togi.footprint.storage_tracker import StorageLifetime, StorageTracker, category_of
from togi.subject.remembered import second_run
from togi.torch_internals.autograd import current_node
from togi.torch_internals.layouts import is_one_storage
from togi.torch_internals.modules import ModuleTracker
from togi.torch_internals.tensors import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    tensors_of,
    tree_map_only,
)

FixResults = Callable[[Any, Any, Any, Any], Any]
"""(operation, args, kwargs, results) -> results."""
ReplaceArguments = Callable[[Any, Sequence[Any], dict[str, Any]], tuple[Sequence[Any], dict[str, Any]]]
"""(operation, args, kwargs) -> (args, kwargs)."""


def as_they_are(_func: Any, _args: Any, _kwargs: Any, results: Any) -> Any:
    """The results, unchanged."""
    return results


@dataclass
class RunRecorder(StorageTracker):
    """A storage tracker that also keeps the calls, in order with what they allocate and release."""

    calls: list[OperationCall] = field(default_factory=list)
    events: list[tuple[int, StorageLifetime | OperationCall]] = field(default_factory=list)
    """(1, lifetime) is allocated, (-1, lifetime) is released, (0, call) begins."""
    fix_results: FixResults = as_they_are
    """Replaces results whose size the fake kernel does not know."""
    replace_arguments: ReplaceArguments | None = None
    """Replaces what an operation is given, before anything is recorded."""
    backward_at: int | None = None

    def operation(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if self.backward_at is None and current_node() is not None:
            self.backward_at = self.operations
        if self.replace_arguments is not None:
            args, kwargs = self.replace_arguments(operator, args, kwargs)
        grad_enabled = torch.is_grad_enabled()
        before, place, number = self.current_bytes, len(self.events), self.operations
        specs = tree_map_only(Tensor, self._spec, (args, kwargs))
        results = self._fixed(operator, args, kwargs, super().operation(operator, args, kwargs))
        if self.operations == number:  # the tracker counts no question, such as for the device
            return results
        allocated = [event for sign, event in self.events[place:] if sign == 1]
        made_bytes = sum(event.bytes for event in allocated if isinstance(event, StorageLifetime))
        call = OperationCall(self.operations, operator, specs, before, made_bytes, self._now, grad_enabled)
        self.calls.append(call)
        self.events.insert(place, (0, call))
        return results

    def _storages(self, tensor: Tensor) -> list[torch.UntypedStorage]:
        storages = super()._storages(tensor)
        if (
            tensor.layout is not torch.strided
            and isinstance(tensor, FakeTensor)
            and not (storages and storages[-1].nbytes())
        ):
            self.uncounted[f"{tensor.layout} (a run without values cannot know how many they hold)"] = None
        return storages

    def _spec(self, tensor: Tensor) -> TensorSpec | OtherSpec:
        if is_one_storage(tensor):
            return spec_of(tensor)
        held = sum(storage.nbytes() for storage in self._storages(tensor))
        return OtherSpec(f"{type(tensor).__name__} {tensor.layout}", tuple(tensor.shape), held)

    def _fixed(self, func: Any, args: Any, kwargs: Any, results: Any) -> Any:
        fixed = self.fix_results(func, args, kwargs, results)
        if fixed is not results:
            for tensor in tensors_of(fixed):
                self._track(tensor, op=str(func), where=self._now)
        return fixed

    def _begin(self, lifetime: StorageLifetime, storage: Any) -> None:
        super()._begin(lifetime, storage)
        if self._counts(lifetime):
            self.events.append((1, lifetime))

    def _end(self, key: int, lifetime: StorageLifetime) -> None:
        living = lifetime.died is None and self._counts(lifetime)
        super()._end(key, lifetime)
        if living:
            self.events.append((-1, lifetime))


class _CompiledRunRecorder(RunRecorder):
    """Dynamo runs nothing compiled under a mode that does not allow it."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


def record(
    step: Step,
    *,
    batch: int | None = None,
    fix_results: FixResults = as_they_are,
    around: AbstractContextManager[Any] | None = None,
    foreach: bool | None = None,
    first: bool = False,
    compile: bool = False,
    notes: list[str] | None = None,
) -> RunRecorder:
    """The step run on fake tensors: once to make the optimizer's state, then recorded.

    Args:
        around: a context manager that replaces what another device does differently.
        first: the first run is recorded too, before the other.
        compile: by ``torch.compile``, with kernels that do nothing; ``notes`` hears if that made several graphs.
    """
    # all sizes are known; the environment is for jagged tensors alone, whose ragged size is a symbol
    sizes = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=sizes, static_shapes=True)
    try:
        fake = fake_step(step, mode, batch=batch, foreach=foreach)
        modules = ModuleTracker(fake.module, root=type(fake.module).__name__)
        with ExitStack() as stack:
            recorder = _recorder(modules, fix_results, compile)
            if compile:
                stack.enter_context(compiled(fake.module))
            stack.enter_context(mode)
            if around is not None:
                stack.enter_context(around)
            if first:
                recorder.add_step(fake)
                with modules.following(), recorder:
                    fake.run()
                gc.collect()
                _second_begins(recorder, fake)
            else:
                fake.run()
                gc.collect()
                recorder.add_step(fake)
            with second_run(fake.module):
                _run_recorded(fake, recorder, modules, stack)
            if not recorder.calls:
                raise SubjectError(
                    "it runs no operation of torch, so it needs no memory beyond its inputs and there is nothing to "
                    "predict. Is it the module that was meant?"
                )
            if compile and notes is not None:
                notes += compilation_notes()
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise SubjectError(
            f"the run depends on values ({first_line(error)}), which a run without values cannot know: no prediction "
            "is possible. Without --predict the model is run and accounted for."
        ) from error
    return recorder


def _recorder(modules: ModuleTracker, fix_results: FixResults, compile: bool) -> RunRecorder:
    if not compile:
        return RunRecorder(where=modules.now, fix_results=fix_results)
    return _CompiledRunRecorder(where=lambda: where_in(modules.now, sys._getframe(1)), fix_results=fix_results)


def _second_begins(recorder: RunRecorder, step: Step) -> None:
    """The peak that is explained is the second run's: the optimizer has its state."""
    recorder.peak_bytes, recorder.peak_at = recorder.current_bytes, recorder.operations
    recorder.categorise(step.optimizer_state(), Category.OPTIMIZER)


def _run_recorded(step: Step, recorder: RunRecorder, modules: ModuleTracker, stack: ExitStack) -> None:
    recorder.backward_at = None
    for parameter in step.module.parameters():
        if parameter.requires_grad:
            handle = parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda p: recorder.categorise([p.grad] if p.grad is not None else [], Category.GRADIENT)
            )
            stack.callback(handle.remove)
    # module hooks would be compiled with the module
    stack.enter_context(modules.following(module_hooks=not isinstance(recorder, _CompiledRunRecorder)))
    with recorder:
        step.run()


def baseline_bytes(recorder: RunRecorder) -> int:
    """Parameters, buffers, inputs and the optimizer's state."""
    return sum(lifetime.bytes for lifetime in recorder.lifetimes if lifetime.category in BEFORE_THE_RUN)


def moment_of(call: OperationCall, recorder: RunRecorder) -> PeakMoment:
    share = call.number / max(1, recorder.operations)
    where = call.where
    return PeakMoment(op=str(call.func), module=where.module, line=where.line, phase=where.phase, share_of_run=share)


def by_category(recorder: RunRecorder, call: OperationCall, peak_bytes: int) -> dict[Category, int]:
    """The bytes that were alive during ``call``; the rest of the peak is the kernel's workspace."""
    sums: dict[Category, int] = {}
    for lifetime in recorder.lifetimes:
        if lifetime.bytes and _alive_during(lifetime, call):
            category = category_of(lifetime, recorder.backward_at)
            sums[category] = sums.get(category, 0) + lifetime.bytes
    sums[Category.WORKSPACE] = peak_bytes - sum(sums.values())
    return dict(sorted(((c, n) for c, n in sums.items() if n), key=lambda item: -item[1]))


def _alive_during(lifetime: StorageLifetime, call: OperationCall) -> bool:
    if lifetime.born == call.number:
        return bool(lifetime.op) or call.number == 0
    return lifetime.alive_at(call.number)
