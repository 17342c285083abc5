"""Files that git ignores are left out: compared with git itself, on tricky patterns and on patterns drawn by chance."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from togi.lint.files import discover
from togi.lint.settings import Overrides

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed: nothing to compare with")

FOLDERS = ("", "a/", "b/", "a/a/", "a/b/", "b/a/", "b/b/", "a/b/a/", "a/b/c/", "c.d/", "c.d/a/")
OTHER = os.fsdecode("é.py".encode())
"""Where names are not UTF-8, characters that stand for its bytes."""
NO_TEXT = os.fsdecode(b"\xe9.py")
"""The same name in Latin-1."""
FILES = tuple(
    folder + name for folder in FOLDERS for name in ("x.py", "y.py", "x y.py", "#z.py", "!z.py", OTHER, NO_TEXT)
)
NAMES = ("a", "b", "c", "x.py", "y.py", "*", "**", "*.py", "?", "[ab]", "[!a]", "*.d", "x*", "c.d", "x y.py", "\\x.py")

TRICKY: dict[str, Mapping[str, str]] = {
    "a name at any depth": {"": "a\n"},
    "a slash in front means here": {"": "/a\n/x.py\n"},
    "a slash inside means from here": {"": "a/b\n"},
    "a slash at the end means folders": {"": "x.py/\na/b/\n"},
    "only some files": {"": "*\n!*/\n!x.py\n"},
    "only some folders": {"": "/*\n!/a/\n"},
    "a folder taken back keeps what is in it": {"": "*.d\ny.py\n!c.d/\n"},
    "a file in an ignored folder cannot be taken back": {"": "a/\n!a/x.py\n"},
    "what is in a folder can": {"": "a/*\n!a/x.py\n"},
    "a folder taken back does not take back files": {"": "*.py\n!a/\n"},
    "deeper files win": {"": "*.py\n", "a/": "!x.py\n", "a/b/": "x.py\n"},
    "deeper files win over what is taken back": {"": "!x.py\n", "a/": "x.py\n"},
    "stars over folders": {"": "a/**/x.py\n"},
    "all below, not the folder": {"": "a/**\n!a/b/\n"},
    "folders below": {"": "a/**/\n"},
    "leading stars": {"": "**/b/x.py\n"},
    "double stars in a name": {"": "x**py\n"},
    "no slash is met by a star": {"": "a*x.py\n/a/*.py\n"},
    "classes": {"": "[xy].py\n![!x].py\n"},
    "spaces at the end": {"": "x.py   \ny.py\\ \n"},
    "quoted": {"": "\\#z.py\n\\!z.py\n#x.py\n"},
    "line ends of Windows, byte order mark": {"": "\ufeffx.py\r\ny.py\r\n"},
    "lines that are no pattern": {"": "/\n!\n\n   \nx.py\n[\n[z-a].py\n"},
    "other letters": {"": "é.py\n"},
    "bytes that are no UTF-8": {"": "\udce9.py\n"},
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("repository")
    for name in FILES:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).touch()
    git(top, "init", "-q")
    return top


def git(top: Path, *arguments: str, stdin: str = "") -> str:
    """Without the configuration of the user and of the system."""
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    done = subprocess.run(
        ["git", "-C", str(top), *arguments], input=os.fsencode(stdin), capture_output=True, env=environment, check=False
    )
    return os.fsdecode(done.stdout)


def write(top: Path, patterns: Mapping[str, str]) -> None:
    for folder in FOLDERS:
        path = top / folder / ".gitignore"
        path.unlink(missing_ok=True)
        if folder in patterns:
            path.write_text(patterns[folder], encoding="utf-8", errors="surrogateescape", newline="")


def by_git(top: Path) -> set[str]:
    ignored = git(top, "check-ignore", "--stdin", "-z", stdin="\0".join(FILES)).split("\0")
    return set(FILES) - set(ignored)


def by_togi(top: Path) -> set[str]:
    return {file.path.relative_to(top).as_posix() for file in discover([top], Overrides()).files}


@pytest.mark.parametrize("name", TRICKY)
def test_tricky_patterns(name: str, repository: Path) -> None:
    write(repository, TRICKY[name])
    expected = by_git(repository)
    assert by_togi(repository) == expected
    assert len(expected) < len(FILES), "git ignores something"


def drawn(dice: random.Random) -> Iterator[tuple[str, str]]:
    for folder in dice.sample(FOLDERS[:5], dice.choice([1, 1, 2, 3])):
        yield folder, "".join(f"{line(dice)}\n" for _ in range(dice.randint(1, 4)))


def line(dice: random.Random) -> str:
    text = "/".join(dice.choice(NAMES) for _ in range(dice.choice([1, 1, 1, 2, 2, 3])))
    front = dice.choice(["", "", "", "/"])
    return f"{dice.choice(['', '', '!'])}{front}{text}{dice.choice(['', '', '/'])}"


@pytest.mark.parametrize("seed", range(60))
def test_patterns_drawn_by_chance(seed: int, repository: Path) -> None:
    patterns = dict(drawn(random.Random(seed)))
    write(repository, patterns)
    assert by_togi(repository) == by_git(repository), patterns


def test_a_named_folder_is_checked_although_git_ignores_it(repository: Path) -> None:
    write(repository, {"": "a/\nx.py\n/b/**\n"})
    paths = {file.path.relative_to(repository).as_posix() for file in discover([repository / "a"], Overrides()).files}
    assert {"a/y.py", "a/b/y.py"} <= paths
    assert not {name for name in paths if name.endswith("/x.py")}, "other lines still apply"
    assert [file.path.name for file in discover([repository / "b" / "x.py"], Overrides()).files] == ["x.py"]


def test_outside_of_a_repository_files_above_do_not_apply(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*\n", encoding="utf-8")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "x.py").touch()
    if any((parent / ".git").exists() for parent in tmp_path.parents):
        pytest.skip("the folder for tests lies in a repository")
    assert len(discover([tmp_path / "below"], Overrides()).files) == 1
