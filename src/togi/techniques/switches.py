"""Switches of torch's backends, set for a call and put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def switched_on(backend: Any, name: str) -> Iterator[None]:
    """For the block; afterwards the switch is what it was."""
    before = getattr(backend, name)
    setattr(backend, name, True)
    try:
        yield
    finally:
        setattr(backend, name, before)
