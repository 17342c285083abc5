"""Work of single operations, the roofline's answer, devices, figures that are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.check_roofline import time_calls
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from togi.core.errors import UnknownNameError
from togi.lint.module.observe import observe
from togi.lint.roofline import this_machine
from togi.lint.roofline.costs import COLUMNS, Costs, Work, cost_table, predicted, work
from togi.lint.roofline.devices import _TABLE, Bandwidth, Figures, gpu
from togi.machine.describe import machine
from togi.subject.inputs import Inputs


class Does(nn.Module):
    def __init__(self, function: Any, *parameters: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        self.kept = nn.ParameterList(nn.Parameter(p, requires_grad=False) for p in parameters)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, *self.kept)


def works(function: Any, *parameters: torch.Tensor, x: torch.Tensor | None = None) -> list[Work]:
    module = Does(function, *parameters)
    calls = observe(module, Inputs((torch.ones(4, 8) if x is None else x,))).calls
    return [amount for amount in map(work, calls) if amount.bytes]


ONES = torch.ones(8, 16)


@pytest.mark.parametrize(
    ("function", "parameters", "flops", "activations", "weights", "written"),
    [
        (torch.relu, (), 32, 128, 0, 128),
        (lambda x: x.relu_(), (), 32, 128, 0, 128),
        (lambda x: x + x[:1], (), 32, 128 + 32, 0, 128),
        (lambda x: x + x[:1].expand(4, 8), (), 32, 128 + 32, 0, 128),
        (lambda x, w: x @ w, (ONES,), 2 * 4 * 8 * 16, 128, 512, 256),
        (lambda x, w: torch.cat([x, w.t()]), (torch.ones(8, 2),), 48, 128, 64, 192),
        (lambda x, w: F.embedding((x[0, :3] * 0).long(), w), (torch.ones(1000, 8),), None, None, 96, 96),
    ],
)
def test_work_of_an_operation(
    function: Any, parameters: Any, flops: int, activations: int, weights: int, written: int
) -> None:
    amount = works(function, *parameters)[-1]
    assert amount.weights == weights
    assert amount.written == written
    assert flops is None or (amount.flops, amount.activations) == (flops, activations)


def test_views_are_free() -> None:
    assert works(lambda x: x.view(2, 16).t()[1:].unsqueeze(0).expand(5, -1, -1).detach()) == []


def test_in_place_fills_only_write() -> None:
    amount = works(lambda x: x.zero_())[-1]
    assert (amount.activations, amount.written) == (0, 128)


def test_convolution_counts_multiplications_and_additions() -> None:
    amount = works(lambda x, w: F.conv2d(x, w, padding=1), torch.ones(8, 3, 3, 3), x=torch.ones(1, 3, 10, 10))[-1]
    assert amount.flops == 2 * 8 * 3 * 9 * 100
    assert amount.convolution
    assert amount.product


def test_other_dtypes() -> None:
    calls = observe(Does(torch.relu), Inputs((torch.ones(4, 8),))).calls
    assert work(calls[-1], "float16").bytes == work(calls[-1]).bytes // 2
    integers = observe(Does(torch.abs), Inputs((torch.ones(4, 8, dtype=torch.int32),))).calls
    assert work(integers[-1], "float16").bytes == work(integers[-1]).bytes


sizes = st.integers(min_value=0, max_value=10**13)


@given(flops=sizes, activations=sizes, weights=sizes, more=sizes, name=st.sampled_from(list(_TABLE)))
def test_more_work_never_takes_less_time(flops: int, activations: int, weights: int, more: int, name: str) -> None:
    def seconds(flops: int, activations: int) -> float:
        amount = Work(
            flops=flops,
            activations=activations,
            weights=weights,
            written=0,
            dtype="float16",
            product=True,
            convolution=False,
        )
        return predicted(amount, gpu(name), model_weights=weights).seconds

    base = seconds(flops, activations)
    assert base >= 0
    assert seconds(flops, activations + more) >= base
    assert seconds(flops + more, activations) >= base


CURVE = Figures(
    name="x",
    source="",
    flops_per_s={"float32": 1e9},
    bandwidths=(
        Bandwidth(working_set_bytes=1000, bytes_per_s=1e9),
        Bandwidth(working_set_bytes=10**6, bytes_per_s=1e8),
    ),
)


@given(st.floats(min_value=1, max_value=1e12))
def test_bandwidth_lies_between_the_known_ones(size: float) -> None:
    assert 0.999e8 <= CURVE.bandwidth(size) <= 1.001e9
    assert CURVE.bandwidth(2 * size) <= CURVE.bandwidth(size) * 1.001


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("A100", "A100"),
        ("a100-40gb", "A100-40GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("rtx4090", "RTX-4090"),
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("L40S", "L40S"),
    ],
)
def test_names_of_gpus(asked: str, found: str) -> None:
    assert gpu(asked).name == found


@pytest.mark.parametrize("name", ["A10G", "gpu", "", "L400", "NVIDIA GeForce RTX 4090 Laptop GPU"])
def test_names_that_are_not_known(name: str) -> None:
    with pytest.raises(UnknownNameError, match="Known are cpu"):
        gpu(name)


@pytest.mark.parametrize("name", _TABLE)
def test_figures_are_plausible(name: str) -> None:
    """Half precision on matrix units is at least as fast as float32, memory is between 0.2 and 10 TB/s."""
    figures = gpu(name)
    assert figures.peak("float16") >= figures.peak("float32")
    assert 0.2e12 < figures.bandwidth(1) < 10e12
    assert figures.peak("float32", convolution=True) >= figures.peak("float32")
    assert figures.source.startswith("https://")


def test_figures_of_this_machine_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOGI_CACHE", str(tmp_path))
    here, measured = machine(), []

    def measure(_device: str, _machine: Any, dtypes: Any) -> Figures:
        measured.append(tuple(dtypes))
        return CURVE

    monkeypatch.setattr(this_machine, "measure", measure)
    for _ in range(2):
        assert this_machine.figures_here("cpu", here) == CURVE
    assert measured == [("float32",)]
    (file,) = tmp_path.iterdir()
    file.write_text("{damaged", encoding="utf-8")
    this_machine.figures_here("cpu", here, ["bfloat16", "int64"])
    assert this_machine.figures_here("cpu", here) == CURVE
    assert measured[1:] == [("bfloat16", "float32"), ("float32",)]


def test_disturbed_figures_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOGI_CACHE", str(tmp_path))
    monkeypatch.setattr(this_machine, "measure", lambda *_: CURVE.model_copy(update={"steady": False}))
    assert not this_machine.figures_here("cpu", machine()).steady
    assert not list(tmp_path.iterdir())


def test_a_home_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("TOGI_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(this_machine, "measure", lambda *_: CURVE)
    assert this_machine.figures_here("cpu", machine()) == CURVE


def test_measuring_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_machine, "_EACH_S", 0.001)
    monkeypatch.setattr(this_machine, "_ROUNDS", 1)
    monkeypatch.setattr(this_machine, "_SETS_BYTES", (2**16, 2**18))
    figures = this_machine.measure("cpu", machine(), ["float32"])
    assert figures.peak("float32") > 0
    assert figures.call_s > 0
    assert figures.bandwidth(2**16) >= figures.bandwidth(2**18) * (1 - 1e-9) > 0  # interpolated: rounded


def test_the_table_adds_up() -> None:
    body = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(5)))
    costs = Costs.of(observe(body, Inputs((torch.ones(4, 8),))).calls, gpu("T4"))
    table = cost_table(costs, {}, most_rows=3)
    assert table.columns == COLUMNS
    *rows, total = table.rows
    assert [row[0] for row in rows[3:]] == ["7 others"]
    for column in (2, 3, 4, 5, 8, 9):
        assert sum(row[column] for row in rows) == pytest.approx(total[column], rel=0.02)
    assert "T4" in table.title


def test_the_benchmark_times_every_call() -> None:
    timed, seconds = time_calls(nn.Linear(8, 8), Inputs((torch.ones(4, 8),)), 3)
    assert len(seconds) == len(timed.calls) > 0
    assert all(time_s > 0 for time_s in seconds)
