"""Tests are one package: what they share is imported by its full name, however and from wherever they are started."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parent


def test_every_folder_with_tests_belongs_to_the_package() -> None:
    folders = {
        folder for path in TESTS.rglob("test_*.py") for folder in path.parents if TESTS in (folder, *folder.parents)
    }
    assert len(folders) > 30
    assert not [str(folder) for folder in folders if not (folder / "__init__.py").is_file()]


def test_modules_that_are_shared_are_imported_by_their_full_name() -> None:
    shared = {path.stem for path in TESTS.rglob("*.py")} - {"__init__", "conftest"}
    found = [
        f"{path.relative_to(TESTS)}:{node.lineno}"
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.ImportFrom) and (node.level or node.module in shared)
    ]
    assert not found
