"""Interrupts foreign code in this process, as far as Python can."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_AGAIN_S = 1.0
"""Code that catches the exception and goes on gets it once more."""


@contextmanager
def interrupted_after(limit_s: float) -> Iterator[None]:
    """Raise TimeoutError inside of the block once it has taken so long, in whatever thread it runs.

    Python raises it between two instructions: what waits or computes in C for ever is not interrupted. No signal is
    used, since a library may have taken away the stack on which handlers run, and the process would end.
    """
    thread, over = threading.get_ident(), threading.Event()

    def interrupt() -> None:
        wait_s = limit_s
        while not over.wait(wait_s):
            _raise_in(thread, ctypes.py_object(TimeoutError))
            wait_s = _AGAIN_S

    watching = threading.Thread(target=interrupt, daemon=True)
    watching.start()
    try:
        yield
    finally:
        while watching.is_alive():
            try:
                over.set()
                watching.join()
            except TimeoutError:  # raised a moment ago
                continue
        _raise_in(thread, None)


def _raise_in(thread: int, kind: ctypes.py_object[type[BaseException]] | None) -> None:
    """Raise it in a thread; None takes back what was not raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), kind)
