"""What one module rule finds in a module, predicted for a GPU so that nothing is measured."""

from __future__ import annotations

from typing import Any

from togi.lint.calls import ModuleRequest
from togi.lint.finding import Finding
from togi.lint.module.check import check_module
from togi.subject.inputs import Subject


def findings(rule: str, module: Any, sample: Any, *, train: bool = False, **order: Any) -> list[Finding]:
    subject = Subject(module.train(train) if train is not None else module, sample)
    return list(check_module(subject, ModuleRequest(**{"device": "A100", "rules": (rule,), **order})).findings)


def layers(reported: list[Finding]) -> int:
    assert len(reported) <= 1, "equal layers are one finding"
    return reported[0].count if reported else 0
