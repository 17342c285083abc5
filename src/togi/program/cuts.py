"""Where a program can be cut: the biggest parts that can be captured, found from the top down.

A part is a module in one form of calls. What cannot be captured is entered: its own calls are tried next. Blocks that
are alike (the layers of a decoder) are tried once and become one part with copies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from togi.artifact.settings import settings_of, varying_settings
from togi.artifact.weights import weights_hash
from togi.core.recipe import PartKey
from togi.core.records import Obstacle, ProgramTree
from togi.program.calls import Form, Recorded, record_inputs, record_tree
from togi.program.capture import NOTHING_KEPT, CapturedCut, RefusedCut, capture, changes_of, taken_by
from togi.program.kept import changed, held_by
from togi.program.parts import CutRequest, Cuts, Part, Uncaptured
from togi.program.repeated import CalledModule, repeated
from togi.program.uses import ModuleUse, groups_of, made_anew, too_small, uses_at
from togi.subject.behaviour import same, seed_all
from togi.subject.inputs import Inputs, Subject
from togi.subject.nested import tensors_in
from togi.subject.prepare import prepare
from togi.subject.program import ProgramModule
from togi.subject.state import STATE, State
from togi.subject.stored_inputs import write_inputs
from togi.torch_internals.modules import has_own_call

_INPUTS_BYTES = 256 << 20
_COVERED = 0.5
"""Share of a module's time in forms that can be captured, from which it is not entered for the rest."""
_AUTOCAST = (
    "the program calls it under torch.autocast ({}), and parts are proven without: convert its weights once "
    "(.to(torch.bfloat16)) and give it inputs of that dtype instead, or call it outside of the block"
)
_NOT_ITS_FORWARD = (
    "its forward hooks, or the __call__ of its class, change what it is called with or what it returns, and would do "
    "so once more round an engine: do that in its forward or in its caller instead"
)
_NO_MODULE = (
    "a run on these samples calls no module, so there is nothing that an engine could stand for: give samples that "
    "reach the modules"
)


def find_cuts(subject: Subject, request: CutRequest) -> Cuts:
    """Record a run of the program and cut it. Called in a child."""
    ready = prepare(subject, device=request.device)
    program, samples = ready.module, ready.samples
    with torch.no_grad():
        settings = settings_of(program)
        record_tree(program, samples[:1])  # warm
        if isinstance(program, ProgramModule):
            program.look_again()
        before = held_by(program)
        tree = record_tree(program, samples)
    varying = varying_settings(settings, settings_of(program))
    return _Cutting(program, samples, tree, request, changed(before, held_by(program)), varying).cuts()


def _served(captured: CapturedCut, calls: Sequence[Inputs]) -> float:
    """The share of the recorded calls of a form that an engine serves."""
    served = 0
    for call in calls:
        with contextlib.suppress(TypeError, ValueError):
            captured.survey.signature.checked(call.args, call.kwargs)
            served += 1
    return max(1, served) / len(calls) if calls else 1.0


def _of_equal_changes(group: list[ModuleUse], recorded: Mapping[str, Recorded]) -> Iterable[list[ModuleUse]]:
    """Of modules that are alike and called alike, those together whose calls change the same: each layer may write its
    own place of a cache that all are given. The last call of each form tells."""
    if len(group) == 1:
        return [group]
    apart: dict[object, list[ModuleUse]] = {}
    for use in group:
        forms = recorded[use.path].forms.values()
        apart.setdefault(tuple(changes_of(use, list(calls.values())[-1]) for calls in forms if calls), []).append(use)
    return apart.values()


def _is_its_forward(use: ModuleUse, call: Inputs) -> bool:
    """Whether a call of the module answers as its ``forward`` does, for which an engine stands."""
    if not has_own_call(use.module):
        return True
    answers, state = [], State(use.module, use.kept)
    own = state.read()
    try:
        for run in (use.module, use.module.forward):
            given = call.clone()
            kwargs = {name: value for name, value in given.kwargs.items() if name != STATE}
            state.write(given.kwargs.get(STATE, {}))
            seed_all(0)
            with torch.no_grad():
                answers.append(tensors_in(run(*given.args, **kwargs)))
    except Exception:  # foreign code: capturing says why
        return True
    finally:
        state.write(own)
    return same(*answers)


class _Cutting:
    def __init__(
        self,
        program: nn.Module,
        samples: Sequence[Inputs],
        tree: ProgramTree,
        request: CutRequest,
        changed: Sequence[str],
        varying: Sequence[str],
    ) -> None:
        """``changed``: attributes that are not after a run what they were before. ``varying``: as in ``Survey``."""
        self.program, self.samples, self.tree, self.request = program, samples, tree, request
        self.changed, self.varying = changed, varying
        self.modules = dict(program.named_modules())
        self.folder = Path(request.folder)
        self.weights: dict[str, str] = {}
        """Of each part's modules, by path."""
        self.settings: dict[str, dict[str, str]] = {}
        """The same."""
        self.parts: list[Part] = []
        self.obstacles: list[Obstacle] = []
        self.uncaptured: list[Uncaptured] = []
        self.called: list[CalledModule] = []
        """What was looked at, from the top down."""

    def cuts(self) -> Cuts:
        places = places_called = self.tree.children(0)
        if not isinstance(self.program, ProgramModule):
            self.uncaptured.append(CalledModule(self.program, "", 1.0, self.tree.calls[0].calls).as_record)
        while uses := uses_at(places, self.tree, self.modules, self.changed):
            recorded = self._record(uses)
            groups = [alike for group in groups_of(uses, recorded) for alike in _of_equal_changes(group, recorded)]
            places = [place for group in groups for place in self._cut(group, recorded)]
        self.obstacles += made_anew(self.tree)
        if not places_called:
            self.obstacles.append(Obstacle(path="", module=self.tree.calls[0].module, share=1.0, reason=_NO_MODULE))
        return Cuts(
            tree=self.tree,
            parts=tuple(sorted(self.parts, key=lambda part: -part.share)),
            obstacles=tuple(self.obstacles),
            uncaptured=tuple(self.uncaptured),
            repeated=tuple(repeated(self.called)),
        )

    def _record(self, uses: Sequence[ModuleUse]) -> dict[str, Recorded]:
        with torch.no_grad():
            return record_inputs(
                self.program,
                self.samples,
                {use.path: use.module for use in uses},
                {use.path: self._calls(use) for use in uses},
                _INPUTS_BYTES,
                {use.path: use.kept for use in uses},
            )

    def _calls(self, use: ModuleUse) -> int:
        return sum(self.tree.calls[place].calls for place in use.places)

    def _cut(self, group: Sequence[ModuleUse], recorded: Mapping[str, Recorded]) -> list[int]:
        """Parts of modules that are alike; the places to enter where they cannot be captured."""
        first, share = group[0], sum(use.share for use in group)
        calls = recorded[first.path]
        refusals: list[RefusedCut] = []
        covered = 0.0
        for number, form in enumerate(calls.forms):
            if too_small(share * calls.share(form)):
                covered += calls.share(form)
                continue
            for place, outcome in enumerate(self._capture(group, calls, form)):
                served = calls.share(form)
                if isinstance(outcome, CapturedCut):
                    served *= _served(outcome, calls.proof[form])
                    key = PartKey(path=first.path, form=number + place * len(calls.forms))
                    self.parts.append(self._part(group, recorded, key, form, outcome, served))
                else:
                    refusals.append(outcome)
                if isinstance(outcome, CapturedCut) or outcome.with_what_it_calls:
                    covered += served
        if refusals or not calls.forms:
            reason = refusals[0].reason if refusals else NOTHING_KEPT
            module = type(first.module).__name__
            self.obstacles.append(Obstacle(path=first.path, module=module, share=share, reason=reason))
        if covered >= _COVERED:
            return []
        self._note_outermost(group, refusals)
        return [child for use in group for place in use.places for child in self.tree.children(place)]

    def _capture(self, group: Sequence[ModuleUse], calls: Recorded, form: Form) -> list[CapturedCut | RefusedCut]:
        """Calls of one form of the first of them, which stands for all."""
        if cast := calls.autocast[form]:
            return [RefusedCut(_AUTOCAST.format(cast), with_what_it_calls=True)]
        by_sizes = list(calls.forms[form].values())
        if calls.hooks_change or (by_sizes and not _is_its_forward(group[0], by_sizes[0])):
            return [RefusedCut(_NOT_ITS_FORWARD)]
        outcomes = capture(group[0], by_sizes, self.request, goes_on=calls.goes_on(form))
        if (surveyed := next((outcome.survey for outcome in outcomes if outcome.survey), None)) is not None:
            self.called += [
                CalledModule(use.module, use.path, use.share * calls.share(form), calls.calls[form], surveyed)
                for use in group
            ]
        return outcomes

    def _part(
        self,
        group: Sequence[ModuleUse],
        recorded: Mapping[str, Recorded],
        key: PartKey,
        form: Form,
        captured: CapturedCut,
        served: float,
    ) -> Part:
        """The record of a part, with its calls in files. ``served``: the share of the modules' time that it is for."""
        first, name = group[0], f"part-{len(self.parts)}"
        calls = recorded[first.path]
        write_inputs(self.folder / name, captured.calls)
        proof = {use.path: f"{name}-proof-{position}" for position, use in enumerate(group)}
        for path, file in proof.items():
            write_inputs(self.folder / file, taken_by(captured.survey.signature, recorded[path].proof[form]))
        for use in group:
            if use.path not in self.weights:
                self.weights[use.path] = weights_hash(use.module, without=use.kept)
                self.settings[use.path] = settings_of(use.module, use.kept, self.varying)
        return Part(
            key=key,
            copies=tuple(use.path for use in group),
            module=type(first.module).__name__,
            calls=round(calls.calls[form] * served / calls.share(form)),
            share=sum(use.share for use in group) * served,
            inputs=name,
            proof=proof,
            effects=captured.effects,
            survey=captured.survey,
            weights={use.path: self.weights[use.path] for use in group},
            settings={use.path: self.settings[use.path] for use in group},
        )

    def _note_outermost(self, group: Sequence[ModuleUse], refusals: Sequence[RefusedCut]) -> None:
        """Modules that the program calls itself and that run alone can be compiled where they stand."""
        surveyed = [refusal.survey for refusal in refusals if refusal.survey is not None]
        if not surveyed or not isinstance(self.program, ProgramModule):
            return
        for use in group:
            if all(self.tree.calls[place].parent == 0 for place in use.places):
                called = CalledModule(use.module, use.path, use.share, self._calls(use), surveyed[0])
                self.uncaptured.append(called.as_record)
