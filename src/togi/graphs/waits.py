"""Code that waits for the device, found before a capture: within one it breaks the capture, and more than that."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

_SAYS = "called a synchronizing CUDA operation"
"""In the words of torch's debug mode (c10/cuda/CUDAFunctions.cpp)."""


class Waits(RuntimeError):
    """The function waits for the device; its traceback ends at the line."""


def refuse_waits(run: Callable[[], object]) -> None:
    """Run it; raise Waits if this thread waits for the device in it, also once it believes that it is being captured.

    Models ask for that (transformers reads a mask's values only outside of a capture), so the second run decides.
    """
    try:
        with _waits_raise():
            run()
    except Waits:
        with _told_of_a_capture(), _waits_raise():
            run()


@contextmanager
def _waits_raise() -> Iterator[None]:
    """Torch's debug mode counts for all threads, which may wait as they like. So it warns, and only the warnings of
    this thread are made errors."""
    thread, before, showwarning = threading.get_ident(), torch.cuda.get_sync_debug_mode(), warnings.showwarning

    def show(message: Warning | str, *where: Any, **more: Any) -> None:
        if _SAYS in str(message) and thread == threading.get_ident() and not ended:
            raise Waits(f"it waits for the device ({_SAYS})")
        if _SAYS not in str(message) or before:
            showwarning(message, *where, **more)

    ended = False
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=f".*{_SAYS}")
        warnings.showwarning = show
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
            ended = True  # another thread's catch_warnings may put this function back later


@contextmanager
def _told_of_a_capture() -> Iterator[None]:
    thread, is_capturing = threading.get_ident(), torch.cuda.is_current_stream_capturing

    def capturing() -> bool:
        return thread == threading.get_ident() or is_capturing()

    with patch.object(torch.cuda, "is_current_stream_capturing", capturing):
        yield
