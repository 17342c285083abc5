"""Every program of the benchmark can be built and runs, answers the same again, and its answers can be compared."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import models, program_peers

from togi.verify.leaves import fresh
from togi.worker.locate import locate

FILE = Path(models.__file__).with_name("program_subjects.py")
TREE = ast.parse(FILE.read_text(encoding="utf-8"))
NAMES = [
    node.name
    for node in TREE.body
    if isinstance(node, ast.FunctionDef)
    and isinstance(node.returns, ast.Name)
    and node.returns.id == "Program"
    and len(node.args.args) == len(node.args.defaults)
]
SOON = ("policy", "recommender")


@pytest.fixture(scope="module")
def subjects() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FILE.parent))
        import program_subjects  # type: ignore[import-not-found,unused-ignore]

        yield program_subjects


def test_all_lists_every_program(subjects: Any) -> None:
    assert [factory.__name__ for factory in subjects.ALL] == NAMES
    assert len(NAMES) == 24
    assert set(subjects.PACKAGES) <= set(NAMES)
    assert set(program_peers.OWN_PATHS) <= set(NAMES)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in SOON else pytest.mark.thorough) for n in NAMES])
def test_program_answers_twice_the_same(name: str, subjects: Any, request: pytest.FixtureRequest) -> None:
    if "ultralytics" in subjects.PACKAGES.get(name, ()):
        request.getfixturevalue("ultralytics")
    if missing := subjects.missing(name):
        pytest.skip(f"a benchmark's own package, which the test command does not install: {', '.join(missing)}")
    subject = locate(f"{FILE}:{name}")
    with torch.no_grad():
        once, again = (
            [
                program_peers.compared(subject.module(*given.args, **given.kwargs))
                for given in map(fresh, subject.inputs)
            ]
            for _ in range(2)
        )
    assert all(found for found in once), "an answer of which nothing is compared"
    for before, after in zip(once, again, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
        assert all(bool(tensor.isfinite().all()) for tensor in before)
        assert any(len(tensor.unique()) > 1 for tensor in before)


def test_texts_arrays_and_numbers_are_compared() -> None:
    import numpy as np

    answer = [("ab", 0.5), (np.arange(3), None)]
    text, number, array = program_peers.compared(answer)
    assert text.tolist() == [97, 98]
    assert float(number) == 0.5
    assert array.tolist() == [0, 1, 2]
