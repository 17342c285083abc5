"""Switches of torch's backends, set for a call and put back."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from togi.graph.candidate import Context


@contextmanager
def switched_on(backend: Any, name: str) -> Iterator[None]:
    """Switch it on for the block; afterwards it is what it was."""
    before = getattr(backend, name)
    setattr(backend, name, True)
    try:
        yield
    finally:
        setattr(backend, name, before)


class ProcessWide:
    """A context that sets something for the whole process, for calls that overlap in threads.

    All contexts of one ``setting`` share a record: the newest call that still runs decides the value, and the last
    call puts back what was there before the first. A context by itself would put back what another call had set.

    Args:
        context: sets it and puts it back.
        setting: names what is set, the same for all that set it.
        value: that it is set to; calls of the same value change nothing.
    """

    def __init__(self, context: Context, *, setting: str, value: Hashable = True) -> None:
        self.context, self.value = context, value
        self._record = _records[setting]

    @contextmanager
    def __call__(self) -> Iterator[None]:
        record, call = self._record, _Call(self)
        record.begin(call)
        try:
            yield
        finally:
            record.end(call)


class _Call:
    """One call that runs under a setting; another call of the same program is another one."""

    def __init__(self, wanted: ProcessWide) -> None:
        self.wanted = wanted


class _SettingRecord:
    """The calls that run under one setting, the newest last. Of their contexts one is entered at any time, so what it
    puts back is the value from before all of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[_Call] = []
        self._set: tuple[Hashable, ExitStack] | None = None

    def begin(self, call: _Call) -> None:
        with self._lock:
            self._calls.append(call)
            try:
                self._follow_the_newest()
            except BaseException:
                self._calls.remove(call)
                self._follow_the_newest()
                raise

    def end(self, call: _Call) -> None:
        with self._lock:
            self._calls.remove(call)
            self._follow_the_newest()

    def _follow_the_newest(self) -> None:
        newest = self._calls[-1].wanted if self._calls else None
        if self._set is not None and (newest is None or newest.value != self._set[0]):
            (_, entered), self._set = self._set, None
            entered.close()
        if newest is not None and self._set is None:
            entered = ExitStack()
            entered.enter_context(newest.context())
            self._set = newest.value, entered


_records: defaultdict[str, _SettingRecord] = defaultdict(_SettingRecord)
