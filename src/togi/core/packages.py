"""Installed distributions."""

from __future__ import annotations


def installed(distribution: str) -> str | None:
    """The version of a distribution; None where it is not installed."""
    import importlib.metadata  # here, since it takes longer to import than ``import togi``

    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
