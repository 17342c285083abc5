"""What may keep an artifact from standing for a module of a script, and how a module changes while the script runs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from weakref import ref

import torch
from torch import nn
from typing_extensions import Self

from togi.program.kept import Held, changed, held_by
from togi.subject.identity import settings_hash
from togi.torch_internals.autograd import version_of
from togi.torch_internals.modules import forward_hook_counts, has_own_call, runs_compiled

TRAINED = "its weights change or get gradients while the script runs: it is trained, so it is left as it is"


def inner_of(module: nn.Module) -> nn.Module:
    """The module inside the wrappers of data parallelism, which are ways to run a module."""
    while isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        module = module.module
    return module


def left_alone(module: nn.Module) -> str:
    """Why the original has to run, whatever it is called with; empty if nothing is in the way."""
    artifacts = sys.modules.get("togi.artifact.optimized")  # importing it takes long, and who has none did not
    if artifacts is not None and isinstance(module, artifacts.OptimizedModule):
        return "it is an artifact of togi already"
    if has_own_call(module):
        return "its class has a __call__ of its own, which would be called once more round an engine"
    for name, part in module.named_modules():
        place = f"'{name}' of it" if name else "it"
        if runs_compiled(part):
            return f"{place} is compiled by the script (torch.compile): take that out to let togi choose"
        if any(forward_hook_counts(part)):
            return f"{place} has forward hooks, which engines do not call: remove them if the answers do not need them"
        if "forward" in vars(part) and not isinstance(part, torch.jit.ScriptModule):
            return f"the forward of {place} was replaced by the script or a library, which engines would not call"
    return ""


@dataclass(frozen=True)
class ModuleCondition:
    """A module at one moment: the hash of its plain attributes, and how often its tensors have been written."""

    settings: str
    written: dict[str, tuple[int, int]]
    """Of each weight, by name: its identity, and how often it was written."""
    held: Held
    """By weak references. All to one tensor are the same object, and none is that of a later tensor in its place."""
    has_gradients: bool

    @classmethod
    def of(cls, module: nn.Module) -> Self:
        written = {name: (id(weight), _writes(weight)) for name, weight in module.named_parameters()}
        has_gradients = any(weight.grad is not None for weight in module.parameters())
        held = {name: [(ref(tensor), writes) for tensor, writes in each] for name, each in held_by(module).items()}
        return cls(settings_hash(module), written, held, has_gradients)

    def changed_since(self, before: ModuleCondition) -> str:
        """The first change that keeps an artifact from standing for the module, as a clause."""
        if self.written != before.written or self.has_gradients:
            return TRAINED
        if names := changed(before.held, self.held):
            return f"it keeps '{names[0]}' from call to call, which an engine would not"
        if self.settings != before.settings:
            return "its plain attributes change from call to call, which an engine would not do"
        return ""


def _writes(weight: nn.Parameter) -> int:
    return -1 if weight.is_inference() else version_of(weight)
