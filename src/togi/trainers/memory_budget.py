"""Plans the memory of a training before its first step, keeps the plan on the model, and says what it cost."""

from __future__ import annotations

import itertools
import random
import statistics
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from togi.core.errors import FitError
from togi.core.printable import printable
from togi.core.quantities import a_type, milliseconds, parse_duration, parse_size, plural, size
from togi.footprint.fit.plan import NO_AUTOCAST, Plan
from togi.footprint.fit.result import FitResult
from togi.footprint.requests import FitRequest
from togi.subject.behaviour import cuda_devices
from togi.subject.inputs import Inputs
from togi.subject.optimizers import unwrapped
from togi.torch_internals.tensors import tensors_of
from togi.worker.footprint_calls import FIT
from togi.worker.hand_over import handed_over

LOOKED_AT = 8
"""Batches of which the largest is planned: the memory of a step goes by its batch."""
_TIMED = 1000
"""The latest steps, whose median a line on the screen reports."""
_OPTIMIZERS = {torch.optim.AdamW: "adamw", torch.optim.Adam: "adam"}
_plans: weakref.WeakKeyDictionary[nn.Module, Plan] = weakref.WeakKeyDictionary()
"""Those that budgets have put on modules."""


class MemoryBudget:
    """The budget of one training."""

    def __init__(self, memory: int | str, plan: str | Path | None, time_limit_s: float | str | None) -> None:
        self.memory_bytes = parse_size(memory, "memory")
        self.plan_file = None if plan is None else Path(plan)
        self.time_limit_s = None if time_limit_s is None else parse_duration(time_limit_s, "time_limit_s")
        self.result: FitResult | None = None
        """Of the planning; None where the plan was read from its file."""
        self.plan: Plan | None = None
        self._module: nn.Module | None = None
        self._began: Any = None
        self._times: deque[tuple[Any, Any]] = deque(maxlen=_TIMED)
        """When steps began and ended (``_now``)."""
        self._steps = 0

    def begin(
        self,
        module: nn.Module,
        batch: Callable[[], Any],
        step: Callable[[nn.Module, Any], Tensor],
        *,
        optimizer: Callable[[], str],
        autocast: str | None,
        accumulates: bool,
        remedy: str,
    ) -> None:
        """Put a plan on the module: the file's, else one that is made now, from ``batch()`` and for ``optimizer()``.

        Args:
            autocast: the dtype that the trainer's autocast computes in, None without one. It decides what is saved.

        Raises:
            FitError: nothing fits; ``remedy`` says what does. Or the file's plan is for something else than this
                training.
        """
        self.end()  # of a training that was interrupted: some trainers tell no callback of that
        _take_away(module, _plans.get(module))  # of another callback's
        self._times.clear()
        self._steps, self._began = 0, None
        if self.plan_file is not None and self.plan_file.exists():
            left_bytes = self.memory_bytes - _kept_bytes(module, accumulates)
            self.plan = _read(self.plan_file, autocast or NO_AUTOCAST, left_bytes)
            say(f"{self.plan} (read from {self.plan_file})")
        else:
            plan = self._planned(module, batch(), step, optimizer(), accumulates, remedy)
            self.plan = plan.model_copy(update={"autocast": autocast or NO_AUTOCAST})
            if self.plan_file is not None:
                self.plan.save(self.plan_file)
        self.plan.apply(module)
        _plans[module] = self.plan
        self._module = module

    def _planned(
        self, module: nn.Module, batch: Any, step: Any, optimizer: str, accumulates: bool, remedy: str
    ) -> Plan:
        kept_bytes = _kept_bytes(module, accumulates)
        device = str(next(module.parameters()).device)
        request = FitRequest(
            train=True,
            optimizer=optimizer,
            device=device,
            budget_bytes=max(1, self.memory_bytes - kept_bytes),
            time_limit_s=self.time_limit_s,
        )
        with handed_over(module, batch, {"step": step}) as (ref, name):
            self.result = FIT(ref, request, device=device, on_phase=say, on_wait=say)
        if not self.result.fits:
            raise FitError(
                f"a training step of {name} does not fit {size(self.memory_bytes)}: the least that was found is "
                f"{size(self.result.chosen.peak_bytes + kept_bytes)}. {remedy}"
            )
        say(str(self.result))
        return self.result.plan.model_copy(update={"subject": name})

    def step_begins(self) -> None:
        self._began = self._now()

    def step_ends(self) -> None:
        if self._began is not None:
            self._times.append((self._began, self._now()))
            self._steps += 1
            self._began = None

    def _now(self) -> Any:
        """This moment. On a GPU the host only starts what a step takes, and nobody is to wait for it: there it is an
        event among what the device has to do."""
        device = None if self._module is None else next(self._module.parameters()).device
        if device is None or device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        return event

    def end(self) -> None:
        """Take the plan away, and say what steps took under it."""
        if self.plan is None or self._module is None:
            return
        _take_away(self._module, self.plan)
        self._module = None
        if self._times and self.plan.policies:
            with suppress(RuntimeError):  # of a device that has failed: what ended the training tells more
                took = milliseconds(self.step_ms)
                say(f"{plural(self._steps, 'step')} under the plan took {took} in the median")

    @property
    def step_ms(self) -> float:
        """The median of the latest steps."""
        return statistics.median(_ms_between(began, ended) for began, ended in self._times)


def say(text: str) -> None:
    """To whoever watches the training."""
    print(printable(f"togi: {text}"), file=sys.stderr)


def _take_away(module: nn.Module, plan: Plan | None) -> None:
    """The plan, where it is still the one that a budget put on the module."""
    if plan is not None and _plans.get(module) is plan:
        plan.remove(module)
        del _plans[module]


def _ms_between(began: Any, ended: Any) -> float:
    """Of two moments of ``MemoryBudget._now``."""
    if isinstance(began, float):
        return (float(ended) - began) * 1e3
    ended.synchronize()
    return float(began.elapsed_time(ended))


def _kept_bytes(module: nn.Module, accumulates: bool) -> int:
    """Gradients of the micro-steps before, which are there while a planned step begins without any."""
    return sum(p.nbytes for p in module.parameters() if p.requires_grad) if accumulates else 0


def _read(file: Path, autocast: str, left_bytes: int) -> Plan:
    plan = Plan.load(file)
    another = "Delete the file, or name another one, to have a plan made"
    if plan.chunks:
        raise FitError(f"the plan in {file} slices an inference pass, and this is a training. {another}")
    if plan.micro_batches > 1:
        raise FitError(
            f"the plan in {file} runs a batch in {plan.micro_batches} micro-batches, which a trainer's loop does not. "
            f"Give the trainer batches {plan.micro_batches} times as small and as many steps of gradient accumulation. "
            f"{another}"
        )
    if plan.peak_bytes is not None and plan.peak_bytes > left_bytes:
        raise FitError(
            f"the plan in {file} takes {size(plan.peak_bytes)}, and this training may take "
            f"{size(max(0, left_bytes))}: it was made for another limit. {another}"
        )
    if plan.autocast not in ("", autocast):
        raise FitError(
            f"the plan in {file} was made with autocast {plan.autocast}, and this training runs with autocast "
            f"{autocast}: a step saves other tensors, so neither the plan nor its figures hold. Delete the file, or "
            "name another one, to have a plan made, or train in the precision of the plan"
        )
    return plan


def largest_batch(loader: Any) -> Any:
    """The largest of the first batches, made from the dataset itself: the loader's sampler and its workers do not move,
    and random states are afterwards what they were, so the training sees its data in the same order.

    Raises:
        FitError: it is not a loader that has a dataset and a batch size.
    """
    dataset, collate = getattr(loader, "dataset", None), getattr(loader, "collate_fn", None)
    rows = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    if dataset is None or collate is None or not rows:
        raise FitError(
            f"no batch can be taken from {a_type(loader)}: give sample=..., a batch as the training gives it to the "
            "model"
        )
    with _random_states_kept():
        batches = itertools.islice(_batches(dataset, collate, int(rows)), LOOKED_AT)
        return max(batches, key=lambda batch: sum(tensor.nbytes for tensor in tensors_of(batch)))


def _batches(dataset: Any, collate: Callable[[list[Any]], Any], rows: int) -> Iterator[Any]:
    streams = isinstance(dataset, IterableDataset)  # it may have a length, and inherits a __getitem__ that raises
    in_order = not streams and hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    items = map(dataset.__getitem__, range(len(dataset))) if in_order else iter(dataset)
    first = True
    while (batch := list(itertools.islice(items, rows))) and (first or len(batch) == rows):
        first = False
        yield collate(batch)


@contextmanager
def _random_states_kept() -> Iterator[None]:
    """Of torch, ``random`` and numpy, which a dataset may draw from."""
    numpy = sys.modules.get("numpy")
    python_state, numpy_state = random.getstate(), numpy.random.get_state() if numpy is not None else None
    with torch.random.fork_rng(cuda_devices()):
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy is not None:
                numpy.random.set_state(numpy_state)


def optimizer_name(optimizer: Any, remedy: str) -> str:
    """The optimizer whose state counts, by the name that ``togi fit`` has for it.

    Raises:
        FitError: it is another one; ``remedy`` says what to do.
    """
    inner = unwrapped(optimizer)
    amsgrad = any(group.get("amsgrad") for group in getattr(inner, "param_groups", ()))  # one state more
    if type(inner) in _OPTIMIZERS and not amsgrad:
        return _OPTIMIZERS[type(inner)]
    if type(inner) is torch.optim.SGD:
        return "momentum" if any(group["momentum"] for group in inner.param_groups) else "sgd"
    name = f"{type(inner).__name__}{' with amsgrad' if amsgrad else ''}"
    raise FitError(f"the memory that {name} keeps for its state is not known. {remedy}")


def on_device_of(module: nn.Module, batch: Any) -> Inputs:
    """The batch as the arguments of a call, where the module is."""
    return Inputs.of(batch).to(next(module.parameters()).device)
