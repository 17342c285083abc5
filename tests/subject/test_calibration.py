"""Calibration data in whatever form people have them, as calls in the form of the samples."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler, SequentialSampler, TensorDataset

from togi.core.errors import SubjectError
from togi.subject.calibration import MOST, calibration_inputs, calibration_of, with_calibration
from togi.subject.coverage import calibration_notes
from togi.subject.inputs import Inputs, Subject

ROWS = torch.arange(40 * 6, dtype=torch.float32).reshape(40, 6)
LABELS = torch.arange(40)
SAMPLE = (Inputs((torch.zeros(4, 6),)),)


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        while True:
            yield ROWS[0], 1


def rows(calls: tuple[Inputs, ...]) -> torch.Tensor:
    assert {tuple(call.args[0].shape) for call in calls} == {(4, 6)}
    return torch.cat([call.args[0] for call in calls])


FORMS: dict[str, Any] = {
    "a list of batches": [ROWS[i : i + 4] for i in range(0, 40, 4)],
    "a list of tuples with labels": [(ROWS[i : i + 4], LABELS[i : i + 4]) for i in range(0, 40, 4)],
    "a loader of the samples' batch size": DataLoader(TensorDataset(ROWS, LABELS), batch_size=4),
    "a loader of another batch size": DataLoader(TensorDataset(ROWS, LABELS), batch_size=16),
    "a loader of single rows": DataLoader(TensorDataset(ROWS), batch_size=1),
    "a data set": TensorDataset(ROWS, LABELS),
    "a generator": ((row, label) for row, label in zip(ROWS, LABELS, strict=True)),
    "one tensor of more rows": ROWS,
}


@pytest.mark.parametrize("given", FORMS.values(), ids=FORMS)
def test_every_form_gives_the_same_rows_in_batches_of_the_samples(given: Any) -> None:
    assert torch.equal(rows(calibration_of(given, SAMPLE)), ROWS)


def test_a_named_argument_is_found_among_others() -> None:
    form = (Inputs((), {"x": torch.zeros(4, 6)}),)
    items = [{"label": LABELS[:4], "x": ROWS[i : i + 4]} for i in (0, 4)]
    assert [list(call.kwargs) for call in calibration_of(items, form)] == [["x"], ["x"]]
    with pytest.raises(SubjectError, match="has label and lacks 'x'"):
        calibration_of([{"label": LABELS}], form)


def test_a_batch_of_a_size_that_samples_have_stays_as_it_is() -> None:
    samples = (SAMPLE[0], Inputs((torch.zeros(7, 6),)))
    calls = calibration_of([ROWS[:7], ROWS[:4], ROWS[:2], ROWS[:2]], samples)
    assert [len(call.args[0]) for call in calls] == [7, 4, 4]


def test_many_are_taken_from_all_places_and_an_endless_iterable_ends() -> None:
    sorted_by_class = [torch.full((4, 6), float(i // 100)) for i in range(1000)]
    taken = calibration_of(sorted_by_class, SAMPLE)
    assert len(taken) == MOST
    assert {float(call.args[0][0, 0]) for call in taken} == set(map(float, range(10)))
    assert len(calibration_of(Endless(), (Inputs((torch.zeros(1, 6),)),))) == MOST


BATCHES_OF_A_CLASS = [torch.full((64, 6), float(number)) for number in range(50)]
OF_CLASSES = TensorDataset(torch.cat(BATCHES_OF_A_CLASS), torch.arange(50 * 64))


class Odd(Sampler[int]):
    """What a user's sampler leaves out must not be taken either."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(64, len(self), 2))

    def __len__(self) -> int:
        return len(OF_CLASSES)


SORTED: dict[str, tuple[Any, set[int]]] = {
    "batches": (BATCHES_OF_A_CLASS, set(range(50))),
    "batches with labels": ([(batch, torch.zeros(64)) for batch in BATCHES_OF_A_CLASS], set(range(50))),
    "one tensor": (torch.cat(BATCHES_OF_A_CLASS), set(range(50))),
    "a loader": (DataLoader(OF_CLASSES, batch_size=64), set(range(50))),
    "a loader with a sampler": (DataLoader(OF_CLASSES, batch_size=64, sampler=Odd()), set(range(1, 50))),
    "a loader that makes no batches": (DataLoader(OF_CLASSES, batch_size=None), set(range(50))),
    "a loader of batches that lie ready": (DataLoader(BATCHES_OF_A_CLASS, batch_size=None), set(range(50))),
    "a loader of batches with labels": (
        DataLoader([(batch, torch.zeros(64)) for batch in BATCHES_OF_A_CLASS], batch_size=None, num_workers=1),
        set(range(50)),
    ),
    "a loader of many batches": (
        DataLoader([torch.full((4, 6), float(number // 20)) for number in range(1000)], batch_size=None),
        set(range(50)),
    ),
    "a loader whose sampler makes batches": (
        DataLoader(OF_CLASSES, batch_size=None, sampler=BatchSampler(Odd(), 32, drop_last=False)),
        set(range(1, 50)),
    ),
    "a loader of given batches": (
        DataLoader(OF_CLASSES, batch_sampler=BatchSampler(SequentialSampler(OF_CLASSES), 32, drop_last=False)),
        set(range(50)),
    ),
}


@pytest.mark.parametrize("rows_of_a_sample", [1, 4])
@pytest.mark.parametrize(("given", "expected"), SORTED.values(), ids=SORTED)
def test_of_data_sorted_by_class_each_class_is_taken(given: Any, expected: set[int], rows_of_a_sample: int) -> None:
    subject = Subject(nn.Linear(6, 2), torch.zeros(rows_of_a_sample, 6), calibration=given)
    calls = calibration_inputs(subject)
    assert {len(call.args[0]) for call in calls} == {rows_of_a_sample}
    assert 250 <= len(calls) <= MOST
    assert {int(value) for call in calls for value in call.args[0][:, 0]} == expected
    assert not [note for note in calibration_notes(subject) if "first" in note]


@pytest.mark.parametrize("given", [OF_CLASSES, DataLoader(OF_CLASSES, batch_size=None)], ids=["a data set", "a loader"])
def test_a_large_batch_is_filled_from_rows(given: Any) -> None:
    calls = calibration_of(given, (Inputs((torch.zeros(MOST + 100, 6),)),))
    assert {len(call.args[0]) for call in calls} == {MOST + 100}
    assert {int(value) for call in calls for value in call.args[0][:, 0]} == set(range(50))


class Streamed(DataLoader[Any]):
    """Only its own iterator knows what comes."""

    def __iter__(self) -> Any:
        yield from BATCHES_OF_A_CLASS[7:]


@pytest.mark.parametrize(
    ("given", "more"),
    [
        ((batch for batch in BATCHES_OF_A_CLASS), True),
        (Streamed(OF_CLASSES), True),
        ((row for row in ROWS), False),
    ],
    ids=["a generator", "a loader of its own kind", "a generator of few"],
)
def test_where_only_the_first_can_be_taken_that_is_told(given: Any, more: bool) -> None:
    subject = with_calibration(Subject(nn.Linear(6, 2), torch.zeros(1, 6)), given)
    notes = calibration_notes(pickle.loads(pickle.dumps(subject)))
    told = [note for note in notes if "are the first 300 of an iterable" in note]
    assert bool(told) is more
    assert len(calibration_inputs(subject)) == (MOST if more else len(ROWS))


def test_a_generator_is_read_once_and_can_be_sent_to_another_process() -> None:
    subject = with_calibration(Subject(nn.Linear(6, 2), torch.zeros(4, 6), calibration=(row for row in ROWS)))
    sent = pickle.loads(pickle.dumps(subject))
    for _ in range(2):
        assert torch.equal(rows(calibration_inputs(sent)), ROWS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "list of samples is empty"),
        (iter(()), "hold no sample"),
        (3, "a int, which holds no samples|int, which holds no samples"),
        ([ROWS[:3]], "too few rows for a batch of 4"),
        (["a picture"], "togi cannot call the module with"),
        ("nowhere", "calibration='nowhere' is not a folder"),
    ],
)
def test_what_holds_no_samples_is_refused(given: Any, said: str) -> None:
    with pytest.raises(SubjectError, match=said):
        calibration_of(given, SAMPLE)


def test_folders_of_tensors(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    (tmp_path / "below").mkdir()
    torch.save(ROWS[:4], tmp_path / "a.pt")
    torch.save((ROWS[4:8], LABELS[4:8]), tmp_path / "b.pt")
    np.save(tmp_path / "below" / "c.npy", ROWS[8:12].numpy())
    (tmp_path / "notes.txt").write_text("not data", encoding="utf-8")
    assert torch.equal(rows(calibration_of(str(tmp_path), SAMPLE)), ROWS[:12])
    named = tmp_path / "named"
    named.mkdir()
    np.savez(named / "a.npz", x=ROWS[:4].numpy(), label=LABELS[:4].numpy())
    save_file({"x": ROWS[4:8].contiguous()}, str(named / "b.safetensors"))
    calls = calibration_of(named, (Inputs((), {"x": torch.zeros(4, 6)}),))
    assert torch.equal(torch.cat([call.kwargs["x"] for call in calls]), ROWS[:8])


class Program:
    def __reduce__(self) -> Any:
        return print, ("it ran",)


def test_nothing_in_a_folder_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, kept in (("a.pt", Program()), ("a.npy", None)):
        file = tmp_path / name
        if kept is None:
            np.save(file, np.array([Program()], dtype=object), allow_pickle=True)
        else:
            torch.save(kept, file)
        with pytest.raises(SubjectError, match=rf"calibration file .*{name} cannot be read"):
            calibration_of(tmp_path, SAMPLE)
        file.unlink()
    assert "it ran" not in capsys.readouterr().out


def pictures(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for number in range(3):
        pixels = np.zeros((20, 40, 3), dtype=np.uint8)
        pixels[:, 10:30] = [255, 100 * number, 0]  # the middle, which is what a square keeps
        image.fromarray(pixels).save(folder / f"{number}.png")


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize(("high", "scale"), [(1.0, 1 / 255), (255.0, 1.0)])
def test_pictures_have_the_size_the_layout_and_the_range_of_the_samples(
    tmp_path: Path, high: float, scale: float, last: bool
) -> None:
    pictures(tmp_path)
    sample = torch.full((1, 10, 10, 3) if last else (1, 3, 10, 10), high)
    calls = calibration_of(tmp_path, (Inputs((sample,)),))
    for number, call in enumerate(calls):
        picture = call.args[0] if last else call.args[0].permute(0, 2, 3, 1)
        assert call.args[0].shape == sample.shape
        assert picture[0, 5, 5].tolist() == pytest.approx([255 * scale, 100 * number * scale, 0])


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (torch.full((1, 3, 10, 10), -2.0), "normalised before the model"),
        (torch.zeros(4, 6), "does not have the form"),
    ],
)
def test_pictures_are_not_guessed_into_another_form(tmp_path: Path, sample: torch.Tensor, said: str) -> None:
    pictures(tmp_path)
    with pytest.raises(SubjectError, match=said):
        calibration_of(tmp_path, (Inputs((sample,)),))


def test_an_empty_folder_and_a_broken_picture_are_told(tmp_path: Path) -> None:
    with pytest.raises(SubjectError, match=r"no file is one of .*\.npy"):
        calibration_of(tmp_path, SAMPLE)
    pytest.importorskip("PIL.Image")
    (tmp_path / "a.png").write_bytes(b"no picture")
    with pytest.raises(SubjectError, match=r"a\.png cannot be read"):
        calibration_of(tmp_path, (Inputs((torch.ones(1, 3, 8, 8),)),))
