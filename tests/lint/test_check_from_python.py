"""togi.api.check: paths, live modules, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from togi.api import check
from togi.core.errors import SubjectError, TogiError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("import torch\ntorch.nn.init.xavier_uniform(w)\n", encoding="utf-8")
    return tmp_path


def test_paths_are_checked_once_each(folder: Path) -> None:
    for result in (check(), check("a.py"), check(folder), check("a.py", "a.py")):
        assert [finding.rule for finding in result] == ["deprecated-function"]
        assert result
        assert len(result) == 1
    assert not check("a.py", ignore=["deprecated-function"])


def test_a_result_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        check().findings = ()  # type: ignore[misc]


@pytest.mark.thorough
def test_a_live_module() -> None:
    import torch
    from torch import nn

    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).eval()
    result = check(model, inputs=torch.zeros(1, 3, 8, 8), select=["module"])
    assert "bias-before-norm" in {finding.rule for finding in result}
    assert not result.problems


def test_what_is_refused() -> None:
    with pytest.raises(TogiError, match=r"no file or folder b\.py; did you mean 'a\.py'"):
        check("b.py")
    with pytest.raises(TogiError, match="no rule 'x'"):
        check(select=["x"])
    with pytest.raises(SubjectError, match="inputs"):
        check("a.py", inputs=3)
    with pytest.raises(SubjectError, match="an int"):
        check(3)
