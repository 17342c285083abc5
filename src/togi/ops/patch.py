"""torchvision's and detectron2's pairwise functions replaced by togi.ops, and put back.

    with togi.ops.patch("torchvision", matcher=True):
        train()

Replaced are the names in all modules of the library that are loaded. Modules of other packages that took a function
over by ``from torchvision.ops import box_iou`` before the patch keep the original, unless they are named. torchvision's
region proposal network keeps the function that it was made with: name the model as well. What was made or imported
under the patch and outlives it calls the originals from then on.

Patches are counted: they can be nested, undone in any order and from several threads; the originals are back once the
last is undone. The effect is on the whole process, on all of its threads.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any

from torch import nn

from togi.core.errors import TogiError, nearest
from togi.ops import pending
from togi.ops.drop_in import STAND_INS, stand_in


class PatchError(TogiError, ValueError):
    """A library that is unknown, not installed, or without the functions that were to be replaced."""


@dataclass(frozen=True, kw_only=True)
class _Replacement:
    """``holder.name`` was ``before`` and is ``after``."""

    holder: Any
    name: str
    before: Any
    after: Any

    def undo(self) -> None:
        if vars(self.holder).get(self.name) is self.after:  # else somebody replaced it again: it is theirs
            setattr(self.holder, self.name, self.before)


class _Installation:
    """The replacements on behalf of all live patches of one kind."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.live = 0
        self.stand_ins: dict[int, tuple[Any, Any]] = {}
        """By the id of the original: it and its stand-in. Kept for good, so that it is the same one every time."""
        self.done: list[_Replacement] = []

    def is_active(self) -> bool:
        return self.live > 0

    def install(self, originals: Iterable[tuple[Any, Callable[[], Any]]], holders: Iterable[Any]) -> None:
        """Replaces every attribute of ``holders`` that is one of the originals ``found``."""
        with self.lock:
            for original, make in originals:
                if not any(
                    original is stand_in for _, stand_in in self.stand_ins.values()
                ):  # there from an earlier patch
                    self.stand_ins.setdefault(id(original), (original, make()))
            for holder in holders:
                self._replace_in(holder)
            self.live += 1

    def _replace_in(self, holder: Any) -> None:
        for name, value in list(vars(holder).items()):
            if id(value) in self.stand_ins:
                after = self.stand_ins[id(value)][1]
                self.done.append(_Replacement(holder=holder, name=name, before=value, after=after))
                setattr(holder, name, after)

    def uninstall(self) -> None:
        with self.lock:
            self.live -= 1
            if self.live == 0:
                while self.done:
                    self.done.pop().undo()


_installations = {kind: _Installation() for kind in (*STAND_INS, "torchvision matcher")}


class Patch:
    """A patch that is in force until ``undo``, or until its ``with`` block is left."""

    def __init__(self, installations: list[_Installation]) -> None:
        self._installations = installations
        self._lock = threading.Lock()

    def undo(self) -> None:
        """Puts the originals back, unless another patch still needs them replaced. A second call does nothing."""
        with self._lock:
            while self._installations:
                self._installations.pop().uninstall()

    def __enter__(self) -> Patch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def patch(library: str, *also: ModuleType | nn.Module, matcher: bool = False) -> Patch:
    """Replaces a library's pairwise functions on boxes by togi.ops until ``undo()`` of what it returns.

    Args:
        library: ``torchvision`` (box_iou, generalized_, distance_ and complete_box_iou) or ``detectron2``
            (pairwise_iou, pairwise_intersection).
        also: modules that have taken such functions over by name, and models whose parts keep them.
        matcher: torchvision only: the detection models' IoU matrix is not built at all where their Matcher takes it
            next; the decisions are the same. See ``togi.ops.pending``.

    float32 and float64 have the bits of the originals (complete IoU: to rounding), gradients are equal to rounding and
    cannot be differentiated twice. All else goes to the originals: see ``togi.ops.drop_in``.

    Raises:
        PatchError: the library is unknown or cannot be imported, has none of these functions, or has no matcher.
    """
    if library not in STAND_INS:
        raise PatchError(
            f"library={library!r} cannot be patched; it can be {', '.join(STAND_INS)}{nearest(library, STAND_INS)}"
        )
    if matcher and library != "torchvision":
        raise PatchError(
            f"matcher=True is for torchvision: the matcher of {library} is not replaced. Leave it out, or call "
            "togi.ops.match_boxes where the model calls its matcher."
        )
    originals = _originals(library)
    holders = [*_modules_of(library), *_parts(also)]
    installation = _installations[library]
    made_of = [(o, functools.partial(stand_in, o, answer, installation.is_active)) for o, answer in originals]
    installation.install(made_of, holders)
    installations = [installation]
    if matcher:
        lazy = _installations["torchvision matcher"]
        lazy.install(pending.originals(lazy.is_active), [*pending.holders(), *_parts(also)])
        installations.append(lazy)
    return Patch(installations)


def _originals(library: str) -> list[tuple[Any, Any]]:
    """(function of the library, who stands in for it)."""
    home, table = STAND_INS[library]
    try:
        module = importlib.import_module(home)
    except ImportError as error:
        raise PatchError(f"{home} cannot be imported, so there is nothing to patch: {error}") from error
    functions = [(getattr(module, name), answer) for name, answer in table.items() if hasattr(module, name)]
    if not functions:
        raise PatchError(f"{home} has none of {', '.join(table)}: this version of {library} is not known here")
    return functions


def _modules_of(library: str) -> Iterator[ModuleType]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == library and isinstance(module, ModuleType):
            yield module


def _parts(also: Iterable[ModuleType | nn.Module]) -> Iterator[ModuleType | nn.Module]:
    for holder in also:
        yield from holder.modules() if isinstance(holder, nn.Module) else (holder,)
