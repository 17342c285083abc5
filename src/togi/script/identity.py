"""The identity of a module from one run of a script to the next: its code, its plain attributes, its weights."""

from __future__ import annotations

from torch import nn

from togi.artifact.weights import weights_hash
from togi.script.records import ModuleIdentity


def identity_of(module: nn.Module, settings: str, code: str) -> ModuleIdentity:
    """``settings``, ``code``: hashes of it as it was before its first call (``subject/identity``)."""
    return ModuleIdentity(module=type(module).__name__, settings=settings, code=code, weights=weights_hash(module))
