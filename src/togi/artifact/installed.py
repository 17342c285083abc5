"""The tuned parts of a program at work: how they are put into the live program and taken out again."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from typing_extensions import Self

from togi.artifact.part_engine import PartEngine
from togi.artifact.settings import changed_setting
from togi.artifact.switch import Switch
from togi.artifact.weights import weights_hash
from togi.core.errors import ArtifactError, TogiError
from togi.subject.nested import tensors_in
from togi.subject.program import ProgramModule, reachable_modules

_AT_WORK: weakref.WeakSet[Installed] = weakref.WeakSet()
"""All that was put in and not taken out. A switch holds its own, so each lives as long as the modules that it is in."""


class Installed:
    """Parts at work in a live program. As a context manager it takes them out at the end."""

    def __init__(self, program: nn.Module, switches: Sequence[Switch]) -> None:
        self.program = program
        self.switches = tuple(switches)
        self._before = [vars(switch.module).get("forward") for switch in switches]
        warned: set[str] = set()
        for switch in switches:
            switch.told, switch.installed = warned, self
            vars(switch.module)["forward"] = switch
        if len(switches) > 1:  # one may be inside of another, which meets it there from now on
            for switch in switches:
                switch.watch_again()
        _AT_WORK.add(self)

    @property
    def counts(self) -> dict[str, tuple[int, int]]:
        """By part: calls that its engine served, and calls that the original served."""
        return {switch.path: (switch.engine_calls, switch.original_calls) for switch in self.switches}

    def remove(self) -> None:
        """The originals serve all calls again. Raises TogiError where they were freed."""
        if freed := [switch.path for switch in self.switches if switch.original is None]:
            raise TogiError(
                f"the original of {freed[0]} was freed (keep_originals=False): it cannot be put back. Load the "
                "program anew"
            )
        _AT_WORK.discard(self)
        for switch, before in zip(self.switches, self._before, strict=True):
            if vars(switch.module).get("forward") is not switch:
                switch.retired = True  # below a wrapper that another library put round it since
                continue
            del vars(switch.module)["forward"]
            if before is not None:
                vars(switch.module)["forward"] = before

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Inside, the originals serve all calls."""
        self.remove()
        try:
            yield
        finally:
            _AT_WORK.add(self)
            for switch in self.switches:
                if switch.retired:
                    switch.retired = False
                else:
                    vars(switch.module)["forward"] = switch

    def _leave(self) -> None:
        """In a process that was forked from this one, where an engine hangs: its threads did not come along. The
        originals serve; a call of one that was freed raises TogiError."""
        if all(switch.original is not None for switch in self.switches):
            self.remove()
        else:
            for switch in self.switches:
                switch.retired = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __str__(self) -> str:
        if not self.switches:
            return "the program runs as it is: nothing was faster beyond doubt, so no part is in it"
        served = ", ".join(
            f"{switch.name} {switch.engine_calls} of {switch.engine_calls + switch.original_calls}"
            for switch in self.switches
        )
        return f"calls served by engines: {served}"

    __repr__ = __str__  # what a notebook shows


def _leave_all() -> None:
    for installed in list(_AT_WORK):
        installed._leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all)


def installed_in(program: nn.Module) -> list[Installed]:
    """All that is at work in the modules of ``program``, below wrappers that other libraries put round it, too, and in
    those that it holds besides its own parts (``self.predictor.model``)."""
    modules = {id(module) for reached in reachable_modules(program).values() for module in reached.modules()}
    return [one for one in list(_AT_WORK) if any(id(switch.module) in modules for switch in one.switches)]


def install(
    parts: Sequence[PartEngine], program: Any, *, keep_originals: bool, switch: type[Switch] = Switch
) -> Installed:
    """Put parts into a program. ``switch``: what stands for the ``forward`` of a module.

    Raises ArtifactError when it is not the program that they were proven on (another structure, other weights or other
    settings).
    """
    module = program if isinstance(program, nn.Module) else ProgramModule(program)
    if isinstance(module, ProgramModule):
        module.look_again()
    modules = dict(module.named_modules())
    switches: dict[str, Switch] = {}
    for part in parts:
        path = part.entry.key.path
        if path not in switches:
            switches[path] = _switch(part, modules.get(path), switch)
        switches[path].serve_with(part)
    installed = Installed(module, list(switches.values()))
    if not keep_originals:
        _free(module, installed.switches)
    return installed


def _switch(part: PartEngine, module: nn.Module | None, kind: type[Switch]) -> Switch:
    """For the module of a program where the part should be. Raises ArtifactError where it is not the one that was
    tuned, or has tuned parts already."""
    entry, path = part.entry, part.entry.key.path
    if module is None or type(module).__name__ != entry.module:
        there = "nothing" if module is None else f"a {type(module).__name__}"
        raise ArtifactError(
            f"the program has {there} at '{path}', where the one that was tuned had a {entry.module}: it is another "
            "program, or one that makes its modules in its first call and was not called yet. Tune this one, or call "
            "it once"
        )
    if isinstance(vars(module).get("forward"), Switch):
        raise ArtifactError(f"'{path}' of this program is a tuned part already: call .remove() on it first")
    if weights_hash(module, without=entry.effects.state) != entry.weights:
        raise ArtifactError(
            f"the weights of '{path}' are not those that were tuned: its part would answer for other ones. Tune this "
            "program again"
        )
    if changed := changed_setting(entry.settings, module, entry.effects.state):
        raise ArtifactError(
            f"{changed} of '{path}' is not what it was when it was tuned: its part would answer for that. Put it into "
            "the program that was tuned, or tune this one"
        )
    of_all_forms = part.in_place and entry.key.form is None
    if of_all_forms and any(isinstance(vars(inside).get("forward"), Switch) for inside in module.modules()):
        raise ArtifactError(f"'{path}' of this program has tuned parts inside: call .remove() on them first")
    return kind(module, path, module.forward, entry.effects.state)


def _free(program: nn.Module, switches: Sequence[Switch]) -> None:
    """Give back the memory of the originals' weights, but for those that are used elsewhere. Parts in place run on
    them, originals stand in for an engine, switches read and write the state, and calls reach some modules in another
    way, too."""
    replaced = [each for each in switches if not (each.needs_original or any(form.in_place for form in each.forms))]
    used = {
        tensor.untyped_storage().data_ptr()
        for part in _without(program, {switch.module for switch in replaced})
        for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False))
    }
    states = [switch.state.read() for switch in replaced if switch.state is not None]
    used |= {tensor.untyped_storage().data_ptr() for tensor in tensors_in(states)}
    for switch in replaced:
        switch.original = None
        for tensor in (*switch.module.parameters(), *switch.module.buffers()):
            if tensor.untyped_storage().data_ptr() not in used:
                tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    for switch in switches:
        switch.watch_again()


def _without(program: nn.Module, replaced: set[nn.Module]) -> set[nn.Module]:
    """The modules of a program that are reached without going through a replaced one."""
    found: set[nn.Module] = set()
    open_ = [program]
    while open_:
        module = open_.pop()
        if module not in replaced and module not in found:
            found.add(module)
            open_ += module.children()
    return found
