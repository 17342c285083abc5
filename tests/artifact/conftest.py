"""Artifacts of every engine, made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.artifact.small_artifacts import RECIPES, make
from togi.techniques import technique
from togi.techniques.base import Engine
from togi.torch_internals.compiler import cpp_compiler_missing


@pytest.fixture(scope="session")
def artifact_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The artifact of an engine, whose first dimension is dynamic; skips where the engine is not installed."""
    made: dict[str, Path] = {}

    def get(engine: str) -> Path:
        found = technique(engine)
        assert isinstance(found, Engine)
        if missing := [problem for package in found.packages if (problem := package.missing())]:
            pytest.skip(missing[0])
        if engine in ("torch_compile", "aot_inductor") and cpp_compiler_missing():
            pytest.skip("there is no C++ compiler")
        if engine not in made:
            made[engine] = tmp_path_factory.mktemp(engine) / "net.togi"
            make(made[engine], RECIPES[engine], dynamic=True)
        return made[engine]

    return get
