"""A repro folder repeats a trial without togi."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.offline.sitecustomize import TRIED
from togi.core.errors import TogiError, UnknownNameError
from togi.core.records import Facts, Machine, Outcome, Recipe, Study, Trial
from togi.machine.describe import machine
from togi.study.progress import Progress
from togi.study.repro import WRITE, ReproRequest, ReproWritten, write_repro
from togi.study.repro_folder import _script
from togi.techniques import recipe
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import Limits

Write = Callable[[Recipe, Path], ReproWritten]
SUBJECT = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
    def forward(self, x, scale):
        return {"y": self.norm(self.conv(x)).relu() * scale, "sum": x.sum((1, 2, 3))}
def subject():
    torch.manual_seed(0)
    return Net().eval(), [{"x": torch.randn(2, 3, 8, 8), "scale": torch.rand(1)} for _ in range(2)]
"""
DEVICES = ("cuda", "cpu")
WITHOUT_TOGI = "import runpy, sys; sys.modules['togi'] = None; runpy.run_path(sys.argv[1])"


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Write]:
    path = tmp_path_factory.mktemp("subject") / "net.py"
    path.write_text(SUBJECT, encoding="utf-8")
    with WorkerPool(SubjectRef.here("locator", f"{path}:subject"), machine(), device="cpu", seed=0) as pool:
        limits = Limits(timeout_s=120)
        survey, _ = pool.survey(limits, lambda _: None)

        def written(recipe: Recipe, out: Path) -> ReproWritten:
            request = ReproRequest(
                recipe=recipe, facts=survey.facts, signature=survey.signature, subject="net", out=str(out)
            )
            return WRITE.run(pool, request, limits)

        yield written


@pytest.mark.thorough
@pytest.mark.parametrize(
    "chosen",
    [
        recipe(fold_batch_norm={}, channels_last={}, openvino={}, no_grad={}, threads={"count": 1}),
        pytest.param(recipe(onnxruntime={"spinning": False}, inference_mode={}), marks=pytest.mark.thorough),
        pytest.param(
            recipe(torchscript={"how": "trace", "freeze": True, "optimize": True}, no_grad={}),
            marks=pytest.mark.thorough,
        ),
        recipe(no_grad={}, attention_backend={"backend": "math"}, cudnn_benchmark={}),
    ],
    ids=lambda chosen: chosen.label,
)
def test_the_script_runs_without_togi_and_is_right(write: Write, chosen: Recipe, tmp_path: Path) -> None:
    write(chosen, tmp_path / "repro")
    command = [sys.executable, "-c", WITHOUT_TOGI, str(tmp_path / "repro" / "repro.py")]
    # importing openvino without togi reports to its makers, as anybody's script does
    environment = {name: value for name, value in os.environ.items() if name != TRIED}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    errors = [float(found) for found in re.findall(r"relative error (\S+)", done.stdout)]
    assert len(errors) == 4
    assert max(errors) < 1e-5
    assert len(re.findall(r"ms \(median of 20\)", done.stdout)) == 2


def test_the_precision_of_products_is_set_in_the_script(write: Write, tmp_path: Path) -> None:
    """No exported model holds it."""
    write(recipe(tf32={}, no_grad={}), tmp_path / "repro")
    script = (tmp_path / "repro" / "repro.py").read_text(encoding="utf-8")
    assert 'torch.set_float32_matmul_precision("high")' in script


def test_on_a_gpu_inputs_go_to_their_devices_and_each_call_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a script that is run here, on a device that is the CPU by another name."""
    moved: list[str] = []
    waits: list[int] = []
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device: moved.append(device) or tensor)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(1))
    monkeypatch.setattr(torch.export, "load", lambda _: None)
    save_file({"0.0": torch.ones(2), "0.1": torch.ones(2)}, tmp_path / "inputs.safetensors")
    save_file({"0.0": torch.full((2,), 2.0)}, tmp_path / "expected.safetensors")
    script = _script(Recipe(), "net", "", "run = lambda a, b: [a + b]", Recipe(), DEVICES)
    (tmp_path / "repro.py").write_text(script, encoding="utf-8")
    runpy.run_path(str(tmp_path / "repro.py"))
    assert moved == list(DEVICES)
    assert len(waits) == 40
    assert "relative error 0.00e+00" in capsys.readouterr().out


@pytest.mark.parametrize(
    "refused",
    [
        {"torchscript": {"how": "script", "freeze": True, "optimize": True}},
        {"split_batch": {"pieces": 2, "at_once": False}},
        {"bf16_openvino": {}, "openvino": {}},
    ],
    ids=lambda refused: next(iter(refused)),
)
def test_what_has_no_script_form_is_refused_with_the_reason(
    write: Write, refused: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    with pytest.raises(TogiError, match=rf"has no repro script: {next(iter(refused))}.* has no script form"):
        write(recipe(**refused, no_grad={}), tmp_path / "repro")


def test_an_unknown_recipe_gets_the_nearest(tmp_path: Path) -> None:
    facts = Facts(
        machine=Machine(cpu_model="", cpu_cores=1, memory_bytes=1, threads=1, os="", python=""), module_class="Net"
    )
    trial = Trial(recipe=recipe(openvino={}, no_grad={}), outcome=Outcome.OK)
    study = Study(id="1", subject="timm:resnet18", facts=facts, trials=(trial,))
    with pytest.raises(UnknownNameError, match=r"did you mean 'openvino \+ no_grad'"):
        write_repro(study, "openvin + no_grad", tmp_path / "out", Progress())
