"""The version of togi, which comes from the tag that it was built at and rests in the installed package's metadata."""

from __future__ import annotations

import functools


@functools.cache
def version() -> str:
    """Read when it is asked for: the reader takes longer to import than ``import togi``.

    ``0+unknown`` where the sources run without having been installed.
    """
    import importlib.metadata

    try:
        return importlib.metadata.version("togi")
    except importlib.metadata.PackageNotFoundError:
        return "0+unknown"
