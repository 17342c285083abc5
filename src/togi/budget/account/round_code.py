"""``with togi.memory() as watched:`` round any code."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from torch import nn

from togi.budget.account.make import close_account
from togi.budget.account.record import Account
from togi.budget.account.watch import Watch
from togi.errors import TogiError


class Watched:
    """A context manager. ``account`` says afterwards where the memory of the code in it went.

    What was there before is known only where ``module`` is given: its parameters and buffers are then counted and
    named. Everything else that existed is left out, also where the code frees it.
    """

    def __init__(self, module: nn.Module | None = None, *, device: str = "cpu") -> None:
        self._watch = Watch(module, device=device)
        self._account: Account | None = None
        if module is not None:
            self._watch.enter_module(module)

    @property
    def account(self) -> Account:
        """Raises TogiError before the end of the ``with`` block, and after one that raised."""
        if self._account is None:
            raise TogiError("there is no account yet: read it after the end of the with block, which must not raise")
        return self._account

    def __enter__(self) -> Self:
        self._watch.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.__exit__(kind, error, trace)
        if error is None:
            self._account = close_account(self._watch)
