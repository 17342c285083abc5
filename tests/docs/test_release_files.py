"""Images, workflow and pages of a release name what there is: files, extras, variables, targets, numbers. Neither a
daemon nor an index takes part."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest

from togi.artifact.manifest import MANIFEST_VERSION
from togi.cli.app import COMMANDS
from togi.core.needs_torch import OLDEST_PYTHON, OLDEST_TORCH
from togi.core.records import SCHEMA_VERSION

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMAGES = sorted((ROOT / "examples" / "docker").glob("*.Dockerfile"))
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"


def instructions(path: Path) -> list[tuple[str, str]]:
    """Of a Dockerfile, without comments; a line that goes on is one."""
    text = re.sub(r"(?m)^#.*\n", "", path.read_text(encoding="utf-8"))
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines) if word]


def of(path: Path, word: str) -> list[str]:
    return [rest for name, rest in instructions(path) if name == word]


def ignored() -> list[str]:
    """What .dockerignore lets through."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    return [line[1:] for line in lines if line.startswith("!")]


def test_there_are_images_to_serve_and_to_tune() -> None:
    assert [path.name for path in IMAGES] == ["serve.Dockerfile", "tune.Dockerfile"]


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.stem)
def test_an_image_copies_what_there_is_and_what_the_build_sees(image: Path) -> None:
    sources = [source for rest in of(image, "COPY") for source in rest.split()[:-1]]
    assert {"pyproject.toml", "src"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists(), source
        assert source in ignored(), "or the build does not see it"
    assert {PROJECT["readme"], *PROJECT["license-files"]} <= set(sources), "the build of the wheel reads them"


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.stem)
def test_an_image_installs_extras_that_there_are_on_a_python_that_runs_models(image: Path) -> None:
    text = image.read_text(encoding="utf-8")
    (given,) = re.findall(r'"/source\[([^\]]+)\]"', text)
    arguments = dict(argument.split("=", 1) for argument in of(image, "ARG"))
    extras = given.replace("$EXTRAS", arguments.get("EXTRAS", "")).split(",")
    assert set(extras) <= set(PROJECT["optional-dependencies"])
    assert "torch" in " ".join(line for extra in extras for line in PROJECT["optional-dependencies"][extra])
    (version,) = (rest.removeprefix("python:").removesuffix("-slim") for rest in of(image, "FROM"))
    assert tuple(map(int, version.split("."))) >= tuple(map(int, OLDEST_PYTHON.split(".")))


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.stem)
def test_an_image_does_not_run_as_root_and_sets_variables_that_are_read(image: Path) -> None:
    names = [name for name, _ in instructions(image)]
    assert names.index("USER") < max(names.index(name) for name in ("CMD", "ENTRYPOINT") if name in names)
    assert of(image, "USER")[-1] not in ("root", "0")
    read = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/togi/core").glob("*.py"))
    read += (ROOT / "examples/server.py").read_text(encoding="utf-8")
    variables = [pair.partition("=")[0] for rest in of(image, "ENV") for pair in rest.split()]
    assert variables
    assert all(f'"{name}"' in read for name in variables if not name.startswith("PYTHON"))


def test_the_image_that_tunes_runs_togi_with_a_command_that_there_is() -> None:
    image = ROOT / "examples/docker/tune.Dockerfile"
    assert of(image, "ENTRYPOINT") == ['["togi"]']
    assert re.findall(r'"(\w+)"', of(image, "CMD")[0])[0] in COMMANDS


def test_the_image_that_serves_starts_the_server_of_the_examples() -> None:
    image = ROOT / "examples/docker/serve.Dockerfile"
    (command,) = of(image, "CMD")
    (module, name) = re.findall(r'"(\w+):(\w+)"', command)[0]
    source = (ROOT / "examples" / f"{module}.py").read_text(encoding="utf-8")
    assert f"\n{name} = FastAPI(" in source
    (health,) = of(image, "HEALTHCHECK")
    assert '@app.get("/health")' in source
    assert "/health" in health
    assert re.findall(r'"--port", "(\d+)"', command) == of(image, "EXPOSE") == re.findall(r":(\d+)/", health)


@pytest.fixture(scope="module")
def workflow() -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))


def test_only_the_job_that_publishes_may_prove_who_it_is(workflow: Any) -> None:
    assert workflow["permissions"] == {}
    granted = {name: job.get("permissions") for name, job in workflow["jobs"].items()}
    assert granted == {"build": {"contents": "read"}, "publish": {"id-token": "write"}}
    publish = workflow["jobs"]["publish"]
    assert publish["environment"] == "release", "a person may be asked before"
    assert publish["needs"] == "build"
    assert not [step for step in publish["steps"] if "run" in step], "it runs nothing of the repository"


def test_the_workflow_holds_no_secret_and_runs_no_text_of_a_tag(workflow: Any) -> None:
    text = WORKFLOW.read_text(encoding="utf-8")
    assert "secrets." not in text
    assert workflow[True] == {"push": {"tags": ["v*"]}}, "YAML reads 'on' as true"
    assert all("${{" not in step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"])


def test_the_workflow_checks_as_the_suite_does(workflow: Any) -> None:
    """What tests/test_release.py runs on the archives."""
    lines = "\n".join(step.get("run", "") for step in workflow["jobs"]["build"]["steps"])
    suite = (ROOT / "tests/test_release.py").read_text(encoding="utf-8")
    for module in ("build", "twine", "check_wheel_contents"):
        assert f"python -m {module}" in lines
        assert f'"{module}"' in suite
    checkout = workflow["jobs"]["build"]["steps"][0]
    assert checkout["with"]["fetch-depth"] == 0, "hatch-vcs reads the tag"


def test_pages_for_people_who_change_togi_name_targets_and_files_that_there_are() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in ("CONTRIBUTING.md", "SECURITY.md", "docs/versions.md", "docs/agents.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        for target in re.findall(r"(?m)^make ([\w-]+)", text):
            assert re.search(rf"(?m)^{target}:", makefile), f"{page} names make {target}"
        for named in re.findall(r"`((?:src|tests|docs)/[\w./]+)`", text):
            # names in capitals stand for any
            there = Path(*(part for part in Path(named).parts if not re.search("[A-Z]{4}", part)))
            assert (ROOT / there).exists(), f"{page} names {named}"
        for link in re.findall(r"\]\((?![a-z]+:|#)([^)#]+)", text):
            assert ((ROOT / page).parent / link).exists(), f"{page} links to {link}"


def test_the_rule_of_versions_states_the_numbers_of_today() -> None:
    page = (ROOT / "docs/versions.md").read_text(encoding="utf-8")
    assert f"`schema_version` (now {SCHEMA_VERSION})" in page
    assert f"Python {OLDEST_PYTHON} to 3.13 and torch {OLDEST_TORCH} or newer" in page
    assert PROJECT["requires-python"] == ">=3.10"
    assert "runs from\nPython 3.10 on" in page or "runs from Python 3.10 on" in page
    assert MANIFEST_VERSION >= 1


def test_exit_codes_for_agents_are_those_of_the_program() -> None:
    page = (ROOT / "docs/agents.md").read_text(encoding="utf-8")
    codes = set(re.findall(r"(?m)^\| (\d+) \|", page.partition("## Exit codes")[2].partition("\n## ")[0]))
    commands = (ROOT / "docs/commands.md").read_text(encoding="utf-8").partition("| exit code | meaning |")[2]
    assert codes == set(re.findall(r"(?m)^\| (\d+) \|", commands.partition("\n\n")[0]))


def test_every_page_is_checked_for_plain_english() -> None:
    pages = {path.name for path in runpy.run_path(str(ROOT / "docs/prose.py"))["pages"]()}
    assert {"SECURITY.md", "CONTRIBUTING.md", "versions.md", "agents.md"} <= pages
