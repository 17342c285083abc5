"""Artifacts of every engine, made once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.artifact.small_artifacts import RECIPES, make
from togi.artifact.manifest import MANIFEST
from togi.core.locks import locked
from togi.techniques import technique
from togi.techniques.base import Engine
from togi.torch_internals.compiler import cpp_compiler_missing


@pytest.fixture(scope="session")
def artifact_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The artifact of an engine, whose first dimension is dynamic; skips where the engine is not installed.

    Workers of one run share it: compiling one takes seconds.
    """
    own = tmp_path_factory.getbasetemp()
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "artifacts"
    shared.mkdir(exist_ok=True)

    def get(engine: str) -> Path:
        found = technique(engine)
        assert isinstance(found, Engine)
        if missing := [problem for package in found.packages if (problem := package.missing())]:
            pytest.skip(missing[0])
        if engine in ("torch_compile", "aot_inductor") and cpp_compiler_missing():
            pytest.skip("there is no C++ compiler")
        folder = shared / engine / "net.togi"
        folder.parent.mkdir(exist_ok=True)
        with locked(folder.parent):
            if not (folder / MANIFEST).exists():
                make(folder, RECIPES[engine], dynamic=True)
        return folder

    return get
