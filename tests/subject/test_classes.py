"""Classes that a file names: which are found, which are refused, and that no line of them runs."""

from __future__ import annotations

import enum
import importlib.util
import json
import subprocess
import sys
from collections import OrderedDict, UserDict, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from togi.core.errors import ArtifactError
from togi.subject import classes
from togi.subject.inputs import Inputs
from togi.subject.structure import Structure


@dataclass(frozen=True)
class Frozen:
    y: torch.Tensor
    scale: float = 2.0
    size: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", self.scale * 2)
        object.__setattr__(self, "size", len(self.y))
        object.__setattr__(self, "beside", "more")


@dataclass(slots=True)
class Slots:
    y: torch.Tensor
    n: int


class Attributes(dict[str, Any]):
    """Its items are its attributes, as in EasyDict."""

    def __init__(self, **given: Any) -> None:
        super().__init__(given)
        self.__dict__ = self


class Mirrored(OrderedDict[str, Any]):
    def __init__(self, **given: Any) -> None:
        super().__init__(given)
        for name, item in given.items():
            setattr(self, name, item)


class Keeping(dict[str, Any]):
    """Keeps more than its items."""

    def __init__(self, **given: Any) -> None:
        super().__init__(given)
        self.limit = 3


class MirroredFactory(defaultdict[str, Any]):
    pass


class Wrapped(UserDict[str, Any]):
    pass


class Mode(enum.Enum):
    FAST = 1


def rebuilt(value: Any) -> Any:
    structure = Structure.from_json(Structure.of(value).to_json())
    found = structure.build(iter([item for _, leaf, item in structure.walk(value) if leaf.kind == "tensor"]))
    assert Structure.of(found) == structure
    assert type(found) is type(value)
    return found


def test_a_dataclass_holds_what_it_held_and_is_not_made_a_second_time() -> None:
    value = Frozen(torch.ones(3))
    found = rebuilt(value)
    assert (found.scale, found.size, found.beside) == (4.0, 3, "more")
    assert rebuilt(Slots(torch.ones(1), 5)).n == 5


def test_dicts_of_their_own_class_have_their_items_and_attributes() -> None:
    y = torch.ones(2)
    for value in (Attributes(y=y, n=1), Mirrored(y=y, n=1)):
        found = rebuilt(value)
        assert found["y"] is y
        assert found.y is y
        assert list(found.items()) == [("y", y), ("n", 1)]
    found = rebuilt(Wrapped(y=y))
    assert found["y"] is y
    found["more"] = 1
    assert list(found) == ["y", "more"]


X = torch.rand(3, 4)


@pytest.mark.parametrize(
    "value",
    [X.topk(2), X.max(1), torch.linalg.svd(X), (X.sort(), [X.shape, X]), {"at": torch.Size([2])}, X.aminmax()],
    ids=["topk", "max", "svd", "nested", "size", "aminmax"],
)
def test_what_torch_returns_comes_back_with_the_names_of_its_items(value: Any) -> None:
    found = rebuilt(value)
    assert repr(found) == repr(value)
    structure = Structure.of(value)
    assert structure != Structure.of(tuple(value)) or type(value) in (tuple, dict)
    assert not any(part.is_opaque for part in structure.parts())


def test_a_dict_with_a_factory_fills_in_what_is_missing() -> None:
    value: Any = defaultdict(list, y=torch.ones(1))
    found = rebuilt(value)
    found["new"].append(1)
    assert list(found) == ["y", "new"]
    assert rebuilt(defaultdict(None, y=X)).default_factory is None
    assert Structure.of(defaultdict(lambda: X, y=X)).is_opaque
    mirrored: Any = MirroredFactory(list, y=X)
    mirrored.y = X
    assert Structure.of(mirrored).is_opaque
    assert list(Structure.of(mirrored).walk(mirrored))
    stored: Any = json.loads(Structure.of(value).to_json()) | {"value": "factory os:system"}
    with pytest.raises(ArtifactError, match="is not a plain class"):
        Structure.from_json(json.dumps(stored)).resolve()


class Boxes(list[torch.Tensor]):
    def __init__(self, boxes: list[torch.Tensor], size: int) -> None:
        super().__init__(boxes)
        self.size = size

    def append(self, box: torch.Tensor) -> None:
        raise NotImplementedError


class Pair(tuple[torch.Tensor, torch.Tensor]):
    def __new__(cls, first: torch.Tensor, second: torch.Tensor) -> Pair:
        return super().__new__(cls, (first, second))


class Named(NamedTuple):
    y: torch.Tensor


class Keeps(Named):
    """Has attributes besides its fields."""


def test_lists_and_tuples_of_a_class_of_their_own_are_not_built_from_tensors_and_are_copied() -> None:
    keeps = Keeps(X)
    keeps.more = 1  # type: ignore[attr-defined]
    for value in (Boxes([X, X + 1], 5), Pair(X, X + 1), keeps):
        assert Structure.of(value).is_opaque
        assert Structure.of((value,)).children[0].is_opaque
        (copied,) = Inputs((value,)).clone().args
        assert type(copied) is type(value)
        assert getattr(copied, "__dict__", None) == getattr(value, "__dict__", None)
        assert all(map(torch.equal, copied, value))
        assert copied[0] is not value[0]
    rebuilt(Named(X))
    rebuilt(Keeps(X))
    factory: Any = defaultdict(lambda: 7, y=X)
    (copied,) = Inputs((factory,)).clone().args
    assert copied["more"] == 7
    assert copied["y"] is not X


def test_what_a_dict_keeps_next_to_its_items_cannot_be_built_again() -> None:
    assert Structure.of(Keeping(y=torch.ones(1))).is_opaque
    assert not Structure.of(Mirrored(y=torch.ones(1))).is_opaque


def test_outputs_of_transformers_are_those_that_it_makes() -> None:
    from transformers import BatchEncoding
    from transformers.modeling_outputs import BaseModelOutputWithPooling, MaskedLMOutput

    x = torch.ones(1, 2)
    value = BaseModelOutputWithPooling(last_hidden_state=x, attentions=(x, x))
    found = rebuilt(value)
    assert found.to_tuple() == value.to_tuple()
    assert found[0] is x
    assert found.pooler_output is None
    assert list(found.keys()) == ["last_hidden_state", "attentions"]
    assert rebuilt(MaskedLMOutput(logits=x)).logits is x
    assert rebuilt(BatchEncoding({"input_ids": x})).n_sequences is None


def test_a_name_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sprung_out.py").write_text("raise SystemExit", encoding="utf-8")
    (tmp_path / "diffusers").mkdir()
    (tmp_path / "diffusers" / "__init__.py").write_text("raise SystemExit", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "diffusers", raising=False)
    for name in ("sprung_out:Out", "this:Out", "json.tool:Out", "diffusers.models.vae:Out", "transformers.trainer:Out"):
        monkeypatch.delitem(sys.modules, name.partition(":")[0], raising=False)
        with pytest.raises(ArtifactError, match="imports nothing because a file names it"):
            classes.find_class(name, "object")
        assert name.partition(":")[0] not in sys.modules


@pytest.mark.thorough
def test_a_fresh_process_finds_the_outputs_of_a_known_library() -> None:
    named = {"known": "transformers.models.clip.modeling_clip:CLIPOutput", "own": f"{__name__}:Frozen"}
    asks = (
        "import json, sys\n"
        "from togi.subject.classes import find_class\n"
        "print(find_class(sys.argv[1], 'mapping').__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", asks, named["known"]], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "CLIPOutput", done.stderr
    done = subprocess.run([sys.executable, "-c", asks, named["own"]], capture_output=True, text=True, check=False)
    assert "imports nothing" in done.stderr


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("subprocess:Popen", "object"),
        ("pathlib:Path", "object"),
        ("subprocess:CompletedProcess", "object"),
        ("types:SimpleNamespace", "class"),
        ("builtins:int", "object"),
        ("collections:OrderedDict", "dataclass"),
        (f"{__name__}:Mode", "object"),
        ("os:stat_result", "tuple"),
        ("time:struct_time", "tuple"),
        (f"{__name__}:Pair", "tuple"),
        (f"{__name__}:Boxes", "list"),
        (f"{__name__}:missing", "object"),
        (f"{__name__}:Frozen.y", "class"),
    ],
)
def test_classes_of_other_kinds_and_of_the_standard_library_are_refused(name: str, kind: str) -> None:
    with pytest.raises(ArtifactError, match=r"is not a|is not defined|not imported"):
        classes.find_class(name, kind)


def test_constants_may_name_plain_classes() -> None:
    assert classes.find_class("builtins:float", "class") is float
    assert classes.find_class("torch:Tensor", "class") is torch.Tensor


def test_what_a_registered_class_says_has_torch_import_nothing() -> None:
    leaf = {"type": None, "context": None, "children_spec": []}

    def context(type_: str, inside: str) -> str:
        return json.dumps([1, {"type": type_, "context": inside, "children_spec": [leaf]}])

    classes.check_registered(context("collections.OrderedDict", '["y"]'))
    factory = '{"default_factory_module": "this", "default_factory_name": "x", "dict_context": ["y"]}'
    for text in (
        context("collections.defaultdict", factory),
        context("collections.OrderedDict", '[{"__enum__": true, "fqn": "this:Out", "name": "x"}]'),
        context("nobody.Knows", "null"),
        "[" * 100_000,
        "{}",
    ):
        with pytest.raises(ArtifactError):
            classes.check_registered(text)
    assert "this" not in sys.modules


@pytest.mark.parametrize("moved", [False, True])
def test_a_class_of_a_file_is_the_programs_own_import_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: bool
) -> None:
    """And not what another module of the same file name has, which was imported before."""
    modules = _imported(tmp_path, monkeypatch, library="", other="" if moved else "class Store: pass", own=_STORE)
    tuned_as = classes.name_of_file(tmp_path / ("elsewhere" if moved else "own") / f"{_STEM}.py")
    assert classes.find_class(f"{tuned_as}:Store", "object") is modules["own"].Store


def test_a_class_that_two_files_of_that_name_define_is_not_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _imported(tmp_path, monkeypatch, one=_STORE, two=_STORE)
    tuned_as = classes.name_of_file(tmp_path / "elsewhere" / f"{_STEM}.py")
    with pytest.raises(ArtifactError, match="both define one"):
        classes.find_class(f"{tuned_as}:Store", "object")


_STEM = "of_these_tests_alone"
_STORE = "class Store: pass"


def _imported(folder: Path, monkeypatch: pytest.MonkeyPatch, **bodies: str) -> dict[str, Any]:
    """A module of one file name in each of these folders, imported as ``FOLDER.NAME``."""
    modules: dict[str, Any] = {}
    for package, body in bodies.items():
        file = folder / package / f"{_STEM}.py"
        file.parent.mkdir()
        file.write_text(body, encoding="utf-8")
        specification = importlib.util.spec_from_file_location(f"{package}.{_STEM}", file)
        assert specification is not None
        assert specification.loader is not None
        modules[package] = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(modules[package])
        monkeypatch.setitem(sys.modules, f"{package}.{_STEM}", modules[package])
    return modules
