"""Accounts of a step, and of any code in a ``with`` block: the run is watched, then accounted for."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from types import TracebackType

from torch import nn
from typing_extensions import Self

from togi.core.errors import TogiError
from togi.core.quantities import size
from togi.footprint.account.allocator_events import rise_bytes
from togi.footprint.account.make import account_from
from togi.footprint.account.record import Account, Category
from togi.footprint.account.watch import AccountWatch
from togi.footprint.step import Step, step_ms
from togi.subject.remembered import second_run
from togi.torch_internals.profiler import profiler_records

_ONE_AT_A_TIME = threading.Lock()
"""PyTorch's profiler is one per process."""


_WATCHING_SHOWS = 0.005


def account_of(step: Step, *, device: str = "cpu") -> Account:
    """Run the step four times: to warm up (which makes the optimizer's state), for the time, watched, and for its peak
    while it is not watched."""
    step.run()
    gc.collect()
    with second_run(step.module):
        plain_ms = step_ms(step)
    watch = AccountWatch(step.module, device=device)
    watch.add_module(step.module)
    watch.add_existing(step.sample.tensors(), Category.INPUT)
    if step.optimizer is not None:
        watch.add_optimizer(step.optimizer, step.module)
    watch.count_unowned()
    with watch:
        step.run()
    account = account_from(watch)
    trained = sum(p.nbytes for p in step.module.parameters() if p.requires_grad) if step.train else 0
    return account.model_copy(
        update={
            "train": step.train,
            "plain_ms": plain_ms,
            "minimum_bytes": account.minimum_bytes + trained,
            "notes": (*step.notes, *account.notes, *_note_of_watching(step, account)),
        }
    )


def _note_of_watching(step: Step, account: Account) -> Iterator[str]:
    """Autograd adds into a tensor's own memory where nobody else holds it, and whoever watches holds it."""
    rise = rise_bytes(step.run, account.device)
    plain_bytes = account.baseline_bytes + (rise or 0)
    if rise is not None and account.peak_bytes > plain_bytes * (1 + _WATCHING_SHOWS):
        yield (
            f"While it is not watched, the step peaks at {size(plain_bytes)}: the account is of the watched one, which "
            f"takes {size(account.peak_bytes - plain_bytes)} more, since torch reuses less memory then."
        )


class Watched:
    """A context manager round any code: ``with togi.memory() as watched:``. ``account`` says afterwards where the
    memory of the code in it went.

    What was there before is known only where ``module`` is given: its parameters and buffers are then counted and
    named. Everything else that existed is left out, also where the code frees it.
    """

    def __init__(self, module: nn.Module | None = None, *, device: str = "cpu") -> None:
        self._watch = AccountWatch(module, device=device)
        self._account: Account | None = None
        self._why_none = "there is no account yet: read it after the end of the with block, which must not raise"
        if module is not None:
            self._watch.add_module(module)

    @property
    def account(self) -> Account:
        """Raises TogiError before the end of the ``with`` block, after one that raised, and where nothing was seen."""
        if self._account is None:
            raise TogiError(self._why_none)
        return self._account

    def __enter__(self) -> Self:
        """Raises TogiError where the process is being profiled already, by another ``togi.memory()`` for instance."""
        if profiler_records() or not _ONE_AT_A_TIME.acquire(blocking=False):
            raise TogiError(
                "a profiler is running already (another togi.memory() or torch.profiler), and PyTorch allows one at a "
                "time: nothing of this block would be seen. Put the blocks one after the other"
            )
        try:
            self._watch.__enter__()
        except BaseException:
            _ONE_AT_A_TIME.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._watch.__exit__(kind, error, trace)
        except TogiError as nothing_seen:  # the watched code did nothing wrong: told to who asks for the account
            self._why_none = str(nothing_seen)
            return
        finally:
            _ONE_AT_A_TIME.release()
        if error is None:
            self._account = account_from(self._watch)
