"""Runs a script with artifacts in the place of the modules that they were made of.

A module is looked at when the script first calls it. If it is one that was tuned (class, structure, code, attributes
and weights), its artifact stands for its ``forward`` from then on. If not, the original runs, and togi reports why,
once.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from togi.artifact.installed import Installed
from togi.artifact.load import put_in_place
from togi.artifact.manifest import Manifest, read_manifest
from togi.core.errors import ArtifactError
from togi.core.quantities import first_line
from togi.script.conditions import inner_of, left_alone
from togi.script.identity import identity_of
from togi.script.records import ScriptIndex, ServedModule, TunedModule
from togi.script.switch import ScriptSwitch
from togi.subject.identity import code_hash, settings_hash
from togi.torch_internals.module_calls import watch_outermost_calls


class ScriptService:
    """Puts artifacts in from now on, in this process, until it is stopped."""

    def __init__(self, folder: Path, index: ScriptIndex, tell: Callable[[str], None]) -> None:
        self._folder, self._tell_user = folder, tell
        self._tuned: dict[str, list[TunedModule]] = defaultdict(list)
        for tuned in index.modules:
            self._tuned[tuned.identity.module].append(tuned)
        self._decided: dict[int, weakref.ref[nn.Module]] = {}
        """Modules that were looked at, by identity."""
        self._told: set[str] = set()
        self._installed: list[tuple[TunedModule, Installed]] = []
        self._lock = threading.Lock()
        self._serving = True
        self._undo = watch_outermost_calls(self._call)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.stop)  # what is put in gives way by itself

    def stop(self) -> None:
        """From now on no module is looked at. Those with artifacts keep them."""
        self._serving = False
        self._undo()

    def served(self) -> list[ServedModule]:
        """The calls so far of the modules that have artifacts."""
        return [
            ServedModule(
                module=tuned.identity.module,
                recipe=tuned.recipe,
                engine_calls=sum(engine for engine, _ in installed.counts.values()),
                original_calls=sum(original for _, original in installed.counts.values()),
                last_reason=next((_for_scripts(s.last_reason) for s in installed.switches if s.last_reason), ""),
            )
            for tuned, installed in self._installed
        ]

    def _call(self, module: nn.Module, args: Any, kwargs: dict[str, Any], run: Callable[..., Any]) -> Any:
        if self._serving:
            known = self._decided.get(id(module))
            if known is None or known() is not module:
                self._look_at(module)
        return run(module, *args, **kwargs)

    def _look_at(self, module: nn.Module) -> None:
        """Never raises: where an artifact cannot be used, the original is."""
        name = type(inner_of(module)).__name__
        try:
            with self._lock:
                self._put_in(inner_of(module), name)
        except Exception as error:  # a backend that does not run here, or the script's own objects
            self._tell(name, f"its artifact cannot be used, so the original runs: {first_line(error)}")
        self._decided[id(module)] = weakref.ref(module)

    def _put_in(self, module: nn.Module, name: str) -> None:
        candidates = self._tuned.get(name)
        if not candidates or any(module is installed.program for _, installed in self._installed):
            return
        if reason := left_alone(module):
            self._tell(name, f"{reason}. The original runs")
            return
        identity = identity_of(module, settings_hash(module), code_hash(module))
        tuned = next((each for each in candidates if each.identity == identity), None)
        if tuned is None:
            difference = identity.difference(candidates[0].identity)
            self._tell(name, f"{difference}, so the original runs. 'togi run --again' tunes what the script calls now")
        elif tuned.artifact:
            folder = self._folder / tuned.artifact
            installed = put_in_place(folder, module, ScriptSwitch, manifest=_read_the_same(folder, tuned))
            try:
                _read_the_same(folder, tuned)  # its files were read after its manifest
            except ArtifactError:
                installed.remove()
                raise
            self._installed.append((tuned, installed))

    def _tell(self, name: str, text: str) -> None:
        """Each once."""
        line = f"{name}: {text}"
        if line not in self._told:
            self._told.add(line)
            self._tell_user(line)


def _read_the_same(folder: Path, tuned: TunedModule) -> Manifest:
    """Raises ArtifactError where another artifact is in its place: another run has tuned the script anew."""
    manifest = read_manifest(folder)
    if tuned.sha256 and manifest.sha256 != tuned.sha256:
        raise ArtifactError(f"{folder} was replaced since this run began, or changed after it was tuned")
    return manifest


def _for_scripts(reason: str) -> str:
    """Without advice to whoever put a part in by hand."""
    return reason.partition(", which answers")[0]
