"""Each measure against a computation by hand, on what a model may return: logits, probabilities, embeddings, masks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from togi.core.choices import AccuracyMeasure, ScoreForm
from togi.core.errors import SubjectError
from togi.subject.inputs import Inputs
from togi.subject.validation import Validation
from togi.verify.measures import RowMeasure

BUILT_IN = [measure for measure in AccuracyMeasure if measure is not AccuracyMeasure.OWN]
KL_BY_HAND = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
"""From one half each to a quarter and three quarters."""


def measure(name: AccuracyMeasure, answers: list[Tensor], **given: Any) -> RowMeasure:
    """Of an original that answered so."""
    return RowMeasure(name, Validation(answers, **given), answers)


def worse(name: AccuracyMeasure, original: Tensor, candidate: Tensor, **given: Any) -> list[float]:
    """By how much the rows of the first of two samples are; the second is the same."""
    judged = measure(name, [original, original], **given)
    return judged.worse(0, candidate)[judged.counted(0)].tolist()


@pytest.mark.parametrize("form", ["probabilities", "logits", "a single probability", "a single logit"])
def test_divergence_is_of_probabilities_in_whatever_form_they_are_returned(form: str) -> None:
    """The softmax of probabilities is nearly uniform, and that of a single score is 1 whatever it is."""
    p, q = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.25, 0.75]])
    forms = {
        "probabilities": (p, q),
        "logits": (p.log() + 3, q.log() - 1),
        "a single probability": (p[:, 1:], q[:, 1:]),
        "a single logit": (p[:, 1:].logit() - 0.0, q[:, 1:].logit()),
    }
    original, candidate = forms[form]
    if form == "a single logit":  # zero alone could be a probability, too
        original, candidate = torch.cat([original, -candidate]), torch.cat([candidate, -candidate])
    assert worse(AccuracyMeasure.KL, original, candidate)[0] == pytest.approx(KL_BY_HAND, abs=1e-6)


def test_a_single_probability_decides_at_one_half_and_a_single_logit_at_zero() -> None:
    probabilities, logits = torch.tensor([[0.9], [0.2], [0.6]]), torch.tensor([[2.0], [-2.0], [0.4]])
    for original, flipped in ((probabilities, 1 - probabilities), (logits, -logits)):
        candidate = torch.cat([original[:1], flipped[1:]])
        assert worse(AccuracyMeasure.AGREEMENT, original, candidate) == [0, 1, 1]


def test_a_nan_in_one_answer_does_not_change_how_the_others_are_read() -> None:
    """Read as logits, every probability would be a yes, and no candidate could disagree."""
    answers = [torch.tensor([[0.9], [0.2]]), torch.tensor([[math.nan], [0.1]])]
    for name in (AccuracyMeasure.AGREEMENT, AccuracyMeasure.IOU):
        assert measure(name, answers).worse(0, 1 - answers[0]).tolist() == [1, 1]
    logits = [torch.tensor([[3.0, -math.inf]]), torch.tensor([[-math.inf, 0.5]])]
    assert measure(AccuracyMeasure.KL, logits).form is ScoreForm.LOGITS, "classes may be ruled out in each row"
    assert measure(AccuracyMeasure.KL, logits).worse(0, logits[0]).tolist() == [0]


def test_probabilities_that_miss_the_sum_are_not_read_as_logits() -> None:
    """Their softmax is nearly uniform, so that opposite answers would not differ."""
    p = torch.eye(1000)[:2] * (1 - 0.0015)
    assert min(worse(AccuracyMeasure.KL, p, p.flip(0))) > 0.9
    assert worse(AccuracyMeasure.KL, p, p) == pytest.approx([0, 0], abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("classes", [10, 1000, 50_000])
def test_probabilities_of_16_bits_are_probabilities(dtype: torch.dtype, classes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for sharpness in (1, 4, 12):
        logits = sharpness * torch.randn(20, classes, generator=generator)
        answers = [logits.to(dtype).softmax(-1).float()] * 2
        assert measure(AccuracyMeasure.KL, answers).form is ScoreForm.PROBABILITIES


def test_labels_that_do_not_exclude_each_other_are_decided_one_by_one() -> None:
    """By hand: one label of three goes from one half to a quarter, the others stay."""
    original = torch.tensor([[0.9, 0.5, 0.8], [0.3, 0.4, 0.2]])
    candidate = torch.tensor([[0.9, 0.25, 0.8], [0.3, 0.4, 0.2]])
    assert worse(AccuracyMeasure.KL, original, candidate) == pytest.approx([KL_BY_HAND, 0], abs=1e-6)
    assert worse(AccuracyMeasure.DECIDED, original, original.flip(1)) == [1], "of the second row it is not sure"
    assert measure(AccuracyMeasure.DECIDED, [original, original]).form is ScoreForm.INDEPENDENT
    with pytest.raises(SubjectError, match="have the model return its logits"):
        measure(AccuracyMeasure.PERPLEXITY, [original, original], labels=[[0, 1]] * 2)


def test_answers_of_which_the_original_is_not_sure_do_not_count() -> None:
    original = torch.tensor([[0.6, 0.3, 0.1], [0.4, 0.35, 0.25], [0.1, 0.8, 0.1], [0.45, 0.4, 0.15]])
    candidate = original[:, [1, 0, 2]]
    candidate[2:] = original[2:]
    assert worse(AccuracyMeasure.AGREEMENT, original, candidate) == [1, 1, 0, 0]
    assert worse(AccuracyMeasure.DECIDED, original, candidate) == [1, 0]
    assert worse(AccuracyMeasure.DECIDED, original.log() + 2, candidate.log()) == [1, 0]
    with pytest.raises(SubjectError, match="above one half, and it gives none"):
        measure(AccuracyMeasure.DECIDED, [original[[1, 3]]] * 2)


def test_perplexity_is_of_the_labels_that_are_given() -> None:
    """Of two tokens: 0.5 and 0.25 became 0.4 and 0.25. The third has no label."""
    original = torch.tensor([[[0.5, 0.3, 0.2], [0.25, 0.25, 0.5], [0.1, 0.1, 0.8]]])
    candidate = torch.tensor([[[0.4, 0.4, 0.2], [0.25, 0.7, 0.05], [0.8, 0.1, 0.1]]])
    labels = [torch.tensor([[0, 0, -100]])] * 2
    by_hand = (math.log(0.5 / 0.4) + math.log(0.25 / 0.25)) / 2
    for form in (lambda p: p, lambda p: p.log() + 5):
        found = worse(AccuracyMeasure.PERPLEXITY, form(original), form(candidate), labels=labels)
        assert found == pytest.approx([by_hand], abs=1e-6)
    ratio = math.exp(by_hand)
    perplexities = [math.exp(-(math.log(first) + math.log(0.25)) / 2) for first in (0.5, 0.4)]
    assert ratio == pytest.approx(perplexities[1] / perplexities[0])
    gained = worse(AccuracyMeasure.PERPLEXITY, candidate, original, labels=labels)
    assert gained == pytest.approx([-by_hand], abs=1e-6), "what is better counts for it"
    with pytest.raises(SubjectError, match="labels from 0 on, and there are none"):
        measure(AccuracyMeasure.PERPLEXITY, [original] * 2, labels=[torch.full((1, 3), -100)] * 2)
    with pytest.raises(SubjectError, match="the measure perplexity needs labels"):
        measure(AccuracyMeasure.PERPLEXITY, [original] * 2)


def test_accuracy_is_of_the_labels_that_are_given() -> None:
    """90 of 100 places have no label, and the candidate is wrong at each of the others."""
    original = torch.eye(10)[None].repeat(1, 10, 1)
    labels = [torch.cat([torch.arange(10), torch.full((90,), -100)])[None]] * 2
    assert worse(AccuracyMeasure.ACCURACY, original, original.roll(1, -1), labels=labels) == [1]
    one_lost = torch.cat([original[:, :1].roll(1, -1), original[:, 1:]], 1)
    assert worse(AccuracyMeasure.ACCURACY, original, one_lost, labels=labels) == pytest.approx([0.1])
    with pytest.raises(SubjectError, match="labels from 0 on, and there are none"):
        measure(AccuracyMeasure.ACCURACY, [original] * 2, labels=[torch.full((1, 100), -100)] * 2)


@pytest.mark.parametrize("name", [AccuracyMeasure.AGREEMENT, AccuracyMeasure.DECIDED, AccuracyMeasure.KL])
def test_places_that_labels_leave_out_do_not_count_where_labels_are_not_needed(name: AccuracyMeasure) -> None:
    """90 of 100 places are padding, which nearly any candidate answers alike: it would hide the other ten."""
    original = torch.eye(10)[None].repeat(1, 10, 1)
    labels = [torch.cat([torch.arange(10), torch.full((90,), -100)])[None]] * 2
    wrong = original.roll(1, -1)
    assert worse(name, original, torch.cat([wrong[:, :10], original[:, 10:]], 1), labels=labels) == [1]
    assert worse(name, original, torch.cat([original[:, :10], wrong[:, 10:]], 1), labels=labels) == [0]
    for others in (["a text", "another"], [7, 8], [torch.full((1, 100), -1)] * 2):
        assert worse(name, original, torch.cat([wrong[:, :1], original[:, 1:]], 1), labels=others)[0] > 0
    with pytest.raises(SubjectError, match=r"no row that counts|above one half"):
        measure(name, [original] * 2, labels=[torch.full((1, 100), -100)] * 2)


@pytest.mark.parametrize(
    ("shape", "read"),
    [
        ((1, 84, 400), "the shape (1, 84, 400) as 84 decisions among 400 scores, which the last dimension holds."),
        ((1, 5, 1, 1), "as 5 decisions of yes or no."),
        ((1, 9), ""),
    ],
)
def test_how_an_answer_of_several_decisions_is_read_is_told(shape: tuple[int, ...], read: str) -> None:
    """A detector may hold the scores of a box in the second dimension, and nothing shows it."""
    answers = list(torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)))
    data = Validation([torch.ones(1, 3, 64, 64)] * 2)
    found = RowMeasure(AccuracyMeasure.AGREEMENT, data, answers).read_as
    assert read in found
    assert bool(found) is bool(read)
    assert RowMeasure(AccuracyMeasure.RMS, data, answers).read_as == ""


@pytest.mark.parametrize("shape", [(1, 4, 6, 8), (1, 4, 3, 4), (1, 1, 6, 8), (1, 6, 8)])
def test_the_width_of_a_picture_is_no_number_of_classes(shape: tuple[int, ...]) -> None:
    """A class that is a little likelier everywhere changes what each place is, and the largest of a line stays."""
    generator = torch.Generator().manual_seed(0)
    pictures = Validation(list(torch.rand(2, 1, 3, 6, 8, generator=generator)), labels=[0, 1])
    answers = list(torch.randn(2, *shape, generator=generator))
    for name in BUILT_IN:
        if name in (AccuracyMeasure.RMS, AccuracyMeasure.IOU, AccuracyMeasure.RANK, AccuracyMeasure.NEAREST):
            RowMeasure(name, pictures, answers)
        elif name is not AccuracyMeasure.CHARACTERS:
            with pytest.raises(SubjectError, match=r"is the width of a picture: judge masks by iou"):
                RowMeasure(name, pictures, answers)
    scores = list(torch.randn(2, 1, 8, generator=generator))
    RowMeasure(AccuracyMeasure.AGREEMENT, pictures, scores)
    channels_last = list(torch.randn(2, 1, 6, 8, 4, generator=generator))
    RowMeasure(AccuracyMeasure.AGREEMENT, pictures, channels_last)


@pytest.mark.parametrize(
    ("classes", "labels", "said"),
    [
        (1, [1, -1], "sample 1 has the label -1, .* labels are 0 and 1"),
        (1, [0, 2], "sample 1 has the label 2, .* labels are 0 and 1"),
        (3, [0, 3], "sample 1 has the label 3, .* labels are 0 to 2"),
        (3, [0, 1.5], "sample 1 has the label 1.5"),
        (3, [0], "sample 1 has 1 labels, and the original decides 2 times"),
    ],
)
@pytest.mark.parametrize("name", [AccuracyMeasure.ACCURACY, AccuracyMeasure.PERPLEXITY])
def test_labels_that_nothing_can_hit_are_refused(
    classes: int, labels: list[float], said: str, name: AccuracyMeasure
) -> None:
    with pytest.raises(SubjectError, match=said):
        measure(name, [torch.full((2, classes), 3.0)] * 2, labels=[labels] * 2)


@pytest.mark.parametrize("measured", [AccuracyMeasure.AGREEMENT, AccuracyMeasure.IOU])
def test_an_answer_of_one_number_a_row_has_a_decision_a_row(measured: AccuracyMeasure) -> None:
    original, candidate = torch.tensor([5.0] + [1.0] * 31), torch.tensor([5.0] + [-1.0] * 31)
    assert worse(measured, original, candidate) == [0] + [1] * 31
    labels = [(original > 0).long()] * 2
    assert worse(AccuracyMeasure.ACCURACY, original, candidate, labels=labels) == [0] + [1] * 31


@pytest.mark.parametrize(
    ("sample", "original", "candidate", "by_hand"),
    [
        (torch.ones(1, 3, 8, 8), torch.eye(5)[:4], torch.eye(5)[[0, 1, 2, 0]], 1 / 4),  # 4 boxes of a picture
        (torch.ones(2, 7), torch.eye(5)[:, None].repeat(1, 2, 1), torch.eye(5)[:, None].repeat(1, 2, 1).flip(0), 4 / 5),
        (torch.ones(9), torch.eye(5)[2], torch.eye(5)[3], 1),  # without a batch: scores of five classes
        (torch.ones(1, 3, 8, 8), torch.ones(0, 4), torch.ones(2, 4), 1),  # it finds what is not there
        (torch.ones(1, 3, 8, 8), torch.ones(0), torch.ones(0), 0),
    ],
)
def test_what_depends_on_each_other_is_one_row(
    sample: Tensor, original: Tensor, candidate: Tensor, by_hand: float
) -> None:
    agreement = RowMeasure(AccuracyMeasure.AGREEMENT, Validation([sample, sample]), [original, original])
    assert agreement.counted(0).tolist() == [True]
    assert agreement.worse(0, candidate).tolist() == pytest.approx([by_hand])


@pytest.mark.parametrize(
    ("sample", "rows"),
    [
        (torch.ones(4, 3), 4),
        (np.ones((4, 3)), 4),
        (Inputs((["one", "two", "three", "four"],)), 4),
        ({"ids": torch.ones(4, 7), "bias": torch.ones(7, 7)}, 4),
        ((torch.tensor(0.5), torch.ones(4, 7)), 4),
        (Inputs(("one text",)), 1),
        (torch.ones(2, 3), 1),
    ],
)
def test_rows_are_those_of_the_first_argument(sample: Any, rows: int) -> None:
    answers = [torch.eye(4)] * 2
    agreement = RowMeasure(AccuracyMeasure.AGREEMENT, Validation([sample, sample]), answers)
    assert len(agreement.worse(0, answers[0])) == rows


def test_a_number_of_rows_that_is_equal_by_chance_does_not_make_rows() -> None:
    """Of three boxes and of five of pictures of three channels without a batch."""
    pictures, boxes = [torch.ones(3, 8, 8)] * 2, [torch.eye(5)[:3], torch.eye(5)]
    assert RowMeasure(AccuracyMeasure.RMS, Validation(pictures), boxes).worse(0, boxes[0]).tolist() == [0]
    with pytest.raises(SubjectError, match=r"embeddings of one size.*\(3, 5\) and \(5, 5\)"):
        RowMeasure(AccuracyMeasure.RANK, Validation(pictures), boxes)


def test_characters_of_steps_first_are_refused() -> None:
    samples, answers = [torch.ones(2, 3, 8, 8)] * 2, [torch.eye(6)[:, None].repeat(1, 2, 1)] * 2
    with pytest.raises(SubjectError, match=r"reads answers of \(rows, steps, classes\).* \(6, 2, 6\)"):
        RowMeasure(AccuracyMeasure.CHARACTERS, Validation(samples), answers)
    one = [answer[:, 0] for answer in answers]
    lost = RowMeasure(AccuracyMeasure.CHARACTERS, Validation(samples), one).worse(0, one[0].roll(1, 0))
    assert len(lost) == 1, "the text of one picture"


def towards(degrees: float) -> Tensor:
    return torch.tensor([[math.cos(math.radians(degrees)), math.sin(math.radians(degrees))]])


def test_the_nearest_neighbour_is_sought_among_the_others() -> None:
    """Embeddings at 0, 10, 50 and 55 degrees: the first one's nearest is the second."""
    nearest = measure(AccuracyMeasure.NEAREST, [torch.cat([towards(0), towards(10)]), towards(50), towards(55)])

    def lost(i: int, *degrees: float) -> list[float]:
        return nearest.worse(i, torch.cat([3 * towards(each) for each in degrees])).tolist()

    assert lost(0, 4, 10) == [0, 0]
    assert lost(0, 53, 10) == [1, 0]
    assert lost(0, 0, 31) == [0, 1], "the second one's nearest is the first"
    assert lost(1, 30) == [1], "it would be itself, at 50, which does not count"
    assert lost(1, 54) == [0]
    assert not nearest.graded


def test_any_of_several_neighbours_that_are_as_near_will_do() -> None:
    answers = [towards(0), towards(20), towards(20), towards(-20)]
    nearest = measure(AccuracyMeasure.NEAREST, answers)
    for degrees in (-3, 3):
        assert nearest.worse(0, towards(degrees)).tolist() == [0]


def test_masks_are_compared_by_intersection_over_union() -> None:
    original = torch.tensor([[[0.9, 0.8], [0.1, 0.2]], [[0.1, 0.1], [0.1, 0.1]]])
    candidate = torch.tensor([[[0.9, 0.2], [0.7, 0.2]], [[0.1, 0.1], [0.1, 0.1]]])
    by_hand = [1 - 1 / 3, 0.0]
    assert worse(AccuracyMeasure.IOU, original, candidate) == pytest.approx(by_hand)
    of_one_channel = worse(AccuracyMeasure.IOU, original[:, None], candidate[:, None])
    assert of_one_channel == pytest.approx(by_hand)
    assert worse(AccuracyMeasure.IOU, original.logit(), candidate.logit()) == pytest.approx(by_hand)
    appeared = torch.tensor([[[0.9, 0.8], [0.1, 0.2]], [[0.9, 0.1], [0.1, 0.1]]])
    assert worse(AccuracyMeasure.IOU, original, appeared) == pytest.approx([0, 1])


def test_of_masks_of_several_classes_the_mean_of_those_that_are_there_counts() -> None:
    """The first class: one place of two. The second: two of three. Nobody sees the third."""

    def scores(classes: list[int]) -> Tensor:
        return torch.nn.functional.one_hot(torch.tensor([[classes]]), 3).permute(0, 3, 1, 2).float()

    found = worse(AccuracyMeasure.IOU, scores([0, 0, 1, 1]), scores([0, 1, 1, 1]))
    assert found == pytest.approx([1 - (1 / 2 + 2 / 3) / 2])


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize(
    "broken", [lambda a: torch.full_like(a, math.nan), lambda a: a[..., :2], lambda a: torch.cat([a, a])]
)
def test_what_is_no_answer_is_lost_by_every_measure(name: AccuracyMeasure, broken: Any) -> None:
    original = torch.tensor([[[4.0, 0.0, 1.0]], [[0.0, 0.0, 9.0]]])
    labels = [torch.tensor([0, 2])] * 2
    assert worse(name, original, original, labels=labels) == pytest.approx([0, 0], abs=1e-6)
    assert worse(name, original, broken(original), labels=labels) == [1, 1]


def test_characters_are_read_and_compared_with_labels_else_with_the_original() -> None:
    """By hand: the original reads 1 2 3, the candidate 1 3 at the same steps; the label is 1 3 4."""
    original = torch.eye(5)[torch.tensor([[1, 1, 2, 0, 3], [4, 0, 4, 0, 0]])]
    candidate = torch.eye(5)[torch.tensor([[1, 1, 0, 0, 3], [4, 0, 4, 0, 0]])]
    assert worse(AccuracyMeasure.CHARACTERS, original, candidate) == pytest.approx([1 / 3, 0])
    labels = [torch.tensor([[1, 3, 4], [4, 4, -1]])] * 2
    assert worse(AccuracyMeasure.CHARACTERS, original, candidate, labels=labels) == pytest.approx([-1 / 3, 0])
    assert measure(AccuracyMeasure.CHARACTERS, [original, original]).graded


@pytest.mark.parametrize("name", [AccuracyMeasure.AGREEMENT, AccuracyMeasure.DECIDED, AccuracyMeasure.IOU])
def test_a_class_that_is_ruled_out_hides_no_answer_without_a_number(name: AccuracyMeasure) -> None:
    """The largest of NaN is the first, which is what the original decides here."""
    original = torch.tensor([[9.0, 1.0, -math.inf], [8.0, 0.0, -math.inf]])
    candidate = original.clone()
    candidate[0, :2], candidate[1, 0] = math.nan, math.inf
    assert worse(name, original, original) == [0, 0]
    assert worse(name, original, candidate) == [1, 1]


@pytest.mark.parametrize(
    ("name", "answers"),
    [
        (AccuracyMeasure.AGREEMENT, [torch.tensor([[0.0, i, 9.0]]) for i in (1.0, 2.0, 3.0)]),
        (AccuracyMeasure.AGREEMENT, [torch.tensor([[i], [2 * i]]) for i in (17.0, 41.0)]),  # ages, read as logits
        (AccuracyMeasure.DECIDED, [torch.tensor([[0.1, 0.0, 0.0]]), *[torch.tensor([[0.0, 9.0, 0.0]])] * 2]),
        (AccuracyMeasure.IOU, [torch.full((1, 4, 4), -i) for i in (1.0, 2.0)]),  # nothing is found
        (AccuracyMeasure.CHARACTERS, [torch.tensor([[[9.0, i], [8.0, 0.0]]]) for i in (1.0, 2.0)]),  # nothing is read
        (AccuracyMeasure.NEAREST, [torch.eye(3)[:1], torch.eye(3)[1:2]]),  # the only other one is always the nearest
    ],
)
def test_a_measure_by_which_all_answers_are_alike_judges_nothing(name: AccuracyMeasure, answers: list[Tensor]) -> None:
    """A model that always gives the same one would lose nothing."""
    with pytest.raises(SubjectError, match=f"alike, as far as the measure {name} sees"):
        measure(name, answers).check_original()
    measure(name, answers).check_original(chooses=False)


@pytest.mark.parametrize("name", [each for each in BUILT_IN if each is not AccuracyMeasure.PERPLEXITY])
def test_answers_that_differ_are_judged(name: AccuracyMeasure) -> None:
    scores = torch.tensor([[3.0, 0, 0, 0], [2, 3, 0, 0], [0, 0, 3, 1], [0, 0, 1, 3]])
    answers = list(scores.split(1))
    measure(name, answers, labels=[0, 1, 2, 3]).check_original()
    measure(name, [scores] * 2, labels=[torch.arange(4)] * 2).check_original()


def test_labels_to_which_the_original_gives_no_more_than_a_guess_have_no_perplexity() -> None:
    """A destroyed model would even be better by them. One label that is ruled out does not decide."""
    answers = [6 * torch.eye(8)[i : i + 1] for i in range(8)]
    measure(AccuracyMeasure.PERPLEXITY, answers, labels=list(range(8))).check_original()
    ruled_out = [*answers[:7], answers[7].masked_fill(torch.arange(8) == 7, -math.inf)]
    measure(AccuracyMeasure.PERPLEXITY, ruled_out, labels=list(range(8))).check_original()
    with pytest.raises(SubjectError, match=r"no better than that of a guess among 8 classes.*the token that follows"):
        measure(AccuracyMeasure.PERPLEXITY, answers, labels=[(i + 1) % 8 for i in range(8)]).check_original()


TEXTS = [[1, 2, 3], [4, 5, 6], [7, 3, 1], [2, 6, 4]]


def of_texts(labels: list[Any]) -> RowMeasure:
    """Of an original that reads ``TEXTS``."""
    return measure(AccuracyMeasure.CHARACTERS, [torch.eye(9)[torch.tensor([text])] for text in TEXTS], labels=labels)


def test_texts_of_other_lines_judge_nothing() -> None:
    """As wrong as a text can be is a destroyed model's, too: the candidate would lose nothing."""
    of_texts(TEXTS).check_original()
    for nothing in ([], [-1, -1]):
        of_texts([[1, 2], TEXTS[1], TEXTS[2], nothing]).check_original()
    for labels in ([*TEXTS[1:], TEXTS[0]], [[8] * 5] * 4):
        with pytest.raises(SubjectError, match=r"with the labels of other samples .*with 0 for its blank"):
            of_texts(labels).check_original()
    with pytest.raises(SubjectError, match=r"sample 2 has the label 98, .* characters are 1 to 8"):
        of_texts([[1, 2, 3], [ord("b")], [1], [1]])
    with pytest.raises(SubjectError, match=r"sample 1 has labels of the shape \(3,\) for 2 rows"):
        measure(AccuracyMeasure.CHARACTERS, [torch.eye(9)[torch.ones(2, 4).long()]] * 2, labels=[[1, 2, 3]] * 2)


@pytest.mark.parametrize("label", ["cat", None, [torch.ones(2), torch.ones(3)], -math.inf, math.nan])
@pytest.mark.parametrize("name", [AccuracyMeasure.ACCURACY, AccuracyMeasure.PERPLEXITY, AccuracyMeasure.CHARACTERS])
def test_what_is_no_number_of_a_class_is_refused(label: Any, name: AccuracyMeasure) -> None:
    """One that is below zero would count as left out."""
    with pytest.raises(SubjectError, match="validation sample 2"):
        measure(name, [torch.eye(3)[:1]] * 2, labels=[1, label])


def test_labels_may_have_any_type_of_whole_numbers() -> None:
    for dtype in (np.uint8, np.uint16, np.int32, np.float32):
        labels = [np.array([2], dtype), np.array([0], dtype)]
        assert worse(AccuracyMeasure.ACCURACY, torch.eye(3)[2:], torch.eye(3)[:1], labels=labels) == [1]
