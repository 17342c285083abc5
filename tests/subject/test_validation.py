"""Validation data: what a function may return, and samples that serve two purposes."""

from __future__ import annotations

import array
import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from togi.core.errors import SubjectError
from togi.subject.inputs import Inputs
from togi.subject.validation import Validation, as_validation, deciding_hash, hash_of, hashes_of, shared

SAMPLES = [torch.full((1, 2), float(i)) for i in range(4)]


@pytest.mark.parametrize(
    "returned", [SAMPLES, (SAMPLES, [0, 1, 2, 3]), Validation(SAMPLES, groups="aabb"), (SAMPLES, torch.arange(4))]
)
def test_what_a_function_may_return(returned: Any) -> None:
    validation = as_validation(returned, "data.py:validation")
    assert [sample.tensors()[0].tolist() for sample in validation.inputs] == [x.tolist() for x in SAMPLES]
    assert len(validation.group_of) == 4


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, r"data\.py:validation returned a NoneType.*\(samples, labels\)"),
        (torch.ones(3), "returned a Tensor"),
        ((SAMPLES, [0, 1]), "there are 2 labels for 4 validation samples"),
        (SAMPLES[:1], "give a list of 2 or more"),
        ([], "one half of them chooses and the other confirms"),
    ],
)
def test_what_else_is_returned_is_refused(returned: Any, said: str) -> None:
    with pytest.raises(SubjectError, match=said):
        as_validation(returned, "data.py:validation")


def test_groups_are_one_for_each_sample() -> None:
    with pytest.raises(SubjectError, match="there are 3 groups for 4"):
        Validation(SAMPLES, groups="abc")
    assert Validation(SAMPLES).group_of == [0, 1, 2, 3]


@pytest.mark.parametrize("of", [torch.tensor, np.array, list, lambda given: [torch.tensor([each]) for each in given]])
def test_groups_are_known_by_their_values(of: Any) -> None:
    """A tensor is equal to itself alone: each sample would be a group by itself, and prove too much."""
    assert len(set(Validation(SAMPLES, groups=of([7, 7, 9, 9])).group_of)) == 2


class Column:
    """As of a table whose rows were drawn: asked by index, it knows each by the number that it had before."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return {3: 0, 1: 1, 0: 2, 2: 3}[index]

    def __iter__(self) -> Iterator[int]:
        return iter([0, 1, 2, 3])


def test_labels_are_in_the_order_of_the_samples() -> None:
    assert Validation(SAMPLES, labels=Column()).labels == [0, 1, 2, 3]
    assert Validation(SAMPLES, labels=(i for i in range(4))).labels == [0, 1, 2, 3]  # type: ignore[arg-type]
    for unordered in ({0, 1, 2, 3}, {3: 0, 2: 0, 1: 0, 0: 1}, 3):
        with pytest.raises(SubjectError, match="give a list with one for each validation sample"):
            Validation(SAMPLES, labels=unordered)  # type: ignore[arg-type]
    tensors = Validation(SAMPLES, labels=torch.arange(4), groups=torch.tensor([0, 0, 1, 1]))
    assert tensors.identity == Validation(SAMPLES, labels=torch.arange(4), groups=[0, 0, 1, 1]).identity


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ("aaaa", "are of one group"),
        ([0, 1, float("nan"), 1], "the group of validation sample 3 is nan"),
        ([0, 1, 2, [{}]], "the group of validation sample 4"),
    ],
)
def test_groups_that_divide_nothing_are_refused(groups: Any, said: str) -> None:
    """Nothing would be left to confirm by, or samples that are not known would count as independent."""
    with pytest.raises(SubjectError, match=said):
        Validation(SAMPLES, groups=groups)


def inputs(*numbers: int) -> tuple[Inputs, ...]:
    return tuple(Inputs((SAMPLES[number].clone(),)) for number in numbers)


def test_one_set_for_two_purposes_is_told() -> None:
    assert shared(inputs(0, 1), inputs(2), inputs(3)) == []
    (timed,) = shared(inputs(0, 1, 2), inputs(1, 2), inputs(3))
    assert timed.startswith("2 of the validation samples are also timed")
    (calibrated,) = shared(inputs(0, 1), inputs(2), inputs(0))
    assert "1 of the validation samples is also calibrated on" in calibrated


def test_copies_are_told() -> None:
    (note,) = shared(inputs(0, 1, 0, 0), inputs(2), inputs(3))
    assert note.startswith("2 of the validation samples are copies of others")


def test_rows_of_batches_serve_two_purposes_too() -> None:
    """Only where rows are samples: those of one picture are its channels."""
    batch = (Inputs((torch.cat(SAMPLES[:3]),)), Inputs((torch.cat(SAMPLES[2:]),)))
    assert shared(batch, inputs(1), inputs(0, 3)) == []
    timed, calibrated, copies = shared(batch, inputs(1), inputs(0, 3), by_rows=True)
    assert timed.startswith("1 of the validation rows is also timed")
    assert calibrated.startswith("2 of the validation rows are also calibrated on")
    assert copies.startswith("1 of the validation rows is a copy")
    tables = [Inputs((torch.ones(2, 3), torch.eye(5))), Inputs(("a text",)), Inputs((torch.tensor(1.0),))]
    assert shared(tables, tables[:1], [], by_rows=True)[0].startswith("1 of the validation samples is also timed")


def test_other_data_are_told_apart() -> None:
    same = Validation(SAMPLES, labels=[0, 1, 2, 3])
    assert same.identity == Validation([x.clone() for x in SAMPLES], labels=[0, 1, 2, 3]).identity
    for other in (Validation(SAMPLES), Validation(SAMPLES, labels=[0, 1, 3, 2]), Validation(SAMPLES[::-1])):
        assert other.identity != same.identity


def test_the_identity_is_of_samples_labels_and_groups_by_their_content() -> None:
    def identity(**changes: Any) -> str:
        masks = [torch.zeros(2000), *[torch.ones(2000)] * 3]
        return Validation(**{"samples": [*SAMPLES], "labels": masks, "groups": "aabb", **changes}).identity

    other_mask = torch.zeros(2000)
    other_mask[1000] = 1  # within what is left out where a large tensor is printed
    others = [
        identity(samples=[*SAMPLES[1:], SAMPLES[0]]),
        identity(labels=[other_mask, *[torch.ones(2000)] * 3]),
        identity(labels=[mask.numpy() for mask in (other_mask.neg(), *[torch.ones(2000)] * 3)]),
        identity(labels=None),
        identity(groups="abab"),
    ]
    assert identity() == identity(samples=[sample.clone() for sample in SAMPLES])
    assert len({identity(), *others}) == 6
    assert hash_of(inputs(0, 1)) == hash_of(inputs(0, 1)) != hash_of(inputs(1, 0))


def test_samples_that_are_not_tensors_are_told_apart() -> None:
    def nested(*values: Any, **named: Any) -> Inputs:
        return Inputs(values, named)

    arrays = [np.zeros(3), np.ones(3), np.zeros(3, np.float32), np.zeros((1, 3)), np.array(["a"], object)]
    texts = ["a passage", "another", ["a passage"], b"a passage", bytearray(b"a passage"), array.array("f", [1.0])]
    numbers = [1, 2, 1.0, True, None, {"limit": 1}, {"limit": 2}, {"most": 1}, range(3), (1, 2), [1, 2], [[1], 2]]
    tensors = [torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16), torch.ones(2), torch.eye(2).to_sparse()]
    lengths = [
        torch.nested.nested_tensor([torch.ones(length), torch.ones(3 - length)], layout=torch.jagged)
        for length in (1, 2)
    ]
    calls = [nested(value) for value in (*arrays, *texts, *numbers, *tensors, *lengths)]
    calls += [nested(x="a passage"), nested(y="a passage"), nested("a", "b"), nested("a", x="b")]
    assert len(set(hashes_of(calls))) == len(calls)
    again = [Inputs(copy.deepcopy(call.args), copy.deepcopy(dict(call.kwargs))) for call in calls]
    assert hashes_of(again) == hashes_of(calls)
    assert hashes_of([nested(x=1, y=2)]) == hashes_of([nested(y=2, x=1)])
    assert Validation([np.zeros(3), np.ones(3)]).identity != Validation([np.ones(3), np.zeros(3)]).identity


FLOATS = torch.randn(2, 3)
IDS = torch.arange(6).reshape(2, 3)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (Inputs(("ab",)), Inputs(("ab",)), True),
        (Inputs(("ab",)), Inputs(("a text of 5,000 characters",)), False),
        (Inputs((FLOATS,), {"tokens": 8}), Inputs((FLOATS,), {"tokens": 512}), False),
        (Inputs((FLOATS,), {"tokens": 8}), Inputs((FLOATS + 1,), {"tokens": 8}), True),
        (Inputs((IDS,)), Inputs((IDS + 1,)), False),
        (Inputs((IDS.numpy(),)), Inputs((IDS.numpy() + 1,)), False),
        (Inputs(([FLOATS, IDS],)), Inputs(([FLOATS * 2, IDS],)), True),
        (Inputs(([FLOATS, 1],)), Inputs(([FLOATS, 1, 2],)), False),
        (Inputs((FLOATS, "a")), Inputs((FLOATS[:1], "a")), False),
        (Inputs((), {"a": 1, "b": 2}), Inputs((), {"b": 2, "a": 1}), True),
    ],
    ids=str,
)
def test_what_in_calls_decides_tells_studies_apart(one: Inputs, other: Inputs, same: bool) -> None:
    assert (deciding_hash([one]) == deciding_hash([other])) is same
    assert deciding_hash([one])


def test_calls_of_floats_alone_decide_nothing() -> None:
    """Their studies stay known by what they were known by before: many scripts draw the example anew each time."""
    assert deciding_hash([Inputs((FLOATS, None, [FLOATS.numpy()]))]) == ""
    assert deciding_hash([Inputs((IDS,))], integers=False) == ""
    assert deciding_hash([Inputs((IDS, 3))], integers=False)
