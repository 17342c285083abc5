"""Accuracy on validation data: which rows are lost, by each measure, and when a recipe is stopped."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.core.choices import AccuracyMeasure
from togi.core.errors import SubjectError, TogiError
from togi.core.judging import Judging
from togi.core.records import Accuracy
from togi.decide.paired import Standing, halves, standing
from togi.subject.inputs import Inputs
from togi.subject.signature import Signature
from togi.subject.validation import Validation, known_by
from togi.verify import accuracy
from togi.verify.accuracy import (
    answer_once,
    check_answers,
    judged,
    judged_outputs,
    known_answers,
    known_outputs,
    not_judged,
)

CLASSES, COUNT = 8, 400
BUILT_IN = [measure for measure in AccuracyMeasure if measure is not AccuracyMeasure.OWN]


class Scores(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOGI_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def data(count: int = COUNT, **given: Any) -> Validation:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    noise = 0.1 * torch.rand(count, CLASSES, generator=generator)
    samples = [(torch.eye(CLASSES)[label] + row)[None] for label, row in zip(labels, noise, strict=True)]
    return Validation(**{"samples": samples, "labels": labels.tolist(), **given})


def measured(
    call: Callable[..., Any],
    measure: AccuracyMeasure,
    tmp_path: Path,
    *,
    max_drop: float = 1.0,
    confirmation: bool = True,
    **given: Any,
) -> Accuracy:
    """On all of one half: what confirms does not end early where it is within."""
    validation = data(**given)
    answer_once(Scores(), validation, tmp_path, seed=0, device="cpu")
    return judged(
        call,
        validation,
        known_answers(tmp_path, validation),
        Judging(measure=measure, max_drop=max_drop),
        confirmation=confirmation,
        seed=0,
        device="cpu",
    )


def every(number: int, wrong: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The original, but for one of so many calls."""
    calls = iter(range(10**6))
    return lambda x: wrong(x * 2) if next(calls) % number == 0 else x * 2


@pytest.mark.parametrize("measure", BUILT_IN)
def test_the_original_itself_loses_nothing(measure: AccuracyMeasure, tmp_path: Path) -> None:
    drop = measured(Scores(), measure, tmp_path).drop
    assert drop.mean == pytest.approx(0, abs=1e-5)
    least = 0.7 * COUNT // 2 if measure is AccuracyMeasure.DECIDED else COUNT // 2
    assert least <= drop.seen == drop.planned <= COUNT // 2


@pytest.mark.parametrize("measure", BUILT_IN)
def test_what_is_wrong_once_in_ten_calls_loses_by_every_measure(measure: AccuracyMeasure, tmp_path: Path) -> None:
    accuracy = measured(every(10, lambda scores: -scores), measure, tmp_path)
    assert accuracy.drop.mean == pytest.approx(
        0.1, abs=0.03 if measure in (AccuracyMeasure.RMS, AccuracyMeasure.RANK, AccuracyMeasure.DECIDED) else 0.001
    )


def test_labels_count_gains_and_agreement_does_not(tmp_path: Path) -> None:
    """A quarter of the labels is of another class, which the candidate hits and the original does not."""
    labels = data().labels
    assert labels is not None
    moved = [(label + 1) % CLASSES if i % 4 == 0 else label for i, label in enumerate(labels)]

    def shifted(x: Tensor) -> Tensor:
        return x.roll(1, dims=-1) * 2

    by_labels = measured(shifted, AccuracyMeasure.ACCURACY, tmp_path, labels=moved).drop
    by_original = measured(shifted, AccuracyMeasure.AGREEMENT, tmp_path, labels=moved).drop
    assert by_labels.losses + (by_labels.gains or 0) == COUNT // 2
    assert by_labels.gains
    assert (by_original.losses, by_original.gains) == (COUNT // 2, None)
    assert by_labels.mean < by_original.mean == 1.0


def test_accuracy_tells_from_what_it_went_to_what(tmp_path: Path) -> None:
    """The original hits three of four labels, and every tenth answer of the candidate is not a number."""
    labels = data().labels
    assert labels is not None
    moved = [(label + 1) % CLASSES if i % 4 == 0 else label for i, label in enumerate(labels)]
    seen = halves(range(COUNT), 0)[1]
    hit = sum(i % 4 != 0 for i in seen) / len(seen)
    found = measured(every(10, lambda scores: scores * math.nan), AccuracyMeasure.ACCURACY, tmp_path, labels=moved)
    assert found.original == pytest.approx(hit)
    assert found.candidate is not None
    assert 0.8 * hit < found.candidate < 0.95 * hit
    agreed = measured(Scores(), AccuracyMeasure.AGREEMENT, tmp_path)
    assert (agreed.original, agreed.candidate) == (None, None)


def test_labels_that_the_original_hits_no_more_often_than_chance_judge_nothing() -> None:
    """A destroyed model would lose nothing by them."""
    classes, count = 1000, 1000
    right = torch.arange(count) % classes
    answers = [torch.eye(classes)[label][None] for label in right]
    generator = torch.Generator().manual_seed(0)

    def check(labels: Tensor, measure: AccuracyMeasure = AccuracyMeasure.ACCURACY) -> None:
        check_answers(measure, Validation(answers, labels.tolist()), answers)

    shuffled = torch.randint(0, classes, (count,), generator=generator)
    for labels in ((right + 1) % classes, shuffled):
        with pytest.raises(SubjectError, match=r"hits \d of 1,000 labels, and in another order it would hit 1"):
            check(labels)
        check(labels, AccuracyMeasure.AGREEMENT)
    check(right)
    check(torch.where(right % 10 == 0, right, shuffled))  # one label of ten is right, and chance is one in a thousand
    check_answers(AccuracyMeasure.ACCURACY, Validation(answers[:1] * 9, [0] * 9), answers[:1] * 9)


def test_few_labels_that_are_all_hit_are_left_to_the_interval() -> None:
    """They prove little, and the original is right all the same."""
    answers = [torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])] * 2
    check_answers(AccuracyMeasure.ACCURACY, Validation(answers, [0, 1, 0, 1]), answers)


def test_labels_may_be_truth_values() -> None:
    answers = [torch.tensor([[float(i % 2)]]) for i in range(20)]
    check_answers(AccuracyMeasure.ACCURACY, Validation(answers, [bool(i % 2) for i in range(20)]), answers)


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_an_original_that_always_answers_the_same_judges_nothing(share: float) -> None:
    answers = [torch.tensor([[1.0, 0.0]])] * 200
    labels = [int(i >= share * 200) for i in range(200)]
    with pytest.raises(SubjectError, match=f"hits {share * 200:.0f} of 200 labels"):
        check_answers(AccuracyMeasure.ACCURACY, Validation(answers, labels), answers)


def test_a_recipe_that_is_surely_outside_is_stopped_early(tmp_path: Path) -> None:
    calls: list[int] = []

    def wrong(x: Tensor) -> Tensor:
        calls.append(1)
        return -x

    stopped = measured(wrong, AccuracyMeasure.AGREEMENT, tmp_path, max_drop=0.01)
    assert standing(stopped.drop, 0.01) is Standing.OUTSIDE
    assert len(calls) == stopped.drop.seen < COUNT // 8


@pytest.mark.parametrize(
    ("measure", "given", "ends"),
    [
        (AccuracyMeasure.KL, {}, True),
        (AccuracyMeasure.AGREEMENT, {"groups": [i // 2 for i in range(COUNT)]}, True),
        (AccuracyMeasure.AGREEMENT, {}, False),  # the exact bound of all is tighter
    ],
)
def test_a_choice_ends_early_where_it_is_surely_within_and_its_confirmation_does_not(
    measure: AccuracyMeasure, given: dict[str, Any], ends: bool, tmp_path: Path
) -> None:
    chosen, confirmed = (
        measured(Scores(), measure, tmp_path, max_drop=0.2, confirmation=confirmation, **given).drop
        for confirmation in (False, True)
    )
    assert (chosen.seen < chosen.planned // 2) is ends
    assert confirmed.complete
    assert all(standing(drop, 0.2) is Standing.PROVEN for drop in (chosen, confirmed))
    assert measured(Scores(), measure, tmp_path, max_drop=1e-4, confirmation=False, **given).drop.complete


@pytest.mark.parametrize("scores", [lambda s: s * float("nan"), lambda s: s[:, :4], lambda s: s.repeat(2, 1)])
def test_what_is_no_answer_is_lost(scores: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    for measure in (AccuracyMeasure.AGREEMENT, AccuracyMeasure.KL, AccuracyMeasure.ACCURACY):
        assert measured(every(1, scores), measure, tmp_path).drop.mean == 1.0


def test_rows_of_a_batch_count_by_themselves_and_groups_as_one(tmp_path: Path) -> None:
    batches = [torch.cat(data().samples[i : i + 10]) for i in range(0, COUNT, 10)]
    validation = Validation(batches)
    answer_once(Scores(), validation, tmp_path, seed=0, device="cpu")
    answers, judging = known_answers(tmp_path, validation), Judging(measure=AccuracyMeasure.AGREEMENT, max_drop=1.0)

    def of(validation: Validation) -> Accuracy:
        wrong = every(1, lambda scores: torch.cat([-scores[:1], scores[1:]]))
        return judged(wrong, validation, answers, judging, confirmation=True, seed=0, device="cpu")

    alone, grouped = of(validation).drop, of(Validation(batches, groups=[i // 4 for i in range(len(batches))])).drop
    assert (alone.seen, alone.losses) == (COUNT // 2, COUNT // 20)
    assert (grouped.seen, grouped.planned, grouped.losses) == (5, 5, None)
    assert alone.mean == pytest.approx(grouped.mean) == 0.1
    assert grouped.high > alone.high


def all_of(call: Callable[..., Any], samples: list[Tensor], tmp_path: Path, *, by_all: bool = False) -> list[Accuracy]:
    """Of both halves of these samples, or twice of all."""
    validation = Validation(samples)
    answer_once(Scores(), validation, tmp_path, seed=0, device="cpu")
    answers = known_answers(tmp_path, validation)
    judging = Judging(measure=AccuracyMeasure.AGREEMENT, max_drop=1.0, by_all=by_all)
    return [
        judged(call, validation, answers, judging, confirmation=half, seed=0, device="cpu") for half in (False, True)
    ]


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("moved", [0, 1], ids=["whole batches", "rows of other batches"])
def test_copies_prove_nothing_more(rows: int, moved: int, tmp_path: Path) -> None:
    """600 rows of which 60 differ. What chose a recipe cannot confirm it either."""
    few = data(60).samples
    places = [place + moved * (place // 60) for place in range(600)]
    batches = [torch.cat([few[place % 60] for place in places[i : i + rows]]) for i in range(0, 600, rows)]
    drops = [accuracy.drop for accuracy in all_of(Scores(), batches, tmp_path)]
    assert 40 <= sum(drop.seen for drop in drops) <= 60
    assert all(drop.complete and drop.losses == 0 for drop in drops)
    assert max(drop.high for drop in drops) > 0.09


def test_copies_that_are_lost_count_as_often_as_they_are_met(tmp_path: Path) -> None:
    """Half of what the model meets is silence. It is one sample of 101 that differ, and its loss is one of two."""
    silence = torch.eye(CLASSES)[:1]
    lost = all_of(
        lambda x: -x if torch.equal(x, silence) else x * 2, [silence] * 100 + data(100).samples, tmp_path, by_all=True
    )
    assert lost[0].drop.mean == pytest.approx(0.5)


def test_a_copy_of_a_row_is_one_wherever_the_samples_have_no_rows_of_their_own() -> None:
    tables = [(torch.eye(CLASSES)[:2], torch.ones(1, 7)), (torch.eye(CLASSES)[2:4], torch.ones(1, 7))]
    validation = Validation([*tables, tables[0]])
    assert known_by(validation, 0, 2) == known_by(validation, 2, 2)
    assert len({*known_by(validation, 0, 2), *known_by(validation, 1, 2)}) == 4
    assert known_by(validation, 0, 1) != known_by(validation, 1, 1)


def test_sorted_data_are_seen_in_random_order(tmp_path: Path) -> None:
    """The first tenth of them is lost, and a fifth is allowed: it is not stopped for what came first."""
    labels = sorted(data().labels or ())
    first = max(labels[: COUNT // 10])
    samples = [torch.eye(CLASSES)[label][None] + i / COUNT for i, label in enumerate(labels)]
    calls = measured(
        lambda x: -x if int(x.argmax()) == 0 and first == 0 else x * 2,
        AccuracyMeasure.AGREEMENT,
        tmp_path,
        max_drop=0.25,
        samples=samples,
        labels=None,
    )
    assert calls.drop.seen == calls.drop.planned
    assert 0.05 < calls.drop.mean < 0.2


def test_choice_and_confirmation_see_other_samples(tmp_path: Path) -> None:
    validation = data()
    answer_once(Scores(), validation, tmp_path, seed=0, device="cpu")
    seen: dict[bool, set[str]] = {}
    for confirmation in (False, True):
        given: list[str] = []

        def call(x: Tensor, given: list[str] = given) -> Tensor:
            given.append(str(x.tolist()))
            return x * 2

        judging = Judging(measure=AccuracyMeasure.AGREEMENT, max_drop=0.1)
        answers = known_answers(tmp_path, validation)
        judged(call, validation, answers, judging, confirmation=confirmation, seed=0, device="cpu")
        seen[confirmation] = set(given)
    assert not seen[False] & seen[True]
    assert len(seen[False] | seen[True]) == COUNT
    assert halves(range(COUNT), 0)[0] != halves(range(COUNT), 1)[0]


def test_the_halves_are_those_of_the_study_whatever_the_seed_that_confirms(tmp_path: Path) -> None:
    validation = data(40)
    answer_once(Scores(), validation, tmp_path, seed=0, device="cpu")
    answers = known_answers(tmp_path, validation)

    def asked(seed: int, *, confirmation: bool) -> set[str]:
        given: list[str] = []

        def call(x: Tensor) -> Tensor:
            given.append(str(x.tolist()))
            return x * 2

        judging = Judging(measure=AccuracyMeasure.AGREEMENT, max_drop=0.1, seed=0)
        judged(call, validation, answers, judging, confirmation=confirmation, seed=seed, device="cpu")
        return set(given)

    chosen = asked(0, confirmation=False)
    for seed in range(3):
        assert not asked(seed, confirmation=True) & chosen


class Scaled(nn.Module):
    """A setting that is no weight."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.linear = nn.Linear(CLASSES, 4)
        for weight in self.parameters():
            nn.init.constant_(weight, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.linear(x)
        return self.scale * scores


class Pooled(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).abs()


class Finds(nn.Module):
    """It computes with what no hash of it sees."""

    def forward(self, x: Tensor) -> Tensor:
        return x * float(os.environ["SCALE_OF_THE_TEST"])


def times_asked(module: nn.Module, validation: Validation, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a module is called until its answers are known, which must be its own."""
    asked: list[int] = []
    answer = accuracy._answer

    def noted(call: Callable[..., Any], sample: Inputs, seed: int) -> Any:
        asked.append(1)
        return answer(call, sample, seed)

    with monkeypatch.context() as patched:
        patched.setattr(accuracy, "_answer", noted)
        answer_once(module, validation, folder, seed=0, device="cpu")
    known = known_answers(folder, validation)
    assert all(torch.equal(known[i], module(x)) for i, x in enumerate(validation.samples))
    return len(asked)


def test_the_original_answers_once_for_all_studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    validation, few = data(20), 4

    def asked(module: nn.Module) -> int:
        return times_asked(module, validation, tmp_path, monkeypatch)

    assert [asked(Scaled(1.0)), asked(Scaled(1.0))] == [20, few]
    others = [Scaled(-1.0), Pooled(1.0)]  # another setting, another forward: the weights are the same
    assert [asked(other) for other in others] == [20, 20]
    hooked = Scaled(1.0)
    hooked.register_forward_hook(lambda _, __, scores: scores + 1)
    assert asked(hooked) == 20
    assert asked(Scaled(1.0)) == few
    (tmp_path / "home" / "answers").chmod(0o777)  # others could have written them
    assert asked(Scaled(1.0)) == 20
    monkeypatch.setenv("TOGI_HOME", "/proc/none")  # cannot be written
    assert asked(Scaled(1.0)) == 20
    (tmp_path / accuracy.FILE).write_bytes(b"cut")
    with pytest.raises(TogiError, match="they are made anew"):
        known_answers(tmp_path, validation)


def test_kept_answers_that_the_original_no_longer_gives_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validation = data(20)
    for scale, expected in (("1", 20), ("1", 4), ("1.1", 1 + 20), ("1.1", 4)):
        monkeypatch.setenv("SCALE_OF_THE_TEST", scale)
        assert times_asked(Finds(), validation, tmp_path, monkeypatch) == expected


def test_answers_to_other_data_are_not_taken_for_those_to_these(tmp_path: Path) -> None:
    """A function that draws its samples, or takes them from a set, returns others in each process: by labels in another
    order the original would be right about none, and any recipe would gain."""
    validation = data(20)
    answer_once(Scores(), validation, tmp_path, seed=0, device="cpu")
    labels = validation.labels
    assert labels is not None
    assert len(known_answers(tmp_path, data(20))) == 20
    for other in ({"samples": validation.samples[::-1]}, {"labels": [*labels[1:], labels[0]]}, {"labels": None}):
        with pytest.raises(SubjectError, match="Give it a seed, and sort what has no order"):
            known_answers(tmp_path, data(20, **other))


class Heads(nn.Module):
    """Scores, scores of its own of as many classes, what was decided, and four numbers that are none of that."""

    def __init__(self, broken: str = "") -> None:
        super().__init__()
        self.broken = broken

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        other = x.roll(1, -1)
        found = {"scores": x * 2, "other": other, "decided": other.argmax(-1), "box": x[:, :4] * 9}
        if self.broken:
            found[self.broken] = found[self.broken].flip(-1) if self.broken != "decided" else 7 - found["decided"]
        return found


def judged_heads(broken: str, measure: AccuracyMeasure, tmp_path: Path) -> Accuracy:
    validation = data()
    answer_once(Heads(), validation, tmp_path, seed=0, device="cpu")
    return judged(
        Heads(broken),
        validation,
        known_answers(tmp_path, validation),
        Judging(measure=measure, max_drop=0.5),
        confirmation=False,
        seed=0,
        device="cpu",
        others=known_outputs(tmp_path, validation)[1],
    )


@pytest.mark.parametrize("broken", ["other", "decided"])
def test_the_output_that_loses_most_decides(broken: str, tmp_path: Path) -> None:
    found = judged_heads(broken, AccuracyMeasure.AGREEMENT, tmp_path)
    assert found.drop.mean > 0.9
    assert broken in found.outputs[0]
    assert standing(found.drop, 0.5) is Standing.OUTSIDE
    assert len(found.outputs) == 3
    assert not any("box" in name for name in found.outputs)


def test_labels_are_of_the_first_output_alone(tmp_path: Path) -> None:
    assert judged_heads("", AccuracyMeasure.ACCURACY, tmp_path).measure is AccuracyMeasure.ACCURACY
    found = judged_heads("other", AccuracyMeasure.ACCURACY, tmp_path)
    assert found.measure is AccuracyMeasure.AGREEMENT
    assert found.drop.mean > 0.9


def test_what_a_model_returns_besides_what_is_judged_is_told(tmp_path: Path) -> None:
    x = torch.rand(1, CLASSES)
    signature = Signature.of(nn.Identity(), (Inputs((x,)),), [Heads()(x)])
    answer_once(Heads(), data(), tmp_path, seed=0, device="cpu")

    def told(measure: AccuracyMeasure) -> list[str]:
        return not_judged(signature, judged_outputs(measure, data(), tmp_path))

    (note,) = told(AccuracyMeasure.AGREEMENT)
    by, _, others = note.partition("of the outputs, and not by")
    assert "decided" in by
    assert "box" in others
    assert "decided" not in others
    (note,) = told(AccuracyMeasure.KL)
    assert "decided" in note.partition("and not by")[2]
    assert not_judged(signature, [facts.name for facts in signature.outputs_facts]) == []


def test_what_cannot_be_judged_is_told(tmp_path: Path) -> None:
    with pytest.raises(SubjectError, match=r"accuracy needs labels.*--min-agreement"):
        measured(Scores(), AccuracyMeasure.ACCURACY, tmp_path, labels=None)

    class Whole(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.argmax(-1)

    with pytest.raises(SubjectError, match=r"first floating-point tensor.*a metric of its own"):
        answer_once(Whole(), data(), tmp_path, seed=0, device="cpu")


def test_a_sequence_of_decisions_is_one_row(tmp_path: Path) -> None:
    samples = [torch.rand(1, 5, CLASSES, generator=torch.Generator().manual_seed(i)) for i in range(40)]
    validation = Validation(samples)
    answer_once(Scores(), validation, tmp_path, seed=0, device="cpu")
    found = judged(
        every(1, lambda scores: torch.cat([-scores[:, :1], scores[:, 1:]], 1)),
        validation,
        known_answers(tmp_path, validation),
        Judging(measure=AccuracyMeasure.AGREEMENT, max_drop=1.0),
        confirmation=True,
        seed=0,
        device="cpu",
    )
    assert (found.drop.seen, found.drop.losses) == (20, None)
    assert found.drop.mean == pytest.approx(0.2)
