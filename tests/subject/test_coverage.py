"""Warnings on calibration data: too few, noise, ranges that the model will meet and calibration did not show."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.subject.coverage import calibration_notes
from togi.subject.inputs import Subject
from togi.subject.validation import Validation


def smooth(seed: int, scale: float = 1.0) -> Tensor:
    """Like a picture: neighbours are alike."""
    coarse = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    return scale * nn.functional.interpolate(coarse, size=(32, 32), mode="bilinear")


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(*(shape or (1, 3, 32, 32)), generator=torch.Generator().manual_seed(seed))


PICTURES = [smooth(seed) for seed in range(8)]


def notes(**given: Any) -> list[str]:
    return calibration_notes(Subject(**{"module": nn.Identity(), "samples": PICTURES[0], **given}))


def test_good_data_are_not_warned_of() -> None:
    assert notes(calibration=PICTURES, validation=Validation([smooth(seed) for seed in range(20, 30)])) == []


def test_none_and_one_are_told() -> None:
    assert any("calibrated on the samples that are timed" in note for note in notes())
    assert any("There is one calibration input" in note for note in notes(calibration=PICTURES[:1]))


@pytest.mark.parametrize("shape", [(1, 3, 32, 32), (1, 1, 16000), (1, 16000)], ids=["pictures", "sound", "rows"])
def test_noise_is_told(shape: tuple[int, ...]) -> None:
    calibration = [noise(seed, *shape) for seed in range(4)]
    assert any("look like noise" in note for note in notes(samples=calibration[0], calibration=calibration))


@pytest.mark.parametrize(
    "sample",
    [torch.linspace(0, 60, 16000).sin()[None], torch.randint(0, 99, (4, 64)), noise(1, 64, 20), smooth(1)],
    ids=["a tone", "tokens", "features", "a picture"],
)
def test_what_is_not_noise_is_left_alone(sample: Tensor) -> None:
    assert not any("noise" in note for note in notes(samples=sample, calibration=[sample] * 4))


def test_what_has_no_plain_values_is_left_alone() -> None:
    for sample in (torch.eye(8).to_sparse(), torch.nested.nested_tensor([torch.ones(3)]), torch.empty(0, 8)):
        assert notes(samples=sample, calibration=[sample] * 2, validation=Validation([sample] * 2)) == []


def test_values_that_calibration_did_not_show_are_told() -> None:
    """Calibrated in 0 to 1, and validated in 0 to 255: the preprocessing of one of them is another."""
    (note,) = notes(calibration=PICTURES, validation=Validation([smooth(seed, 255.0) for seed in range(20, 30)]))
    assert "input 1 in the validation data lie beyond what calibration saw" in note
    assert "is the preprocessing the same?" in note
    assert notes(calibration=PICTURES, validation=Validation([smooth(seed, 0.5) for seed in range(20, 30)])) == []
