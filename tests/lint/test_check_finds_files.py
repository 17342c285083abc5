"""Which files are found below what the user names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from togi.lint.check_paths import check_paths, check_stdin
from togi.lint.files import discover
from togi.lint.settings import Overrides


def tree(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("import torch\n", encoding="utf-8")
    return folder


def names(folder: Path, *paths: Path, exclude: tuple[str, ...] = ()) -> list[str]:
    discovery = discover(paths or (folder,), Overrides(exclude=exclude))
    assert not discovery.problems
    return [file.path.relative_to(folder).as_posix() for file in discovery.files]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_python_and_notebooks_without_folders_that_hold_no_code(folder: Path) -> None:
    tree(folder, "b.py", "a/c.ipynb", "a/stub.pyi", "read.me", ".venv/x.py", "a/__pycache__/y.py", "a/.git/z.py")
    tree(folder, "build/x.py", "site-packages/t.py", ".hidden/ok.py")
    assert sorted(names(folder)) == [".hidden/ok.py", "a/c.ipynb", "b.py"]


def test_what_is_named_is_always_checked(folder: Path) -> None:
    tree(folder, "build/x.py", "script", "stub.pyi", ".gitignore")
    (folder / ".gitignore").write_text("*\n", encoding="utf-8")
    paths = (folder / "build", folder / "script", folder / "stub.pyi", folder / "build" / "x.py")
    (folder / ".gitignore").unlink()
    assert names(folder, *paths, exclude=("script",)) == ["build/x.py", "script", "stub.pyi"]


def test_gitignore_files_are_respected(folder: Path) -> None:
    tree(folder, ".git/HEAD", "keep.py", "gen_a.py", "gen_keep.py", "sub/gen_b.py", "sub/data/x.py", "data.py")
    tree(folder, "top/only.py", "sub/top/only.py", "deep/a/b/c.py", "name [1].py")
    (folder / ".gitignore").write_text(
        "# no\n\ngen_*\n!gen_keep.py\ndata/\n/top\ndeep/**/c.py\nname \\[1\\].py\n", encoding="utf-8"
    )
    (folder / "sub" / ".gitignore").write_text("!gen_b.py\n", encoding="utf-8")
    assert sorted(names(folder)) == ["data.py", "gen_keep.py", "keep.py", "sub/gen_b.py", "sub/top/only.py"]
    assert sorted(names(folder, folder / "sub")) == ["sub/gen_b.py", "sub/top/only.py"]


def test_exclude_of_the_call_and_of_the_project(folder: Path) -> None:
    tree(folder, "a.py", "old/b.py", "x/old/c.py", "x/y/gen.py", "z/gen.py")
    (folder / "pyproject.toml").write_text('[tool.togi.check]\nexclude = ["x/**/gen.py"]\n', encoding="utf-8")
    assert names(folder, exclude=("old/",)) == ["a.py", "z/gen.py"]
    assert sorted(names(folder, exclude=("/old", "z"))) == ["a.py", "x/old/c.py"]


@pytest.mark.parametrize("place", ["tests", "tests/togi"])
def test_the_name_of_the_project_and_of_what_it_lies_in_say_nothing(folder: Path, place: str) -> None:
    project = tree(folder / place, "a.py", "tests/b.py")
    (project / "pyproject.toml").write_text('[tool.togi.check]\nexclude = ["tests/"]\n', encoding="utf-8")
    assert names(project) == ["a.py"]


def test_exclude_takes_back_and_leaves_named_folders_alone(folder: Path) -> None:
    tree(folder, "a.py", "gen_a.py", "gen_keep.py", "old/b.py", "old/gen_b.py")
    assert sorted(names(folder, exclude=("gen_*", "!gen_keep.py", "old/"))) == ["a.py", "gen_keep.py"]
    assert names(folder, folder / "old", exclude=("gen_*", "old/")) == ["old/b.py"]


def test_symlink_loops_end_and_links_are_not_checked_twice(folder: Path) -> None:
    tree(folder, "a/x.py")
    (folder / "a" / "loop").symlink_to(folder)
    (folder / "self").symlink_to("self")
    (folder / "self.py").symlink_to("self.py")
    (folder / "x_again.py").symlink_to(folder / "a" / "x.py")
    (folder / "gone.py").symlink_to("nowhere.py")
    assert len(names(folder)) == 1


def test_special_files_are_not_opened(folder: Path) -> None:
    os.mkfifo(folder / "pipe.py")
    assert names(folder) == []
    discovery = discover([folder / "pipe.py", folder / "none.py"], Overrides())
    assert [problem.path for problem in discovery.problems] == ["pipe.py", "none.py"]


def test_hard_links_are_files_of_their_own(folder: Path) -> None:
    tree(folder, "a.py")
    os.link(folder / "a.py", folder / "b.py")
    assert names(folder) == ["a.py", "b.py"]


def test_files_in_deep_folders_are_found(folder: Path) -> None:
    deep = folder
    for _ in range(400):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "x.py").write_text("", encoding="utf-8")
    assert len(names(folder)) == 1


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_unreadable_folders(folder: Path) -> None:
    tree(folder, "a/x.py", "b.py")
    (folder / "a").chmod(0)
    discovery = discover([folder], Overrides())
    (folder / "a").chmod(0o755)
    assert [file.shown for file in discovery.files] == ["b.py"]
    assert "cannot be listed" in discovery.problems[0].message


def test_names_that_are_not_utf8(folder: Path) -> None:
    (folder / os.fsdecode(b"caf\xe9.py")).write_text("import torch\n", encoding="utf-8")
    assert len(discover([folder], Overrides()).files) == 1


@pytest.mark.parametrize("sign", ["loss.backward()", "optimizer.zero_grad()", "model.eval()"])
def test_a_file_that_names_no_framework_is_checked_where_it_trains(sign: str, tmp_path: Path) -> None:
    """What drops files before any rule runs, and the model that rules ask, agree on what has to do with PyTorch."""
    text = f"def step(model, optimizer, loss):\n    {sign}\n    return (\n"
    path = tmp_path / "given.py"
    path.write_text(text, encoding="utf-8")
    assert check_paths([path], cache=False).problems, "its syntax error was seen"
    path.write_text(text.replace(sign, "pass"), encoding="utf-8")
    assert not check_paths([path], cache=False).problems


def test_rules_find_faults_in_a_file_that_names_no_framework(tmp_path: Path) -> None:
    loop = "for x, y in loader:\n    loss = model(x)\n    loss.backward()\n    optimizer.step()\n    total += loss\n"
    (tmp_path / "train.py").write_text(loop, encoding="utf-8")
    result = check_paths([tmp_path], cache=False)
    assert {finding.rule for finding in result} == {"missing-zero-grad", "loss-kept-with-graph"}
    assert check_stdin(loop.encode(), "").findings
