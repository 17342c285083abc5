from __future__ import annotations

import abc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from togi.core.errors import TogiError
from togi.core.plugins import by_id, instances_in


class Base(abc.ABC):
    id: str

    @abc.abstractmethod
    def act(self) -> None: ...


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "some_plugins"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "base_of_some_plugins", sys.modules[__name__])
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "some_plugins"]:
        del sys.modules[name]


def _write(folder: Path, name: str, id: str) -> None:
    (folder / f"{name}.py").write_text(
        "from base_of_some_plugins import Base\n"
        "class Half(Base): pass\n"
        f"class Whole(Base):\n    id = '{id}'\n    def act(self): pass\n",
        encoding="utf-8",
    )


def test_concrete_classes_of_the_files_are_found_and_what_they_import_is_not(package: Path) -> None:
    _write(package, "second", "two")
    _write(package, "first", "one")
    found = instances_in("some_plugins", Base)  # type: ignore[type-abstract]
    assert list(by_id(found, "plug-ins")) == ["one", "two"]


def test_a_plugin_that_cannot_be_imported_is_not_dropped(package: Path) -> None:
    (package / "broken.py").write_text("import a_package_that_is_nowhere", encoding="utf-8")
    with pytest.raises(ModuleNotFoundError):
        instances_in("some_plugins", Base)  # type: ignore[type-abstract]


def test_two_plugins_of_one_id_are_refused(package: Path) -> None:
    _write(package, "first", "one")
    _write(package, "second", "one")
    with pytest.raises(TogiError, match=r"share the id one \(some_plugins.first and some_plugins.second\)"):
        by_id(instances_in("some_plugins", Base), "plug-ins")  # type: ignore[type-abstract]
