"""Repositories made to attack who checks them: nothing of them runs, nothing outside of them is written, nothing hangs,
and what cannot be checked is one line."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

LIMIT_S = 60
"""A case takes two or three seconds on a quiet machine."""
CALL = "import torch\ntorch.nn.init.xavier_uniform(w)\n"
Dice = random.Random
Maker = Callable[[Path, Path], None]
"""Given a folder, and the one outside."""


def text(name: str, content: str | bytes) -> Maker:
    def make(folder: Path, _: Path) -> None:
        data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")
        with (folder / name).open("xb") as file:  # not into a pipe that was there first
            file.write(data)

    return make


def link(name: str, to: str) -> Maker:
    def make(folder: Path, outside: Path) -> None:
        (folder / name).symlink_to(to.replace("OUTSIDE", str(outside)))

    return make


def pipe(name: str) -> Maker:
    return lambda folder, _: os.mkfifo(folder / name)


def sparse(name: str) -> Maker:
    def make(folder: Path, _: Path) -> None:
        with (folder / name).open("xb") as file:
            file.write(b"import torch\n")
            file.truncate(2**40)

    return make


def deep(folder: Path, _: Path) -> None:
    for _ in range(300):
        folder = folder / "d"
        folder.mkdir()
    (folder / "x.py").write_text(CALL, encoding="utf-8")


def planted(folder: Path, outside: Path) -> None:
    for name in ("torch", "conftest", "sitecustomize", "setup", "json", "socket", "togi", "typing", "evil"):
        (folder / f"{name}.py").write_text(f"import torch\nopen({str(outside / 'ran')!r}, 'w')\n", encoding="utf-8")


def notebook(*sources: str) -> str:
    cells = [{"cell_type": "code", "source": source} for source in sources]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def nested(levels: int, head: str) -> str:
    body = "".join(f"{'  ' * level}{head.format(level)}\n" for level in range(levels))
    last = "  " * levels
    return f"import torch\n{body}" + "".join(f"{last}a{n} = [a{n - 1}]\n" for n in range(1, levels))


BLANKS = " " * 60_000
TABLE = "[tool.togi.check]\n"
MAKERS: dict[str, Maker] = {
    "a pipe": pipe("pipe.py"),
    "a pipe with settings": pipe("pyproject.toml"),
    "a pipe with patterns": pipe(".gitignore"),
    "a device": link("zero.py", "/dev/zero"),
    "a device with settings": link("pyproject.toml", "/dev/zero"),
    "a device with patterns": link(".gitignore", "/dev/urandom"),
    "a log of the kernel": link("kmsg.py", "/proc/kmsg"),
    "a locator that dangles": link("evil.py:main", "nowhere"),
    "a model that dangles": link("evil.pt", "nowhere"),
    "a locator of a module": link("evil:main", "nowhere"),
    "a model": text("model.ts", b"PK\x03\x04 torch"),
    "a link to a folder outside": link("out", "OUTSIDE"),
    "a link to a file outside": link("out.py", "OUTSIDE/victim.py"),
    "links in a circle": link("circle", "."),
    "a link to itself": link("self.py", "self.py"),
    "a file without an end": sparse("sparse.py"),
    "a notebook without an end": sparse("sparse.ipynb"),
    "folders 300 deep": deep,
    "modules to import": planted,
    "an option": text("--output-file=evil.py", CALL),
    "an option to write": text("--fix", CALL),
    "an option to run": text("--subject=evil.py:main", CALL),
    "a name that steers": text("\x1b[2Jx\x9b31m\u202e.py", CALL),
    "a name of lines": text("a\n::error::b\r.py", CALL),
    "a name that is no text": text(os.fsdecode(b"\xff\xfe.py"), CALL),
    "a command in source": text("command.py", "import torch\nx = (\n  '''\n::stop-commands::x\n##[error]y\x1b[2J\n"),
    "a table too deep": text("pyproject.toml", TABLE + "x = " + "[" * 5000),
    "a table of thousands": text("pyproject.toml", TABLE + "max-file-bytes = " + "9" * 5000),
    "a table without a limit": text("pyproject.toml", TABLE + f"max-file-bytes = {2**62}\n"),
    "a table that steers": text("pyproject.toml", TABLE + '"\\u001b[2J\\u202e" = 1\n'),
    "a table of stars": text("pyproject.toml", TABLE + 'exclude = ["' + "*a" * 40 + 'b"]\n'),
    "patterns of stars": text(".gitignore", "*a*a*a*a*a*a*b\n**/a/**/a/**/a/**/a/**/b\n" * 20),
    "patterns without number": text(".gitignore", "x\n" * 100_000),
    "a long name": text("a" * 250 + ".py", CALL),
    "loops 18 deep": text("loops.py", nested(18, "for a{0} in a0:")),
    "conditions 60 deep": text("ifs.py", nested(60, "if a{0}:")),
    "a long chain": text("chain.py", "import torch\nif a: x = 1\n" + "elif a.item(): x = 1\n" * 600),
    "a long condition": text("long.py", f"import torch\nif {' and '.join(f'a{n}.item()' for n in range(3000))}: x\n"),
    "brackets": text("brackets.py", "import torch\nx = " + "(" * 90_000),
    "minus": text("minus.py", "import torch\nx = " + "-" * 90_000 + "1\n"),
    "names that are missing": text("names.py", f"from torch import {', '.join(f'sofmax{n}' for n in range(9000))}\n"),
    "comments": text("comments.py", "import torch\nx = 1 #" + "togi: ignore[ #" * 5000 + "\n"),
    "an encoding": text("coded.py", b"# coding: \x1b]0;x\x07\nimport torch\n"),
    "a notebook too deep": text("deep.ipynb", '{"torch": ' + "[" * 90_000),
    "a notebook of thousands": text("digits.ipynb", '{"torch": ' + "9" * 9000 + "}"),
    "a notebook of blanks": text("blank.ipynb", notebook(f"import torch\n!x\n{BLANKS}x", f"{BLANKS}=")),
    "a notebook of cells": text("cells.ipynb", notebook("import torch", *["torch.nn.init.xavier_uniform(w)"] * 2000)),
    "a notebook of surrogates": text("half.ipynb", '{"cells": [{"cell_type": "code", "source": "torch \\ud800"}]}'),
}
FORMS = [*([f"--output-format={form}"] for form in ("github", "concise", "json", "text")), ["--fix"], ["--diff"]]


def made(top: Path, names: list[str], dice: Dice) -> tuple[Path, Path]:
    """The repository, and a folder outside of it with what must stay as it is."""
    repository, outside = top / "repository", top / "outside"
    repository.mkdir()
    outside.mkdir()
    (outside / "victim.py").write_text(CALL, encoding="utf-8")
    (repository / "good.py").write_text(CALL, encoding="utf-8")
    if dice.random() < 0.5:
        (repository / ".git").mkdir()
    for name in names:
        where = repository
        if dice.random() < 0.3:
            where = repository / dice.choice("abc")
            where.mkdir(exist_ok=True)
        try:
            MAKERS[name](where, outside)
        except (FileExistsError, PermissionError):
            continue  # two that want one name: the first has it
    return repository, outside


def check(repository: Path, top: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "togi", "check", *arguments],
        cwd=repository,
        env={**os.environ, "TOGI_CACHE": str(top / "cache"), "COLUMNS": "100"},
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=LIMIT_S,
        check=False,
    )


def assert_safe(outside: Path, done: subprocess.CompletedProcess[str], arguments: list[str]) -> None:
    assert done.returncode in (0, 1, 2), done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "a defect of togi" not in done.stdout + done.stderr
    assert sorted(path.name for path in outside.iterdir()) == ["victim.py"]
    assert (outside / "victim.py").read_text(encoding="utf-8") == CALL
    for printed in (done.stdout, done.stderr):
        steering = {char for char in printed if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
        assert steering <= {"\n", "\t"}
        allowed = ("::warning ", "::error ", "::notice ") if "--output-format=github" in arguments else ()
        commands = [line for line in printed.splitlines() if line.lstrip().startswith("::")]
        assert all(line.startswith(allowed) if allowed else False for line in commands)
        assert "##[" not in printed
    if done.returncode == 2 and not done.stdout:
        assert len(done.stderr.splitlines()) == 1


def attacked(top: Path, names: list[str], seed: int) -> None:
    dice = random.Random(seed)
    repository, outside = made(top, names, dice)
    form = dice.choice(FORMS)
    listed = ["."] if dice.random() < 0.5 else sorted(os.listdir(repository))
    done = check(repository, top, [*form, *listed])
    assert_safe(outside, done, form)


@pytest.mark.thorough
@pytest.mark.parametrize("name", MAKERS)
def test_each_attack(name: str, tmp_path: Path) -> None:
    repository, outside = made(tmp_path, [name], random.Random(name))
    for arguments in (["."], ["--fix", "."], ["--output-format=github", *sorted(os.listdir(repository))]):
        assert_safe(outside, check(repository, tmp_path, arguments), arguments)


@pytest.mark.thorough
@pytest.mark.parametrize("number", range(12))
def test_repositories_drawn_by_chance(number: int, tmp_path: Path) -> None:
    dice = random.Random(number)
    attacked(tmp_path, dice.sample(sorted(MAKERS), dice.randint(3, 12)), number)


SLOW = {
    "loops 18 deep",
    "a long chain",
    "a long condition",
    "names that are missing",
    "comments",
    "a notebook of cells",
}
QUICK = sorted(name for name in set(MAKERS) - SLOW if "table" not in name and "settings" not in name)
"""Settings that cannot be used end a check, so they would hide the others."""


@pytest.mark.parametrize("seed", range(3))
def test_a_few_repositories(seed: int, tmp_path: Path) -> None:
    """The attacks that take no time, over three repositories."""
    attacked(tmp_path, [name for number, name in enumerate(QUICK) if number % 3 == seed], seed)


@pytest.mark.parametrize("name", ["link", "folder"])
def test_a_named_link_that_leads_out_is_not_written_through(name: str, tmp_path: Path) -> None:
    """As ``togi check --fix *`` names it."""
    repository, outside = tmp_path / "repository", tmp_path / "outside"
    for folder in (repository, outside):
        folder.mkdir()
    (outside / "victim.py").write_text(CALL, encoding="utf-8")
    (repository / "link").mkdir()
    (repository / "link" / "inner.py").symlink_to(outside / "victim.py")
    (repository / "folder").symlink_to(outside)
    named = {"link": "link/inner.py", "folder": "folder"}[name]
    done = check(repository, tmp_path, ["--fix", named])
    assert (outside / "victim.py").read_text(encoding="utf-8") == CALL
    assert "a link leads out of this repository" in done.stdout + done.stderr
    check(repository, tmp_path, ["--fix", str(outside / "victim.py")])
    assert (outside / "victim.py").read_text(encoding="utf-8") != CALL, "the file itself may be named"
