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
            _raise_timeout_in(thread)
            wait_s = _AGAIN_S

    watching = threading.Thread(target=interrupt, daemon=True)
    watching.start()
    try:
        yield
    finally:
        try:
            _end(watching, over)
        except TimeoutError:  # raised on the way there, and not again for a while
            _end(watching, over)


def _end(watching: threading.Thread, over: threading.Event) -> None:
    """What was raised a moment ago arrives here, and is left out. It is not taken back: with none in its place CPython
    3.11 and 3.12 go on looking for one at each call, and 3.11 for ever as soon as somebody profiles or traces."""
    while True:
        try:
            over.set()
            watching.join()
            for _ in range(2):  # Python looks where a loop goes back
                pass
            return
        except TimeoutError:
            continue


def _raise_timeout_in(thread: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(TimeoutError))
