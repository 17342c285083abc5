"""Every benchmark subject can be built, runs, and can be compared: finite outputs that are not constant."""

import ast
from pathlib import Path

import pytest
import torch
from benchmarks import models

from togi.subject.nested import tensors_in
from togi.worker.locate import locate

FILE = Path(models.__file__)
NAMES = [
    node.name
    for node in ast.parse(FILE.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef)
    and not node.name.startswith("_")
    and len(node.args.args) == len(node.args.defaults)  # a factory is called without arguments
]


def test_all_lists_every_factory():
    assert [factory.__name__ for factory in models.ALL] == NAMES
    assert len(NAMES) >= 10


SOON = ("mobilenetv3_large", "minilm", "lstm_tagger")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in SOON else pytest.mark.thorough) for n in NAMES])
def test_subject_runs(name, request):
    if name == "yolo":
        request.getfixturevalue("ultralytics")
    subject = locate(f"{FILE}:{name}")
    sample = subject.inputs[0]
    with torch.no_grad():
        found = tensors_in(subject.module(*sample.args, **sample.kwargs))
    assert not subject.module.training
    assert all(bool(tensor.isfinite().all()) and float(tensor.std()) > 0 for tensor in found)
