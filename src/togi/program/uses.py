"""The modules that a run of a program calls: how much of its time they take, and which of them are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from togi.core.records import Obstacle, ProgramTree
from togi.program.calls import Recorded
from togi.program.kept import kept_by

LEAST_SHARE = 0.04
"""Of the program's time: below it a part cannot make the program faster by more than noise."""
_MADE_ANEW = (
    "the program makes it anew in each run, or holds it where togi does not find it, so no engine can stand for it: "
    "make it once and keep it in an attribute"
)


def too_small(share: float) -> bool:
    """Whether one form of calls takes too little of the program's time to be a part."""
    return share < LEAST_SHARE / 2


@dataclass(frozen=True)
class ModuleUse:
    """One module in the tree of calls: what all its calls take together."""

    path: str
    module: nn.Module
    share: float
    places: tuple[int, ...]
    architecture: object
    """Equal for modules of the same classes, options and shapes of weights, whatever their values."""
    kept: tuple[str, ...] = ()
    """Attributes that hold its state from call to call."""


def uses_at(
    places: Sequence[int], tree: ProgramTree, modules: Mapping[str, nn.Module], changed: Sequence[str]
) -> list[ModuleUse]:
    """The modules at these places that matter. What was made anew in the run is entered at once.

    ``changed``: attributes that are not after a run what they were before.
    """
    by_path: dict[str, list[int]] = {}
    queue = list(places)
    while queue:
        place = queue.pop(0)
        if path := tree.calls[place].path:
            by_path.setdefault(path, []).append(place)
        else:
            queue += tree.children(place)
    uses = [
        ModuleUse(
            path=path,
            module=modules[path],
            share=sum(map(tree.share, places_of_module)),
            places=tuple(places_of_module),
            architecture=_architecture(modules[path]),
            kept=kept_by(modules[path], path, changed),
        )
        for path, places_of_module in by_path.items()
    ]
    alike = Counter(use.architecture for use in uses)  # they matter together
    return [use for use in uses if use.share >= LEAST_SHARE / alike[use.architecture]]


def groups_of(uses: Sequence[ModuleUse], recorded: Mapping[str, Recorded]) -> list[list[ModuleUse]]:
    """Modules of one architecture that are called in the same forms."""
    groups: dict[object, list[ModuleUse]] = {}
    for use in uses:
        forms = tuple(recorded[use.path].forms)
        hooks_change = recorded[use.path].hooks_change
        key = (use.architecture, use.kept, hooks_change, tuple(str(structure) for form in forms for structure in form))
        groups.setdefault(key, []).append(use)
    return list(groups.values())


def made_anew(tree: ProgramTree) -> list[Obstacle]:
    """Modules without a name in the program that matter and call none that has one."""
    obstacles = []
    queue = tree.children(0)
    while queue:
        place = queue.pop(0)
        call, share = tree.calls[place], tree.share(place)
        if call.path or share < LEAST_SHARE:
            continue
        if _calls_named(tree, place):
            queue += tree.children(place)
        else:
            obstacles.append(Obstacle(path="", module=call.module, share=share, reason=_MADE_ANEW))
    return obstacles


def _calls_named(tree: ProgramTree, place: int) -> bool:
    return any(tree.calls[child].path or _calls_named(tree, child) for child in tree.children(place))


def _architecture(module: nn.Module) -> object:
    shapes = tuple((name, tuple(p.shape), p.dtype) for name, p in module.named_parameters())
    return (repr(module), shapes)
