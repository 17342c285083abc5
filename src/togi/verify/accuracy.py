"""A candidate on validation data, sample by sample next to the original's own answers, which were made once."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import math
import os
import random
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from togi.core.caches import home, private, processor
from togi.core.choices import AccuracyMeasure, ScoreForm
from togi.core.errors import SubjectError, TogiError
from togi.core.judging import Judging
from togi.core.records import Accuracy, Drop
from togi.decide.paired import Standing, by_group, flips, halves, scores, standing
from togi.subject.compared import as_compared
from togi.subject.identity import computation_hash
from togi.subject.inputs import Inputs
from togi.subject.plain_tensors import plain
from togi.subject.signature import Signature
from togi.subject.validation import Validation, check_same_data, hashes_of, kept_together, known_by
from togi.verify.leaves import tensors_in
from togi.verify.measures import RowMeasure
from togi.verify.own_metric import KnownScores, SeenGroups, answered, soon_done
from togi.verify.scores import form_of, rows_of

FILE = "answers.safetensors"
_DATA = "data"
_FIRST, _OTHER = "first", "other"
"""In the names of what is kept."""
_LOOKS = (1 / 16, *(eighth / 8 for eighth in range(1, 8)))
"""Shares of the samples after which it is asked whether they are enough."""
_ASKED_AGAIN = 4
"""Samples that the original answers anew where its answers are kept."""
_ROUNDING = 1e-3
"""Of an answer's largest value: what rounding may change. Where half precision changes more, all is answered anew."""

Call = Callable[..., Any]
_NOTHING = torch.empty(0)
_UNLABELLED = {AccuracyMeasure.ACCURACY: AccuracyMeasure.AGREEMENT, AccuracyMeasure.PERPLEXITY: AccuracyMeasure.KL}
"""What stands for measures with labels where there are none: of a second output."""


class _JudgedAnswer(NamedTuple):
    """What is judged of what a call returned."""

    name: str
    scores: Tensor
    """The first floating-point tensor."""
    others: Mapping[str, Tensor]
    """By name: of its shape, and integers, in which decisions may stand."""


def check_calls(validation: Validation, signature: Signature) -> None:
    """Raises SubjectError for a sample that what is tuned would refuse."""
    for number, sample in enumerate(validation.inputs, start=1):
        try:
            signature.checked(sample.args, sample.kwargs)
        except (TypeError, ValueError) as refusal:
            raise SubjectError(
                f"validation sample {number} is another call than those that are tuned ({refusal}): give it the form "
                "of the samples, or samples of several sizes"
            ) from None


def answer_once(
    module: nn.Module, validation: Validation, folder: Path, within_s: float = math.inf, *, seed: int, device: str
) -> None:
    """Keep the original's answers, in its own precision, in the run's ``folder`` (``known_answers``).

    They are made once for all studies: kept by hash next to the journals. No hash sees all that decides an answer (a
    file that ``forward`` reads, a package of another version), so the original answers a few samples anew each time.
    Raises SubjectError where it answers without a floating-point tensor, and TakesLonger than ``within_s``.
    """
    inputs = [sample.to(device) for sample in validation.inputs]
    key = [computation_hash(module), str(seed), device, torch.__version__, processor(), *hashes_of(inputs)]
    name = f"{hashlib.sha256(' '.join(key).encode()).hexdigest()}.safetensors"
    try:
        kept = private(home() / "answers") / name
        answers = _read(kept, len(inputs))
    except OSError:
        kept, answers = None, None
    if answers is None or not _still_answered(module, inputs, answers, seed):
        answers = [_answer(module, sample, seed) for sample in soon_done(inputs, within_s)]
        if kept is not None:
            with contextlib.suppress(OSError):
                _write(kept, answers)
    _write(folder / FILE, answers, validation.identity)


def _still_answered(module: nn.Module, inputs: Sequence[Inputs], answers: Sequence[_JudgedAnswer], seed: int) -> bool:
    """Whether the original gives these answers to a few of the inputs, but for rounding."""
    few = {i * len(inputs) // _ASKED_AGAIN for i in range(_ASKED_AGAIN)}
    return all(_agree(_answer(module, inputs[i], seed), answers[i]) for i in few)


def _agree(answer: _JudgedAnswer, kept: _JudgedAnswer) -> bool:
    now, then = answer.scores, kept.scores
    return (
        now.shape == then.shape
        and answer.others.keys() == kept.others.keys()
        and torch.allclose(now, then, rtol=_ROUNDING, atol=_ROUNDING * _largest(then), equal_nan=True)
    )


def _largest(tensor: Tensor) -> float:
    finite = tensor[tensor.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def check_answers(
    measure: AccuracyMeasure, validation: Validation, answers: Sequence[Tensor], *, chooses: bool = True
) -> None:
    """Raises SubjectError where the original's answers and the labels cannot judge anything. ``chooses``: something is
    chosen by them."""
    RowMeasure(measure, validation, answers).check_original(chooses=chooses)


def known_answers(folder: Path, validation: Validation) -> list[Tensor]:
    """The first floating-point tensor of each. Raises TogiError where there are none, and SubjectError where they are
    of other data."""
    return [answer.scores for answer in _known(folder, validation)]


def known_outputs(folder: Path, validation: Validation) -> tuple[list[Tensor], dict[str, list[Tensor]]]:
    """``known_answers``, and by name what else all answers hold that may be judged; read once. Raises as that does."""
    return _apart(_known(folder, validation))


def _apart(answers: Sequence[_JudgedAnswer]) -> tuple[list[Tensor], dict[str, list[Tensor]]]:
    names = [name for name in answers[0].others if all(name in answer.others for answer in answers)]
    return [answer.scores for answer in answers], {name: [answer.others[name] for answer in answers] for name in names}


def _known(folder: Path, validation: Validation) -> list[_JudgedAnswer]:
    answers = _read(folder / FILE, len(validation.inputs))
    if answers is None:
        raise TogiError(f"the original's answers in {folder} cannot be read. Run the command again: they are made anew")
    check_same_data(_data_of(folder / FILE), validation)
    return answers


def _data_of(file: Path) -> str:
    """The identity of the validation data that were answered."""
    from safetensors import safe_open

    with safe_open(str(file), "pt") as kept:
        return str((kept.metadata() or {}).get(_DATA))


def _read(file: Path, count: int) -> list[_JudgedAnswer] | None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    found: list[dict[str, dict[str, Tensor]]] = [{_FIRST: {}, _OTHER: {}} for _ in range(count)]
    try:
        for key, tensor in load_file(str(file)).items():
            number, kind, name = key.split(" ", 2)
            found[int(number)][kind][name] = tensor
        return [_JudgedAnswer(*of[_FIRST].popitem(), of[_OTHER]) for of in found]
    except (OSError, SafetensorError, ValueError, LookupError):  # an earlier version's, too
        return None


def _write(file: Path, answers: Sequence[_JudgedAnswer], data: str = "") -> None:
    """Complete or not at all. ``data``: the identity of those that were answered."""
    from safetensors.torch import save_file

    partial = file.with_name(f".{os.getpid()}-{file.name}")
    kept = {f"{i} {_FIRST} {answer.name}": answer.scores for i, answer in enumerate(answers)}
    kept |= {f"{i} {_OTHER} {name}": other for i, of in enumerate(answers) for name, other in of.others.items()}
    save_file({key: tensor.contiguous() for key, tensor in kept.items()}, str(partial), {_DATA: data})
    partial.replace(file)


def judged(
    call: Call,
    validation: Validation,
    answers: Sequence[Tensor] | KnownScores,
    judging: Judging,
    *,
    confirmation: bool,
    seed: int,
    device: str,
    others: Mapping[str, Sequence[Tensor]] = MappingProxyType({}),
) -> Accuracy:
    """How far ``call`` got worse than the original, on one half of the data. It ends early where that is surely too
    far, and in the half by which is chosen also where it is surely not: what confirms is all of the other. Raises
    whatever ``call`` raises, and CannotScore where the user's metric has no number for its outputs.

    Args:
        answers: of the original, to all samples; or what the user's metric says of them.
        confirmation: on the half that did not choose it.
        others: what else the original answers (``known_outputs``). What is of the kind of ``answers`` is judged as
            these are, and the worst counts.
    """
    assert judging.measure is not None
    inputs = validation.inputs
    asked, chose = _asked(judging, validation, seed, confirmation=confirmation)
    indices = _in_random_order(validation.group_of, asked, seed)
    measured: SeenGroups | _SeenOutputs
    if isinstance(answers, KnownScores):
        measured = SeenGroups(answers, indices, chose)
    else:
        measured = _SeenOutputs(judging, validation, answers, others, indices, chose)
    looks = {max(1, round(share * len(indices))) for share in _LOOKS}
    enough = {Standing.OUTSIDE} if confirmation or judging.by_all else {Standing.OUTSIDE, Standing.PROVEN}
    for number, i in enumerate(indices, start=1):
        measured.add(i, call, inputs[i].to(device), seed)
        if number in looks and standing(measured.drop(), judging.max_drop) in enough:
            break
    return measured.accuracy(confirmation=confirmation)


def _asked(
    judging: Judging, validation: Validation, seed: int, *, confirmation: bool
) -> tuple[Sequence[int], Sequence[int]]:
    """The samples that are asked for, and those that chose what they confirm."""
    if judging.by_all:
        return range(len(validation.inputs)), ()
    choice, other = halves(kept_together(validation), seed if judging.seed is None else judging.seed)
    return (other, choice) if confirmation else (choice, ())


def _in_random_order(group_of: Sequence[Hashable], indices: Sequence[int], seed: int) -> list[int]:
    """One group after another. Data are often sorted, by class or by difficulty, and an early look at sorted data sees
    no sample of the whole."""
    order = list(dict.fromkeys(group_of))
    random.Random(seed).shuffle(order)
    places = {group: place for place, group in enumerate(order)}
    return sorted(indices, key=lambda i: places[group_of[i]])


def _answer(call: Call, sample: Inputs, seed: int) -> _JudgedAnswer:
    """Raises SubjectError where it returns no floating-point tensor."""
    named = tensors_in(as_compared(answered(call, sample, seed)), "output")
    for name, tensor in named:
        if tensor.is_floating_point():
            scores = plain(tensor).to(torch.float32, copy=True)
            return _JudgedAnswer(name, scores, {at: _number(t) for at, t in named if at != name and _like(scores, t)})
    raise SubjectError(
        "accuracy is judged by the first floating-point tensor that the model returns (scores, embeddings), and it "
        "returns none: judge it by a metric of its own"
    )


def _like(scores: Tensor, tensor: Tensor) -> bool:
    """Whether a tensor may hold scores of the same decisions, or decisions."""
    if tensor.is_nested or tensor.is_complex():
        return False
    return not tensor.is_floating_point() or tensor.shape == scores.shape


def _number(tensor: Tensor) -> Tensor:
    """What is kept of it: of integers, each of which is a decision, with a last dimension for the scores of one."""
    if tensor.is_floating_point():
        return plain(tensor).to(torch.float32, copy=True)
    return plain(tensor).to(torch.int64, copy=True)[..., None]


def measures_of_others(
    measure: AccuracyMeasure,
    validation: Validation,
    answers: Sequence[Tensor],
    others: Mapping[str, Sequence[Tensor]],
) -> dict[str, RowMeasure]:
    """By name how what else a model returns is judged, where it is of the kind of its ``answers``: scores of as many
    classes in the same form, and of ``agreement`` what it decided. Labels are of the answers alone."""
    form, found = _form(answers), dict[str, RowMeasure]()
    unlabelled = dataclasses.replace(validation, labels=None)
    for name, tensors in others.items():
        if tensors[0].is_floating_point():
            alike = measure is AccuracyMeasure.RMS or (answers[0].shape[-1:] > (1,) and _form(tensors) is form)
        else:
            alike = measure is AccuracyMeasure.AGREEMENT
        if alike:
            with contextlib.suppress(SubjectError):  # it cannot judge that
                rows = RowMeasure(_UNLABELLED.get(measure, measure), unlabelled, tensors)
                rows.check_original()
                found[name] = rows
    return found


def judged_outputs(measure: AccuracyMeasure, validation: Validation, folder: Path) -> list[str]:
    """Names of the outputs that are judged. Raises as ``known_answers`` does."""
    answers = _known(folder, validation)
    scores, others = _apart(answers)
    return [answers[0].name, *measures_of_others(measure, validation, scores, others)]


def how_read(measure: AccuracyMeasure, validation: Validation, folder: Path) -> list[str]:
    """A sentence on how answers are read, where they may be meant in another way. Raises as ``known_answers`` does."""
    read_as = RowMeasure(measure, validation, known_answers(folder, validation)).read_as
    return [read_as] if read_as else []


def _form(answers: Sequence[Tensor]) -> ScoreForm:
    return form_of([rows_of(answer, by_rows=False) for answer in answers])


def not_judged(signature: Signature, judged: Collection[str]) -> list[str]:
    """A sentence on what a model returns besides what is judged (by name); none where that is all."""
    others = [facts.name for facts in signature.outputs_facts if facts.name not in judged]
    if not others or not judged:
        return []
    return [
        f"Accuracy is judged by {', '.join(judged)} of the outputs, and not by {', '.join(others)}: of an approximate "
        "result these may be off by a tenth (relative RMS error, on the samples). Set another limit (--max-error), or "
        "judge by a metric of your own (--metric FILE:function)"
    ]


class _SeenOutputs:
    """What was seen so far of all outputs that are judged."""

    def __init__(
        self,
        judging: Judging,
        validation: Validation,
        answers: Sequence[Tensor],
        others: Mapping[str, Sequence[Tensor]],
        indices: Sequence[int],
        chose: Sequence[int],
    ) -> None:
        measure, self._max_drop = judging.measure, judging.max_drop
        assert measure is not None
        self._name = ""
        self._first = _SeenRows(RowMeasure(measure, validation, answers), validation, indices, chose)
        self._others = {
            name: _SeenRows(rows, validation, indices, chose)
            for name, rows in measures_of_others(measure, validation, answers, others).items()
        }

    def add(self, i: int, call: Call, sample: Inputs, seed: int) -> None:
        """Raises whatever ``call`` raises."""
        answer = _answer(call, sample, seed)
        self._name = answer.name
        self._first.add(i, answer.scores)
        for name, rows in self._others.items():
            rows.add(i, answer.others.get(name, _NOTHING))

    def drop(self) -> Drop:
        return self._worst()[1]

    def accuracy(self, *, confirmation: bool) -> Accuracy:
        worst, drop = self._worst()
        rows = self._others.get(worst, self._first)
        names = dict.fromkeys([worst, self._name, *self._others])
        return rows.accuracy(drop, tuple(names), confirmation=confirmation)

    def _worst(self) -> tuple[str, Drop]:
        """The output that lost most, and its drop. What is surely outside comes first."""
        drops = {name: rows.drop() for name, rows in {self._name: self._first, **self._others}.items()}
        worst = max(drops, key=lambda name: (drops[name].low > self._max_drop, drops[name].high))
        return worst, drops[worst]


def _new_rows(
    validation: Validation, counted: Mapping[int, Sequence[bool]], chose: Mapping[int, int]
) -> dict[int, list[bool]]:
    """Of each sample, which of its rows that count do not repeat one that counts before, or one that chose.

    Args:
        counted: of each sample, in the order in which they are asked for, which of its rows count.
        chose: of each sample that chose, how many rows it has.
    """
    met = {known for i, rows in chose.items() for known in known_by(validation, i, rows)}
    new: dict[int, list[bool]] = {}
    for i, counts in counted.items():
        new[i] = []
        for known in itertools.compress(known_by(validation, i, len(counts)), counts):
            new[i].append(known not in met)
            met.add(known)
    return new


class _SeenRows:
    """The rows seen so far of one output. Copies, of one seen before or of one that chose, count as others do, and not
    at all: whichever proves less. Often met they are worth more, and they prove nothing more."""

    def __init__(self, rows: RowMeasure, validation: Validation, indices: Sequence[int], chose: Sequence[int]) -> None:
        self._rows, self._data = rows, validation.identity
        self._gains = rows.measure is AccuracyMeasure.ACCURACY
        self._group_of = validation.group_of
        self._grouped = validation.groups is not None
        self._graded = self._grouped or self._rows.graded
        counted = {i: self._rows.counted(i).tolist() for i in indices}
        if self._grouped:
            self._planned = len({self._group_of[i] for i, rows_of in counted.items() if any(rows_of)})
        else:
            self._planned = sum(map(sum, counted.values()))
        self._new = _new_rows(validation, counted, {i: rows.count(i) for i in chose})
        self._copied = not self._grouped and not all(map(all, self._new.values()))
        self._hits: list[float] = []
        self._differences: list[float] = []
        self._groups: list[Any] = []
        self._are_new: list[bool] = []

    def add(self, i: int, answer: Tensor) -> None:
        counted = self._rows.counted(i)
        differences = self._rows.worse(i, answer)[counted].tolist()
        self._differences += differences
        self._hits += self._rows.hits(i)[counted].tolist() if self._gains else []
        self._groups += [self._group_of[i]] * len(differences)
        self._are_new += self._new[i]

    def drop(self) -> Drop:
        """By groups, where there are some; all but the last are complete, and it was begun."""
        if self._grouped:
            return scores(by_group(self._differences, self._groups), self._planned)
        drop = self._drop_of(self._differences, self._planned)
        if not self._copied:
            return drop
        new = [difference for difference, is_new in zip(self._differences, self._are_new, strict=True) if is_new]
        return max(drop, self._drop_of(new, sum(map(sum, self._new.values()))), key=lambda each: each.high)

    def _drop_of(self, differences: Sequence[float], planned: int) -> Drop:
        if self._graded:
            return scores(differences, planned)
        gains = differences.count(-1.0) if self._gains else None
        return flips(differences.count(1.0), len(differences), planned, gains=gains)

    def accuracy(self, drop: Drop, outputs: tuple[str, ...], *, confirmation: bool) -> Accuracy:
        before, now = self._shares()
        return Accuracy(
            measure=self._rows.measure,
            confirmation=confirmation,
            drop=drop,
            outputs=outputs,
            data=self._data,
            original=before,
            candidate=now,
            form=self._rows.form,
        )

    def _shares(self) -> tuple[float | None, float | None]:
        """Of labels that the original and the candidate hit. A row without a finite answer is lost."""
        if not self._hits:
            return None, None
        left = [max(0.0, hit - lost) for hit, lost in zip(self._hits, self._differences, strict=True)]
        of_both = (by_group(one, self._groups) if self._grouped else one for one in (self._hits, left))
        before, now = (math.fsum(one) / len(one) for one in of_both)
        return before, now
