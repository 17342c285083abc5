"""Shows a record when it is printed, or is the last line of a notebook's cell.

Records say nothing of their looks. ``togi.render.display`` registers functions for those that people meet; any other is
shown as its fields.
"""

from __future__ import annotations

import functools
from typing import Any


@functools.singledispatch
def as_text(_record: Any) -> str | None:
    """Text for a terminal, or None where nothing is registered."""
    return None


@functools.singledispatch
def as_html(_record: Any) -> str | None:
    """HTML for a notebook, or None where nothing is registered."""
    return None
