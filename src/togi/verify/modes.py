"""Modes of a module that change its answer: what was handed over in training mode is not turned to ``eval()``
unless that makes no difference, or was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from togi.core.errors import SubjectError
from togi.core.quantities import first_line
from togi.subject.compared import as_compared
from togi.subject.inputs import Inputs, Subject
from togi.subject.inventory import class_name
from togi.subject.nested import tensors_in
from togi.subject.plain_tensors import plain
from togi.subject.prepare import in_given_modes, is_undecided, sharing_parameters, training_parts
from togi.subject.structure import Structure
from togi.verify.output_structure import unlike
from togi.verify.repeatability import apart, noise_limit

Run = Callable[[nn.Module, Inputs], Any]
_TELLING = ("Dropout", "Norm", "DropPath", "RReLU")
"""In the names of classes whose answer depends on their mode; others are found by what they answer."""


def outputs_in_one_mode(subject: Subject, prepared: nn.Module, samples: Sequence[Inputs], run: Run) -> list[Any]:
    """Ask ``prepared`` for its answer to each sample.

    Args:
        run: calls a module with a sample, from the same seed each time.

    Raises SubjectError where ``prepared`` is in ``eval()``, the subject was handed over in training mode, and that
    makes a difference. Where it does not run in training mode on these samples, nobody can mean that.
    """
    if not is_undecided(subject):
        return [run(prepared, sample) for sample in samples]
    try:
        trained, again = in_given_modes(subject, prepared), sharing_parameters(prepared)
    except Exception as error:  # foreign code: what the module holds
        raise SubjectError(_refusal(subject.module, f"it cannot be copied to ask both: {first_line(error)}")) from error
    outputs = [run(prepared, sample) for sample in samples]
    try:
        in_training = [run(trained, sample) for sample in samples]
    except Exception:  # foreign code: a forward that wants targets to train on, or more than one row
        return outputs
    why = next(_differences(outputs, in_training, prepared, trained), "")
    # what answers differently each time does so in every mode
    if why and not any(_differences(outputs, [run(again, sample) for sample in samples], prepared, again)):
        raise SubjectError(_refusal(subject.module, why))
    return outputs


def _differences(
    evaluated: Sequence[Any], trained: Sequence[Any], prepared: nn.Module, asked: nn.Module
) -> Iterator[str]:
    answers = zip(map(as_compared, evaluated), map(as_compared, trained), strict=True)
    for output, trained_output in answers:
        if different := unlike(Structure.of(output), Structure.of(trained_output), "its output in training mode"):
            yield different
        for before, after in zip(map(plain, tensors_in(output)), map(plain, tensors_in(trained_output)), strict=False):
            if (off := apart(after, before)) > noise_limit(before):
                yield f"its output differs by {off:.2g} of its root mean square"
    for name, before, after in _buffers(prepared, asked):
        if apart(after, before) > noise_limit(before):
            yield f"a call in training mode changes {name}"


def _buffers(one: nn.Module, other: nn.Module) -> Iterator[tuple[str, Tensor, Tensor]]:
    counterparts = dict(other.named_buffers())
    for name, buffer in one.named_buffers():
        yield name, plain(buffer), plain(counterparts[name])


def _refusal(module: nn.Module, why: str) -> str:
    parts = {type(part).__name__ for part in training_parts(module)}
    telling = sorted(part for part in parts if any(word in part for word in _TELLING))[:3]
    because = f", which holds {', '.join(telling)}" if telling else ""
    return (
        f"{class_name(module)} was handed over in training mode{because}, and in eval() it answers otherwise: {why}. "
        "togi does not choose between them. For inference call eval() on it first, or give mode='eval' "
        "('file.py:factory?mode=eval'); to tune it as it stands, mode='as-is' ('file.py:factory?mode=as-is')"
    )
