"""What one module rule finds in a module, predicted for a GPU so that nothing is measured."""

from __future__ import annotations

from typing import Any

from togi.lint.finding import Finding
from togi.lint.module.check import check_module
from togi.subject.inputs import Subject


def findings(rule: str, module: Any, sample: Any, *, train: bool = False, **order: Any) -> list[Finding]:
    subject = Subject(module.train(train) if train is not None else module, sample)
    answer = check_module(subject, {"device": "A100", "select": [rule], **order})
    return [Finding.model_validate(found) for found in answer["findings"]]


def layers(found: list[Finding]) -> int:
    assert len(found) <= 1, "equal layers are one finding"
    return found[0].count if found else 0
