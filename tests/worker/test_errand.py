"""An errand: one function of togi with the subject, in a child that is gone afterwards."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from togi.core.errors import SubjectError, UnknownNameError
from togi.worker.errand import run_errand
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import Limits

SUBJECT = """
import torch
def subject():
    return torch.nn.Linear(3, 2), torch.zeros(1, 3)
"""


@pytest.fixture
def ref(tmp_path: Path) -> SubjectRef:
    (tmp_path / "errand_subject.py").write_text(SUBJECT)
    here = str(Path(__file__).parent)
    found = SubjectRef.here("locator", f"{tmp_path / 'errand_subject.py'}:subject")
    return found.model_copy(update={"path": (here, *found.path)})


def width(subject: Any, payload: dict[str, Any]) -> dict[str, Any]:
    return {"width": subject.module.in_features * payload["times"], "pid": os.getpid()}


def breaks(_subject: Any, _payload: dict[str, Any]) -> dict[str, Any]:
    raise ValueError("no such thing")


def refuses(_subject: Any, _payload: dict[str, Any]) -> dict[str, Any]:
    try:
        raise ValueError("deep inside")
    except ValueError as error:
        raise UnknownNameError("there is no device 'x'.\nGive cpu.") from error


def dies(_subject: Any, _payload: dict[str, Any]) -> dict[str, Any]:
    os.abort()


def hangs(_subject: Any, _payload: dict[str, Any]) -> dict[str, Any]:
    time.sleep(100)
    return {}


def test_answers_from_another_process(ref: SubjectRef) -> None:
    answer = run_errand(ref, "test_errand:width", {"times": 2}, purpose="examined")
    assert answer["width"] == 6
    assert answer["pid"] != os.getpid()


@pytest.mark.parametrize(
    ("name", "said"), [("breaks", "no such thing"), ("dies", "SIGABRT"), ("hangs", "timed out")], ids=str
)
def test_says_what_happened(ref: SubjectRef, name: str, said: str) -> None:
    with pytest.raises(SubjectError, match=rf"could not be examined(.|\n)*{said}"):
        run_errand(ref, f"test_errand:{name}", {}, purpose="examined", limits=Limits(timeout_s=5.0))


def test_what_togi_says_itself_comes_without_a_traceback(ref: SubjectRef) -> None:
    with pytest.raises(SubjectError) as caught:
        run_errand(ref, "test_errand:refuses", {}, purpose="examined")
    assert str(caught.value) == "there is no device 'x'.\nGive cpu."
