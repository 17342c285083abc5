"""The version of togi, which comes from the tag that it was built at and rests in the installed package's metadata."""

from __future__ import annotations

import functools

from togi.core.packages import installed


@functools.cache
def version() -> str:
    """``0+unknown`` where the sources run without having been installed."""
    return installed("togi") or "0+unknown"
