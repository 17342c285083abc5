"""Switches of torch's backends, set for a call and put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def switched_on(backend: Any, name: str) -> Iterator[None]:
    """Switch it on for the block; afterwards it is what it was."""
    before = getattr(backend, name)
    setattr(backend, name, True)
    try:
        yield
    finally:
        setattr(backend, name, before)
