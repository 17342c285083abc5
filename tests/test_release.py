"""What is released: the archives are well formed, and the wheel works where only what it requires is installed."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tarfile import TarFile

import pytest
from packaging.requirements import Requirement

import togi
from tests.test_public_api import SEEN
from togi.techniques import all_techniques

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.thorough


def run(*command: str | Path, cwd: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    """Standard output; what it printed is shown where it fails."""
    done = subprocess.run(command, cwd=cwd, env=environment, text=True, capture_output=True, timeout=280)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def bare(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of an environment that holds the wheel and what it requires with the extra torch, linked from the one
    that tests run in (torch alone takes gigabytes); no backend, and no tool that only this environment has."""
    wheel, folder = archives[1], tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = importlib.metadata.PathDistribution(zipfile.Path(opened, name.removesuffix("METADATA")))
        required = list(closure(metadata, set(), frozenset({"torch"})))
    for distribution in required:
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(str(distribution.locate_file(top)))
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", wheel)
    return folder / "bin"


def closure(
    distribution: importlib.metadata.Distribution, seen: set[str], extras: frozenset[str] = frozenset()
) -> Iterator[importlib.metadata.Distribution]:
    """The installed distributions that it requires, and what they require."""
    for requirement in map(Requirement, distribution.requires or ()):
        wanted = requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in (extras or {""})
        )
        key = f"{requirement.name}[{','.join(sorted(requirement.extras))}]"
        if wanted and key not in seen:
            seen.add(key)
            found = importlib.metadata.distribution(requirement.name)
            yield found
            yield from closure(found, seen, frozenset(requirement.extras))


def test_the_archives_are_well_formed(archives: tuple[Path, Path]) -> None:
    sdist, wheel = archives
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    run(sys.executable, "-m", "check_wheel_contents", wheel)
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    assert "togi/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/togi").rglob("*.py")}
    assert sources <= set(names)
    assert {name for name in names if name.endswith(".py")} <= sources
    with TarFile.open(sdist) as packed:
        inside = {name.partition("/")[2] for name in packed.getnames()}
    assert {"LICENSE", "CHANGELOG.md", "README.md", "Makefile", "tests/conftest.py", "src/togi/py.typed"} <= inside
    assert not [name for name in inside if name.startswith((".venv", "dist/"))]


def test_the_wheel_requires_no_torch(archives: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(archives[1]) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = importlib.metadata.PathDistribution(zipfile.Path(opened, name.removesuffix("METADATA")))
        required = {distribution.metadata["Name"].lower() for distribution in closure(metadata, set())}
    assert "pydantic" in required
    assert not required & {"torch", "numpy", "safetensors", "cloudpickle"}


def test_every_extra_brings_what_the_techniques_say_that_it_brings(archives: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(archives[1]) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        lines = opened.read(name).decode().splitlines()
    brought = {
        (found[2], re.split(r"[ <>=\[;]", found[1])[0])
        for line in lines
        if (found := re.match(r"Requires-Dist: (.*); extra == '(\w+)'", line))
    }
    packages = [package for technique in all_techniques().values() for package in technique.packages]
    assert packages
    assert {(package.extra, package.distribution) for package in packages} <= brought


def test_the_demo_works_without_backends_and_without_a_compiler(bare: Path, tmp_path: Path) -> None:
    environment = {"PATH": str(bare), "HOME": str(tmp_path), "TMPDIR": os.environ.get("TMPDIR", "/tmp")}
    absent = (
        "import importlib.util as u; print([*map(u.find_spec, ('onnx', 'onnxruntime', 'openvino', 'nncf', 'pytest'))])"
    )
    assert run(bare / "python", "-c", absent, environment=environment) == f"{[None] * 5}\n"
    told = run(bare / "togi", "--version", cwd=tmp_path, environment=environment)
    assert told == f"togi {run(bare / 'python', '-c', 'import togi; print(togi.__version__)', environment=environment)}"
    study = json.loads(run(bare / "togi", "demo", "--json", cwd=tmp_path, environment=environment))
    assert study["best"] is not None
    assert [trial for trial in study["trials"] if trial["latency_ms"]], (
        "what a slow machine reaches in the time is its own"
    )
    fixes = {trial["fix"] for trial in study["trials"] if trial["outcome"] == "missing"}
    assert {"pip install 'togi[onnx]'", "pip install 'togi[openvino]'"} <= fixes
    assert "makes possible what was missing" in run(bare / "togi", "report", cwd=tmp_path, environment=environment)
    assert "branches" in (tmp_path / "togi-demo.html").read_text(encoding="utf-8")


def test_the_installed_package_brings_its_types(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(SEEN, encoding="utf-8")
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n", encoding="utf-8")
    told = run(
        *(sys.executable, "-m", "mypy", f"--python-executable={bare / 'python'}", "use.py"),
        cwd=tmp_path,
        environment={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    assert "StudyResult" in told
    for kind in ("bool", "int"):
        assert re.search(rf'is "(builtins\.)?{kind}"', told), told
    assert 'is "Any"' not in told


def test_the_version_comes_from_the_tag(tmp_path: Path) -> None:
    """A clone with a tag, a clone without one, and a copy that is no clone."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "src/togi").mkdir(parents=True)
    (tmp_path / "src/togi/__init__.py").touch()
    hatch = (sys.executable, "-m", "hatchling", "version")
    assert run(*hatch, cwd=tmp_path) == "0.1.0.dev0\n"
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    run(*git, "init", "--quiet", cwd=tmp_path)
    run(*git, "add", ".", cwd=tmp_path)
    run(*git, "commit", "--quiet", "--message=first", cwd=tmp_path)
    assert re.fullmatch(r"0[.\d]+\.dev\d+\+g\w+\n", run(*hatch, cwd=tmp_path))
    run(*git, "tag", "v3.2.1", cwd=tmp_path)
    assert run(*hatch, cwd=tmp_path) == "3.2.1\n"
    assert togi.__version__ == importlib.metadata.version("togi")
