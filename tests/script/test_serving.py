"""Artifacts are put in for the modules that they were made of, and for no others; the rest is said once."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.artifact.artifact_maker import ArtifactMaker
from togi.artifact.load import put_in_place
from togi.artifact.manifest import MANIFEST, read_manifest
from togi.script import serving
from togi.script.identity import identity_of
from togi.script.records import ScriptIndex, TunedModule
from togi.script.serving import ScriptService
from togi.subject.identity import code_hash, settings_hash
from togi.subject.inputs import Subject
from togi.techniques import recipe


class Encoder(nn.Module):
    def __init__(self, seed: int = 0, power: int = 2) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear, self.power = nn.Linear(8, 4), power

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) ** self.power  # type: ignore[no-any-return]


X = torch.linspace(-1, 1, 24).reshape(3, 8)


def tuned(module: nn.Module, **about: Any) -> TunedModule:
    identity = identity_of(module, settings_hash(module), code_hash(module))
    return TunedModule(identity=identity, share=1.0, recipe="eager + no_grad", **about)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("script")
    for seed in (0, 1):
        subject = Subject(Encoder(seed).eval(), [(X,), (torch.cat([X, X]),)])
        ArtifactMaker.of(subject, "Encoder").make(made / f"{seed}.togi", recipe(eager={}, no_grad={}))
    return made


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def service(folder: Path, said: list[str]) -> Iterator[ScriptService]:
    modules = (tuned(Encoder(seed).eval(), artifact=f"{seed}.togi") for seed in (0, 1))
    index = ScriptIndex(togi_version="1", created="2026-11-26", script="x.py", modules=tuple(modules))
    made = ScriptService(folder, index, said.append)
    yield made
    made.stop()


def after_a_call(folder: Path, index: ScriptIndex, said: list[str]) -> ScriptService:
    """A service that has ended, of a script that calls an encoder once."""
    service = ScriptService(folder, index, said.append)
    try:
        with torch.no_grad():
            Encoder().eval()(X)
    finally:
        service.stop()
    return service


def expected(model: nn.Module, x: Tensor = X) -> Any:
    return type(model).forward(model, x)


def test_each_module_has_the_artifact_that_was_made_of_it(service: ScriptService, said: list[str]) -> None:
    models = [Encoder(seed).eval() for seed in (1, 0)]
    with torch.no_grad():
        for _ in range(3):
            for model in models:
                torch.testing.assert_close(model(X), expected(model))
    assert said == []
    assert [(one.module, one.engine_calls, one.original_calls) for one in service.served()] == [("Encoder", 3, 0)] * 2


def test_a_module_inside_of_data_parallelism_is_served(service: ScriptService) -> None:
    model = Encoder().eval()
    with torch.no_grad():
        torch.testing.assert_close(nn.DataParallel(model)(X), expected(model))
    assert [one.engine_calls for one in service.served()] == [1]


def with_a_hook(model: Encoder) -> None:
    model.linear.register_forward_hook(lambda *_: None)


def with_another_forward(model: Encoder) -> None:
    model.forward = lambda x: x  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Encoder(2).eval(), "its weights or its structure"),
        (lambda: Encoder(0, power=3).eval(), "its settings"),
        (lambda: Encoder(0), "its settings"),
        (lambda: changed(with_a_hook), "forward hooks"),
        (lambda: changed(with_another_forward), "was replaced"),
    ],
)
def test_any_other_module_runs_as_it_is_and_why_is_said_once(
    make: Callable[[], Encoder], why: str, service: ScriptService, said: list[str]
) -> None:
    model = make()
    plain = model.forward(X)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(model(X), plain)
    assert service.served() == []
    (line,) = said
    assert line.startswith("Encoder: ")
    assert why in line
    assert "original runs" in line


def changed(change: Callable[[Encoder], None]) -> Encoder:
    model = Encoder().eval()
    change(model)
    return model


def test_another_code_is_another_module(service: ScriptService, said: list[str]) -> None:
    class Edited(Encoder):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1

    Edited.__name__ = "Encoder"
    with torch.no_grad():
        model = Edited().eval()
        torch.testing.assert_close(model(X), expected(model))
    assert service.served() == []
    assert "code" in said[0] or "structure" in said[0]


def test_a_damaged_artifact_is_said_and_the_original_runs(said: list[str], tmp_path: Path) -> None:
    (tmp_path / "0.togi").mkdir()
    (tmp_path / "0.togi" / MANIFEST).write_text("{}", encoding="utf-8")
    index = ScriptIndex(
        togi_version="1", created="2026", script="x.py", modules=(tuned(Encoder().eval(), artifact="0.togi"),)
    )
    service = ScriptService(tmp_path, index, said.append)
    try:
        model = Encoder().eval()
        with torch.no_grad():
            for _ in range(2):
                torch.testing.assert_close(model(X), expected(model))
    finally:
        service.stop()
    assert service.served() == []
    (line,) = said
    assert "its artifact cannot be used, so the original runs" in line


@pytest.mark.parametrize("when", ["before it is read", "while it is read"])
def test_an_artifact_that_another_run_put_in_its_place_is_not_used(
    when: str, folder: Path, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, others = folder / "0.togi", folder / "1.togi"
    shutil.copytree(own, tmp_path / "0.togi")
    module = tuned(Encoder().eval(), artifact="0.togi", sha256=read_manifest(own).sha256)
    index = ScriptIndex(togi_version="1", created="2026", script="x.py", modules=(module,))
    service = ScriptService(tmp_path, index, said.append)

    def replace() -> None:
        shutil.rmtree(tmp_path / "0.togi")
        shutil.copytree(others, tmp_path / "0.togi")

    def put_in(*args: Any, **kwargs: Any) -> Any:
        installed = put_in_place(*args, **kwargs)
        replace()
        return installed

    if when == "before it is read":
        replace()
    else:
        monkeypatch.setattr(serving, "put_in_place", put_in)
    try:
        model = Encoder().eval()
        with torch.no_grad():
            for _ in range(2):
                assert torch.equal(model(X), expected(model))
    finally:
        service.stop()
    assert service.served() == []
    assert "forward" not in vars(model)
    (line,) = said
    assert "was replaced since this run began" in line


def test_an_artifact_that_is_still_the_same_is_used(folder: Path, said: list[str]) -> None:
    module = tuned(Encoder().eval(), artifact="0.togi", sha256=read_manifest(folder / "0.togi").sha256)
    index = ScriptIndex(togi_version="1", created="2026", script="x.py", modules=(module,))
    service = after_a_call(folder, index, said)
    assert (said, [one.engine_calls for one in service.served()]) == ([], [1])


def test_a_module_that_was_not_beaten_runs_as_it_is_without_a_word(folder: Path, said: list[str]) -> None:
    index = ScriptIndex(togi_version="1", created="2026", script="x.py", modules=(tuned(Encoder().eval()),))
    service = after_a_call(folder, index, said)
    assert (said, service.served()) == ([], [])


def test_threads_that_call_it_first_at_once_put_it_in_once(service: ScriptService) -> None:
    model, start = Encoder().eval(), threading.Barrier(4)

    def call() -> None:
        start.wait()
        with torch.no_grad():
            torch.testing.assert_close(model(X), expected(model))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (served,) = service.served()
    assert served.engine_calls + served.original_calls <= 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.usefixtures("service")
def test_a_forked_process_has_the_originals() -> None:
    model = Encoder().eval()
    with torch.no_grad():
        model(X)
    child = os.fork()
    if child == 0:
        os._exit(0 if "forward" not in vars(model) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert "forward" in vars(model)
