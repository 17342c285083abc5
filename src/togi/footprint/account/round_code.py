"""``with togi.memory() as watched:`` round any code."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from torch import nn
from torch._C._autograd import _profiler_enabled

from togi.core.errors import TogiError
from togi.footprint.account.make import close_account
from togi.footprint.account.record import Account
from togi.footprint.account.watch import Watch

_ONE_AT_A_TIME = threading.Lock()
"""PyTorch's profiler is one per process."""


class Watched:
    """A context manager. ``account`` says afterwards where the memory of the code in it went.

    What was there before is known only where ``module`` is given: its parameters and buffers are then counted and
    named. Everything else that existed is left out, also where the code frees it.
    """

    def __init__(self, module: nn.Module | None = None, *, device: str = "cpu") -> None:
        self._watch = Watch(module, device=device)
        self._account: Account | None = None
        self._why_none = "there is no account yet: read it after the end of the with block, which must not raise"
        if module is not None:
            self._watch.enter_module(module)

    @property
    def account(self) -> Account:
        """Raises TogiError before the end of the ``with`` block, after one that raised, and where nothing was seen."""
        if self._account is None:
            raise TogiError(self._why_none)
        return self._account

    def __enter__(self) -> Self:
        """Raises TogiError where the process is being profiled already, by another ``togi.memory()`` for instance."""
        if _profiler_enabled() or not _ONE_AT_A_TIME.acquire(blocking=False):
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
            self._account = close_account(self._watch)
