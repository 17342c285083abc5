"""Whether the recorded calls of a module can be captured, and on which of them it is tuned and proven."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from togi.core.choices import Mode
from togi.core.quantities import first_line
from togi.program.parts import CutRequest
from togi.program.samples import of_one_structure, spread
from togi.program.uses import ModuleUse
from togi.subject.carried import carried_from, followed_from
from togi.subject.common_structure import without_counts
from togi.subject.effects import Effects, arguments_of
from togi.subject.inputs import Inputs, Subject
from togi.subject.pure import pure
from togi.subject.signature import Signature
from togi.subject.structure import Structure
from togi.subject.validation import hash_of
from togi.worker.protocol import Survey, changed
from togi.worker.survey import survey

NOTHING_KEPT = "no call of it could be kept"
_OTHER_NUMBERS = (
    "its arguments hold numbers that differ from call to call and follow no size of what lies next to them, where an "
    "engine is made for certain numbers"
)
_QUANTIZED = (
    "{}. Its cache is quantized ({}), whose steps have no engine: generate with the default cache (without "
    "cache_implementation and cache_config)"
)
_LEAST_GROWING = 2
"""Sizes that show that one varies."""


@dataclass(frozen=True)
class CapturedCut:
    """Calls of one form that can be captured."""

    calls: list[Inputs]
    """A few of them, on which it is tuned."""
    effects: Effects
    """What a call changes."""
    survey: Survey


@dataclass(frozen=True)
class RefusedCut:
    """Calls of one form that cannot be captured."""

    reason: str
    survey: Survey | None = None
    """What they are, where they run alone."""
    with_what_it_calls: bool = False
    """What it calls is refused for the same reason."""


def capture(
    use: ModuleUse, calls: Sequence[Inputs], request: CutRequest, *, goes_on: bool
) -> list[CapturedCut | RefusedCut]:
    """Those that begin alike, and the others, as of a cache that no longer grows.

    ``calls``: one of each sizes. ``goes_on``: each is given what the last one left.
    """
    if not calls:
        return [RefusedCut(NOTHING_KEPT)]
    first = of_one_structure(calls)
    outcomes: list[CapturedCut | RefusedCut] = []
    if 2 * len(first) >= len(calls):
        outcomes.append(_captured(use, first, request, goes_on=goes_on))
    others = [call for call in calls if not outcomes or all(call is not taken for taken in first)]
    carried = _carried(use, others) if len(others) > 1 else None
    follows = carried is None and len(others) > 1
    if follows:
        carried = followed_from(others)
    if carried is not None:
        if outcomes and isinstance(outcomes[0], RefusedCut) and len(first) > _LEAST_GROWING:
            outcomes[0] = _captured(use, first[:-1], request, goes_on=goes_on)  # the last may fill the window
        outcomes.append(_captured(use, others, request, goes_on=goes_on, carried=carried, follows=follows))
    return outcomes or [RefusedCut(_OTHER_NUMBERS)]


def changes_of(use: ModuleUse, call: Inputs) -> object:
    """What a call of a module changes, equal for modules that change the same. Values differ from call to call: what is
    written where, and what is new, does not."""
    try:
        with torch.no_grad():
            changes = Effects.of(pure(use.module, Effects(state=use.kept)), call.clone()).changes
    except Exception:  # foreign code: capturing says why
        return None
    return tuple((each.argument, each.kept, each.written, each.stays, without_counts(each.after)) for each in changes)


def _carried(use: ModuleUse, calls: Sequence[Inputs]) -> int | None:
    """What ``carried_from`` says of the module's calls."""
    try:
        return carried_from(pure(use.module, Effects(state=use.kept)), calls)
    except Exception:  # foreign code: the module's own, or what its arguments hold
        return None


def _captured(
    use: ModuleUse,
    calls: Sequence[Inputs],
    request: CutRequest,
    *,
    goes_on: bool,
    carried: int | None = None,
    follows: bool = False,
) -> CapturedCut | RefusedCut:
    samples = spread(calls)
    try:
        state = Effects(state=use.kept, carried=carried, follows=follows)
        alone = pure(use.module, Effects(state=use.kept))
        with torch.no_grad():
            changes = Effects.of(alone, *(call.clone() for call in samples), carried=carried).changes
        effects = state.model_copy(update={"changes": changes})
        surveyed = survey(
            Subject(pure(use.module, effects), samples, mode=Mode.AS_IS),
            device=request.device,
            seed=request.seed,
            machine=request.machine,
            callers=request.callers,
        )
    except Exception as error:  # foreign code: the module's own, or what its arguments hold
        return RefusedCut(_refusal(first_line(error), samples[0]))
    if surveyed.facts.export_error is not None:
        return RefusedCut(_refusal(surveyed.facts.export_error, samples[0]), surveyed)
    steps = goes_on and surveyed.facts.dynamic and any(None in change.kept for change in effects.changes)
    facts = surveyed.facts.model_copy(update={"part": True, "steps": steps})
    return CapturedCut(samples, effects, changed(surveyed, facts=facts, calibration=hash_of(samples)))


def _refusal(reason: str, call: Inputs) -> str:
    """The reason, with a remedy where the call is given a quantized cache (transformers')."""
    structures = (Structure.of(value) for _, value in arguments_of(call))
    classes = (part.type.rpartition(":")[2] for structure in structures for part in structure.parts())
    quantized = next((name for name in classes if "Quantized" in name), "")
    return _QUANTIZED.format(reason.rstrip("."), quantized) if quantized else reason


def taken_by(signature: Signature, calls: Sequence[Inputs]) -> list[Inputs]:
    """The calls that have the signature's form."""
    taken = []
    for call in calls:
        with contextlib.suppress(TypeError):
            signature.flatten_inputs(call.args, call.kwargs)
            taken.append(call)
    return taken
