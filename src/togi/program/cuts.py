"""Where a program can be cut: the biggest parts that can be captured, found from the top down.

A part is a module in one form of calls. What cannot be captured is entered: its own calls are tried next. Blocks that
are alike (the layers of a decoder) are tried once and become one part with copies.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import nn

from togi.artifact.program import weights_hash
from togi.core.choices import Mode
from togi.core.quantities import first_line
from togi.core.records import Obstacle, ProgramTree
from togi.program.calls import Recorded, record_inputs, record_tree
from togi.program.kept import changed, held_by, kept_by
from togi.program.parts import CutRequest, Cuts, Part, Uncaptured
from togi.program.repeated import Called, repeated
from togi.subject.effects import Effects
from togi.subject.inputs import Inputs, Subject
from togi.subject.prepare import prepare
from togi.subject.program import ProgramModule
from togi.subject.pure import pure
from togi.subject.sample_facts import arguments_in_common
from togi.subject.signature import Signature
from togi.subject.stored_inputs import write_inputs
from togi.worker.protocol import Survey
from togi.worker.survey import survey

LEAST_SHARE = 0.04
"""Of the program's time: below it a part cannot make the program faster by more than noise."""
_INPUTS_BYTES = 256 << 20
_COVERED = 0.5
"""Share of a module's time in forms that can be captured, from which it is not entered for the rest."""
_AUTOCAST = (
    "the program calls it under torch.autocast ({}), and parts are proven without: convert its weights once "
    "(.to(torch.bfloat16)) and give it inputs of that dtype instead, or call it outside of the block"
)
_MADE_ANEW = (
    "the program makes it anew in each run, or holds it where togi does not find it, so no engine can stand for it: "
    "make it once and keep it in an attribute"
)
_NO_MODULE = (
    "a run on these samples calls no module, so there is nothing that an engine could stand for: give samples that "
    "reach the modules"
)
_OTHER_NUMBERS = (
    "its arguments hold numbers that differ from call to call and follow no size of what lies next to them, where an "
    "engine is made for certain numbers"
)
_SAMPLES = 4
"""Recorded calls of one form that a part is tuned and proven on."""


@final
@dataclass(frozen=True)
class _Use:
    """One module in the tree: what all its calls take together."""

    path: str
    module: nn.Module
    share: float
    places: tuple[int, ...]
    architecture: object
    """Equal for modules of the same classes, options and shapes of weights, whatever their values."""
    kept: tuple[str, ...] = ()
    """Attributes that hold its state from call to call."""


@final
@dataclass(frozen=True)
class _Refused:
    """Calls of one form that cannot be captured."""

    reason: str
    survey: tuple[Survey, ...] = ()
    """What they are, where they run alone."""


def find_cuts(subject: Subject, request: CutRequest) -> Cuts:
    """Record a run of the program and cut it. Called in a child."""
    ready = prepare(subject, device=request.device)
    program, samples = ready.module, ready.samples
    with torch.no_grad():
        record_tree(program, samples[:1])  # warm
        if isinstance(program, ProgramModule):
            program.look_again()
        before = held_by(program)
        tree = record_tree(program, samples)
    return _Cutting(program, samples, tree, request, changed(before, held_by(program))).cuts()


@final
class _Cutting:
    def __init__(
        self,
        program: nn.Module,
        samples: Sequence[Inputs],
        tree: ProgramTree,
        request: CutRequest,
        changed: Sequence[str],
    ) -> None:
        """``changed``: attributes that are not after a run what they were before."""
        self.program, self.samples, self.tree, self.request = program, samples, tree, request
        self.changed = changed
        self.modules = dict(program.named_modules())
        self.parts: list[Part] = []
        self.obstacles: list[Obstacle] = []
        self.uncaptured: list[Uncaptured] = []
        self.called: list[Called] = []
        """What was looked at, from the top down."""

    def cuts(self) -> Cuts:
        places = places_called = self.tree.children(0)
        if not isinstance(self.program, ProgramModule):
            self.uncaptured.append(Called(self.program, "", 1.0, self.tree.calls[0].calls).as_record)
        while uses := self._uses(places):
            recorded = self._record(uses)
            places = [place for group in _alike(uses, recorded) for place in self._cut(group, recorded)]
        self.obstacles += self._made_anew()
        if not places_called:
            self.obstacles.append(Obstacle(path="", module=self.tree.calls[0].module, share=1.0, reason=_NO_MODULE))
        parts = sorted(self.parts, key=lambda part: -part.share)
        return Cuts(
            tree=self.tree,
            parts=tuple(parts),
            obstacles=tuple(self.obstacles),
            uncaptured=tuple(self.uncaptured),
            repeated=tuple(repeated(self.called)),
        )

    def _made_anew(self) -> list[Obstacle]:
        """Modules without a name in the program that matter and call none that has one."""
        found = []
        queue = self.tree.children(0)
        while queue:
            place = queue.pop(0)
            call, share = self.tree.calls[place], self.tree.share(place)
            if call.path or share < LEAST_SHARE:
                continue
            if self._calls_named(place):
                queue += self.tree.children(place)
            else:
                found.append(Obstacle(path="", module=call.module, share=share, reason=_MADE_ANEW))
        return found

    def _calls_named(self, place: int) -> bool:
        children = self.tree.children(place)
        return any(self.tree.calls[child].path or self._calls_named(child) for child in children)

    def _uses(self, places: Sequence[int]) -> list[_Use]:
        """The modules at these places that matter. What was made anew in the run is entered at once."""
        by_path: dict[str, list[int]] = {}
        queue = list(places)
        while queue:
            place = queue.pop(0)
            path = self.tree.calls[place].path
            if path:
                by_path.setdefault(path, []).append(place)
            else:
                queue += self.tree.children(place)
        uses = [
            _Use(
                path,
                module,
                sum(map(self.tree.share, found)),
                tuple(found),
                _architecture(module),
                kept_by(module, path, self.changed),
            )
            for path, found in by_path.items()
            for module in [self.modules[path]]
        ]
        alike = Counter(use.architecture for use in uses)  # they matter together
        return [use for use in uses if use.share >= LEAST_SHARE / alike[use.architecture]]

    def _record(self, uses: Sequence[_Use]) -> dict[str, Recorded]:
        with torch.no_grad():
            return record_inputs(
                self.program,
                self.samples,
                {use.path: use.module for use in uses},
                {use.path: sum(self.tree.calls[place].calls for place in use.places) for use in uses},
                _INPUTS_BYTES,
                {use.path: use.kept for use in uses},
            )

    def _cut(self, group: Sequence[_Use], recorded: Mapping[str, Recorded]) -> list[int]:
        """Parts of modules that are alike; the places to enter where they cannot be captured."""
        first, share = group[0], sum(use.share for use in group)
        seen = recorded[first.path]
        weights: dict[str, str] = {}
        reasons: list[str] = []
        refused: list[Survey] = []
        covered = 0.0
        for number, (form, by_sizes) in enumerate(seen.forms.items()):
            if share * seen.share(form) < LEAST_SHARE / 2:
                covered += seen.share(form)
                continue
            if cast := seen.autocast[form]:  # what it calls is called under it too: nothing to enter
                covered += seen.share(form)
                reasons.append(_AUTOCAST.format(cast))
                continue
            given = _of_one_structure(list(by_sizes.values()))
            if 2 * len(given) < len(by_sizes):
                reasons.append(_OTHER_NUMBERS)
                continue
            given = _spread(given)
            found = self._capture(first, given, goes_on=seen.goes_on(form))
            self.called += [
                Called(use.module, use.path, use.share * seen.share(form), seen.calls[form], of_form)
                for of_form in (found.survey if isinstance(found, _Refused) else found[1:])
                for use in group
            ]
            if isinstance(found, _Refused):
                reasons.append(found.reason)
                refused += found.survey
                continue
            covered += seen.share(form)
            weights = weights or {use.path: weights_hash(use.module, without=use.kept) for use in group}
            name = f"part-{len(self.parts)}"
            write_inputs(Path(self.request.folder) / name, given)
            proof = {use.path: f"{name}-proof-{position}" for position, use in enumerate(group)}
            for path, file in proof.items():
                write_inputs(Path(self.request.folder) / file, _taken(found[1].signature, recorded[path].proof[form]))
            self.parts.append(
                Part(
                    path=first.path,
                    copies=tuple(use.path for use in group),
                    module=type(first.module).__name__,
                    form=number,
                    calls=seen.calls[form],
                    share=share * seen.share(form),
                    inputs=name,
                    proof=proof,
                    effects=found[0],
                    survey=found[1],
                    weights=weights,
                )
            )
        if reasons or not seen.forms:
            reason = reasons[0] if reasons else "no call of it could be kept"
            self.obstacles.append(
                Obstacle(path=first.path, module=type(first.module).__name__, share=share, reason=reason)
            )
        if covered >= _COVERED:
            return []
        for use in group if refused and isinstance(self.program, ProgramModule) else ():
            if all(self.tree.calls[place].parent == 0 for place in use.places):
                calls = sum(self.tree.calls[place].calls for place in use.places)
                self.uncaptured.append(Called(use.module, use.path, use.share, calls, refused[0]).as_record)
        return [child for use in group for place in use.places for child in self.tree.children(place)]

    def _capture(self, use: _Use, given: Sequence[Inputs], *, goes_on: bool) -> tuple[Effects, Survey] | _Refused:
        """What its calls change, and what it is then, or why it cannot be captured. ``goes_on``: from what the last one
        left."""
        if not given:
            return _Refused("no call of it could be kept")
        try:
            kept = Effects(state=use.kept)
            with torch.no_grad():
                changes = Effects.of(pure(use.module, kept), *(one.clone() for one in given)).changes
            effects = kept.model_copy(update={"changes": changes})
            found = survey(
                Subject(pure(use.module, effects), list(given), mode=Mode.AS_IS),
                device=self.request.device,
                seed=self.request.seed,
                machine=self.request.machine,
                callers=self.request.callers,
            )
        except Exception as error:  # foreign code: the module's own, or what its arguments hold
            return _Refused(first_line(error))
        if found.facts.export_error is not None:
            return _Refused(found.facts.export_error, (found,))
        steps = goes_on and found.facts.dynamic and any(None in change.kept for change in effects.changes)
        facts = found.facts.model_copy(update={"part": True, "steps": steps})
        return effects, found.model_copy(update={"facts": facts})


def _alike(uses: Sequence[_Use], recorded: Mapping[str, Recorded]) -> list[list[_Use]]:
    """Modules of one architecture that are called in the same forms."""
    groups: dict[object, list[_Use]] = {}
    for use in uses:
        forms = tuple(recorded[use.path].forms)
        key = (use.architecture, use.kept, tuple(form for parts in forms for form in map(str, parts)))
        groups.setdefault(key, []).append(use)
    return list(groups.values())


def _architecture(module: nn.Module) -> object:
    shapes = tuple((name, tuple(p.shape), p.dtype) for name, p in module.named_parameters())
    return (repr(module), shapes)


def _of_one_structure(given: Sequence[Inputs]) -> list[Inputs]:
    """Those whose numbers are constants, or counts of what lies next to them, together with the first's."""
    kept = list(given[:1])
    for one in given[1:]:
        if arguments_in_common([*kept, one]) is not None:
            kept.append(one)
    return kept


def _taken(signature: Signature, given: Sequence[Inputs]) -> list[Inputs]:
    """The calls that have the signature's form."""
    taken = []
    for one in given:
        with contextlib.suppress(TypeError):
            signature.flatten_inputs(one.args, one.kwargs)
            taken.append(one)
    return taken


def _spread(given: Sequence[Inputs]) -> list[Inputs]:
    """A few of them, the first and the last among them."""
    if len(given) <= _SAMPLES:
        return list(given)
    step = (len(given) - 1) / (_SAMPLES - 1)
    return [given[round(i * step)] for i in range(_SAMPLES)]
