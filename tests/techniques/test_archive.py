"""Exported programs: what is written, what is read again, and what is refused."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from togi.core.errors import ArtifactError
from togi.torch_internals.archive import load_exported, save_exported

MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"


class Marked(torch.Tensor):
    """A subclass: torch stores it with pickle."""


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.register_buffer("offset", torch.arange(6.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        y = self.conv(x) * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        return (self.second(self.first(y)) + self.offset,)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Small, torch.Tensor, Path]:
    torch.manual_seed(0)
    module, x = Small().eval(), torch.randn(2, 3, 8, 8)
    program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO},))
    path = tmp_path_factory.mktemp("archive") / "model.pt2"
    save_exported(program, path)
    return module, x, path


def test_loaded_program_computes_the_same_with_the_same_strides_and_shared_weights(saved: Any) -> None:
    module, x, path = saved
    program = load_exported(path)
    with torch.no_grad():
        for inputs in (x, x[:, :, :7].repeat(2, 1, 1, 1)):
            torch.testing.assert_close(program.module()(inputs)[0], module(inputs)[0])
    weights = program.state_dict
    assert weights["conv.weight"].stride() == module.conv.weight.stride()
    assert weights["conv.weight"].is_contiguous(memory_format=torch.channels_last)
    assert weights["first.weight"].data_ptr() == weights["second.weight"].data_ptr()
    assert not any(tensor.requires_grad for tensor in weights.values())


def test_a_parameter_of_integers_is_loaded_again(tmp_path: Path) -> None:
    class Scales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.arange(3, dtype=torch.int8), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    save_exported(torch.export.export(Scales(), (torch.ones(3),)), tmp_path / "model.pt2")
    program = load_exported(tmp_path / "model.pt2")
    assert isinstance(program.state_dict["scale"], nn.Parameter)
    assert program.module()(torch.ones(3)).tolist() == [0, 1, 2]


def test_saving_leaves_the_module_as_it_was(saved: Any) -> None:
    module, _, _ = saved
    assert all(parameter.requires_grad for parameter in module.parameters())


def test_file_tells_nothing_of_inputs_and_source(saved: Any) -> None:
    _, x, path = saved
    content = path.read_bytes()
    assert x.numpy().tobytes()[:64] not in content
    assert b"test_archive" not in content
    assert b"stack_trace" not in content


def test_tensor_subclass_is_refused_when_saving(tmp_path: Path) -> None:
    module = nn.Linear(2, 2)
    program = torch.export.export(module, (torch.randn(1, 2),))
    program._constants["odd"] = torch.zeros(1).as_subclass(Marked)
    with pytest.raises(ArtifactError, match="not stored as a plain tensor"):
        save_exported(program, tmp_path / "model.pt2")


def rewritten(path: Path, target: Path, change: Callable[[str, bytes], bytes], **extra: bytes) -> Path:
    """A copy with members changed (by their name without the root folder) and others added."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as copy:
        for member in source.infolist():
            name = member.filename.split("/", 1)[1]
            copy.writestr(member.filename, change(name, source.read(member)))
        for name, content in extra.items():
            copy.writestr(name, content)
    return target


def edited(member: str, edit: Callable[[Any], None]) -> Callable[[str, bytes], bytes]:
    def change(name: str, content: bytes) -> bytes:
        if name != member:
            return content
        document = json.loads(content)
        edit(document)
        return json.dumps(document).encode()

    return change


def first_node(document: Any) -> Any:
    return document["graph_module"]["graph"]["nodes"][0]


def size_text(text: str) -> Callable[[Any], None]:
    def edit(document: Any) -> None:
        values = document["graph_module"]["graph"]["tensor_values"].values()
        size = next(s for value in values for s in value["sizes"] if "as_expr" in s)
        size["as_expr"]["expr_str"] = text

    return edit


class Trap:
    """Its pickle creates a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


HOSTILE: dict[str, tuple[str, Callable[[Any], None]]] = {
    "pickled weight": (WEIGHTS, lambda d: d["config"]["conv.weight"].update(use_pickle=True)),
    "weight outside its folder": (
        WEIGHTS,
        lambda d: d["config"]["conv.weight"].update(path_name="../constants/tensor_0"),
    ),
    "any function of torch": (MODEL, lambda d: first_node(d).update(target="torch.hub.load")),
    "a module below torch": (MODEL, lambda d: first_node(d).update(target="torch.os.system")),
    "a method of torch.ops": (MODEL, lambda d: first_node(d).update(target="torch.ops.load_library")),
    "an attribute of an operator": (MODEL, lambda d: first_node(d).update(target="torch.ops.aten.add.__class__")),
    "an operator that maps files": (MODEL, lambda d: first_node(d).update(target="torch.ops.aten.from_file.default")),
    "an operator function": (MODEL, lambda d: first_node(d).update(target="_operator.methodcaller")),
    "code as a size": (MODEL, size_text("__import__('os').system('true')")),
    "code as a symbol": (MODEL, size_text("Symbol('s0) + __import__(\"os\")')")),
    "a lambda as a size": (MODEL, size_text("(lambda: 1)()")),
    "code as a guard": (MODEL, lambda d: d.update(guards_code=["print('hello')"])),
    "code as a name": (MODEL, lambda d: first_node(d).update(name='x"); import os; ("')),
    "code as a weight's name": (
        MODEL,
        lambda d: d["graph_module"]["signature"]["input_specs"][0]["parameter"].update(parameter_name='a")+f("'),
    ),
    "an enumeration to import": (
        MODEL,
        lambda d: d["graph_module"]["module_call_graph"][0]["signature"].update(
            in_spec='[1, {"type": "builtins.dict", "context": "[{\\"__enum__\\": true}]", "children_spec": []}]'
        ),
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_description_is_refused(name: str, saved: Any, tmp_path: Path) -> None:
    member, edit = HOSTILE[name]
    with pytest.raises(ArtifactError):
        load_exported(rewritten(saved[2], tmp_path / "model.pt2", edited(member, edit)))


def test_rewriting_alone_is_not_what_is_refused(saved: Any, tmp_path: Path) -> None:
    load_exported(rewritten(saved[2], tmp_path / "model.pt2", edited(MODEL, lambda _: None)))


def test_pickled_example_inputs_are_not_unpickled(saved: Any, tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    trap = pickle.dumps(Trap(sprung))
    hostile = rewritten(
        saved[2], tmp_path / "model.pt2", lambda name, old: trap if name == "data/sample_inputs/model.pt" else old
    )
    with pytest.raises(ArtifactError, match="example inputs"):
        load_exported(hostile)
    assert not sprung.exists()


@pytest.mark.parametrize(
    "name", ["model/extra/run.py", "model/data/weights/model.pt", "model/../../escape", "other/models/x.json"]
)
def test_unexpected_members_are_refused(name: str, saved: Any, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        load_exported(rewritten(saved[2], tmp_path / "model.pt2", lambda _, old: old, **{name: b"x"}))


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.99])
def test_truncated_file_is_refused(keep: float, saved: Any, tmp_path: Path) -> None:
    content = saved[2].read_bytes()
    short = tmp_path / "model.pt2"
    short.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(ArtifactError, match=r"model\.pt2"):
        load_exported(short)


def test_missing_file_and_compressed_members_are_refused(saved: Any, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        load_exported(tmp_path / "absent.pt2")
    packed = tmp_path / "model.pt2"
    with zipfile.ZipFile(saved[2]) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as copy:
        for member in source.infolist():
            copy.writestr(member.filename, source.read(member))
    with pytest.raises(ArtifactError, match="compressed"):
        load_exported(packed)
