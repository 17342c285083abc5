"""What works where togi alone is installed, without torch, and what everything else says there.

The commands run in an interpreter that finds togi and what pyproject.toml requires of it, and nothing else that is
installed here.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import pickle
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import togi
from togi.cli.app import COMMANDS
from togi.core import needs_torch
from togi.core.needs_torch import PACKAGES, MissingTorchError, need_torch

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MODEL = "import torch\n\ndef make():\n    return torch.nn.Linear(4, 4), torch.ones(1, 4)\n"
FAULT = "for x, y in loader:\n    loss = model(x)\n    loss.backward()\n    optimizer.step()\n    total += loss\n"


def required(lines: Iterable[str]) -> Iterator[str]:
    """The names of what these requirements bring without an extra, and of what that requires in turn."""
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name.lower()
            yield from required(importlib.metadata.requires(requirement.name) or ())


def metadata() -> Iterator[str]:
    """Of togi as pyproject.toml has it now; what is installed here may be older."""
    yield from ("Metadata-Version: 2.1", "Name: togi", "Version: 0")
    yield from (f"Requires-Dist: {line}" for line in PROJECT["dependencies"])
    for extra, lines in PROJECT["optional-dependencies"].items():
        for requirement in map(Requirement, lines):
            of_extra, requirement.marker = requirement.marker, None
            also = f" and ({of_extra})" if of_extra else ""
            yield f"Requires-Dist: {requirement} ; extra == '{extra}'{also}"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that finds only what togi requires."""
    home = tmp_path_factory.mktemp("home")
    site = tmp_path_factory.mktemp("site")
    (site / "togi-0.dist-info").mkdir()
    (site / "togi-0.dist-info" / "METADATA").write_text("\n".join(metadata()), encoding="utf-8")
    for name in set(required(PROJECT["dependencies"])):
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not top.endswith(".pth") and not (site / top).exists():
                (site / top).symlink_to(str(distribution.locate_file(top)))
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": os.pathsep.join((str(Path(togi.__file__).parents[1]), str(site))),
    }


def python(bare: dict[str, str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-S", *arguments], env=bare, cwd=folder, capture_output=True, text=True, timeout=100
    )


def commands(bare: dict[str, str], folder: Path, *lines: list[str]) -> list[tuple[int, str, str]]:
    """Exit code, results and messages of each, all in one process."""
    code = """
import contextlib, io, json, sys
from togi.cli.app import run
done = []
for line in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = run(line)
    done.append((code, out.getvalue(), err.getvalue()))
assert not {"torch", "numpy"} & set(sys.modules)
print(json.dumps(done))
"""
    done = python(bare, folder, "-c", code, json.dumps(lines))
    assert done.returncode == 0, done.stderr
    return [(code, out, err) for code, out, err in json.loads(done.stdout)]


def test_the_core_requires_neither_torch_nor_what_is_used_with_it() -> None:
    assert not set(PACKAGES) & set(required(PROJECT["dependencies"]))


def test_every_extra_for_models_brings_torch() -> None:
    extras = {name: list(map(Requirement, lines)) for name, lines in PROJECT["optional-dependencies"].items()}
    assert {requirement.name for requirement in extras["torch"]} == set(PACKAGES)
    assert str(extras["torch"][0].specifier) == f">={needs_torch.OLDEST_TORCH}"
    without = {name for name, lines in extras.items() if not any("torch" in line.extras for line in lines)}
    assert without == {"torch", "gpu", "lsp", "sign", "docs"}


def test_this_environment_is_bare(bare: dict[str, str], tmp_path: Path) -> None:
    found = python(
        bare, tmp_path, "-c", f"import importlib.util as u; print([*map(u.find_spec, {[*PACKAGES, 'pytest']!r})])"
    )
    assert found.stdout.strip() == str([None] * 5), found.stderr


def test_source_is_checked_and_mended(bare: dict[str, str], tmp_path: Path) -> None:
    """Also by the processes that are started for many files."""
    for number in range(3):
        (tmp_path / f"f{number}.py").write_text(FAULT + "#" * 300_000, encoding="utf-8")
    found, mended, explained, everything = commands(
        bare,
        tmp_path,
        ["check", ".", "--json"],
        ["check", "f0.py", "--fix", "--unsafe-fixes"],
        ["explain", "loss-kept-with-graph"],
        ["explain", "--json"],
    )
    assert (found[0], mended[0], explained[0], everything[0]) == (1, 1, 0, 0)
    assert {each["rule"] for each in json.loads(found[1])["findings"]} == {"missing-zero-grad", "loss-kept-with-graph"}
    assert "total += loss.detach()" in (tmp_path / "f0.py").read_text(encoding="utf-8")
    assert "loss-kept-with-graph" in explained[1]
    assert {"techniques", "rules", "claims"} <= set(json.loads(everything[1]))


def test_technique_doctor_and_version(bare: dict[str, str], tmp_path: Path) -> None:
    page, examined, version = commands(
        bare, tmp_path, ["explain", "torch_compile"], ["doctor", "--json"], ["--version"]
    )
    assert (page[0], examined[0], version[0]) == (0, 0, 0)
    packages = {check["name"]: check for check in json.loads(examined[1])["checks"] if check["topic"] == "packages"}
    assert packages["torch"]["found"] == "not installed"
    assert packages["pydantic"]["level"] == "ok"


def test_studies_and_snapshots_are_read(bare: dict[str, str], tmp_path: Path) -> None:
    from tests.render.made_up_study import made_up_study
    from togi.journal import Journal

    study = made_up_study()
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        log = journal.study("key", study)
        for trial in study.trials:
            log.append(trial)
    frame = {"filename": "/home/a/train.py", "line": 3, "name": "step"}
    block = {"size": 2**20, "requested_size": 2**20, "state": "active_allocated", "frames": [frame]}
    segment = {"device": 0, "address": 0, "total_size": 2**20, "stream": 0, "segment_type": "small", "blocks": [block]}
    snapshot = {"segments": [segment], "device_traces": [[]], "allocator_settings": {}}
    (tmp_path / "snapshot.pickle").write_bytes(pickle.dumps(snapshot))
    listed, shown, memory = commands(
        bare,
        tmp_path,
        ["report", "--list", "--journal", "journal.sqlite"],
        ["report", "--journal", "journal.sqlite", "--html", "report.html", "--json"],
        ["memory", "snapshot.pickle", "--report", "memory.html"],
    )
    assert (listed[0], memory[0]) == (0, 0)
    assert study.subject in listed[1]
    assert len(json.loads(shown[1])["trials"]) == len(study.trials)
    assert study.subject in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "1.00 MiB" in memory[1]
    assert (tmp_path / "memory.html").exists()


NEED_TORCH = {
    "tune": ["m.py:make"],
    "precision": ["m.py:make", "--data", "m.py:data"],
    "run": ["m.py"],
    "check": ["m.py:make"],
    "memory": ["m.py:make"],
    "fit": ["m.py:make", "--memory", "1GiB"],
    "bench": ["m.py:make", "m.py:make"],
    "verify": ["a.togi"],
    "export": ["a.togi", "--to", "onnx", "--out", "out"],
    "fleet": ["m.py:make", "--cluster", "auto", "--prices", "prices.toml"],
    "explain": ["torch_compile", "--prove"],
    "doctor": ["--engines"],
    "demo": [],
}


def test_whatever_runs_a_model_says_in_one_line_what_brings_torch(bare: dict[str, str], tmp_path: Path) -> None:
    assert set(COMMANDS) - set(NEED_TORCH) == {"sign", "report", "clean"}
    (tmp_path / "m.py").write_text(MODEL, encoding="utf-8")
    lines = [
        *([command, *arguments] for command, arguments in NEED_TORCH.items()),
        ["memory", "m.py:make", "--predict"],
        ["explain", "--prove-all"],
        ["check", "m.py", "--subject", "m.py:make"],
    ]
    for line, (code, out, err) in zip(lines, commands(bare, tmp_path, *lines), strict=True):
        assert (code, out) == (2, ""), (line, out, err)
        assert re.fullmatch(r"togi: .* needs torch, .* pip install 'togi\[torch\]'\n", err), (line, err)
    assert sorted(os.listdir(tmp_path)) == ["m.py"], "something was begun"


def test_every_public_name_works_or_says_what_brings_torch(bare: dict[str, str], tmp_path: Path) -> None:
    code = """
import togi
said = {}
for name in togi.__all__:
    try:
        getattr(togi, name)
    except ImportError as error:
        assert isinstance(error, togi.TogiError)
        said[name] = str(error)
for name in ("tune", "optimize", "restore", "load", "memory", "bench", "check", "compare"):
    try:
        getattr(togi, name)(*(["m.py:make"] * {"bench": 2, "compare": 3}.get(name, 1)))
    except togi.TogiError as error:
        said[name] = str(error)
assert not togi.check("m.py")
for name, text in said.items():
    assert text.endswith("pip install 'togi[torch]'"), text
print(*said)
"""
    (tmp_path / "m.py").write_text(MODEL, encoding="utf-8")
    done = python(bare, tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    assert {"ops", "lean", "graphs", "tune", "load", "memory", "bench", "check", "compare"} <= set(done.stdout.split())
    assert not {"TogiError", "FitError", "UndecidedError", "__version__"} & set(done.stdout.split())


def test_what_forgets_to_ask_is_told_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a module that is missing for another reason is a defect, as before."""
    from togi import api
    from togi.cli.app import run

    def imports(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(api, "sign", imports)
    assert run(["sign", "a.togi", "--key", "k.pem"]) == 3
    assert "defect of togi" in capsys.readouterr().err
    monkeypatch.setattr(needs_torch, "PACKAGES", ("no_such_package",))
    assert run(["sign", "a.togi", "--key", "k.pem"]) == 2
    assert "needs no_such_package, which is not installed here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("version", "refused"), [("2.8.1", True), ("2.9.0a0+git1", False), ("2.10.0+cu130", False), ("3.0", False)]
)
def test_a_torch_that_is_too_old_is_refused(version: str, refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    if refused:
        with pytest.raises(MissingTorchError, match=r"tune needs torch 2\.9 or newer, and 2\.8\.1 is installed: pip"):
            need_torch("tune")
    else:
        need_torch("tune")


def test_an_older_python_is_told_of_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    with pytest.raises(MissingTorchError, match=r"Python 3\.11 and newer"):
        need_torch("tune")
