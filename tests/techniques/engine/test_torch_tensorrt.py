"""What Torch-TensorRT is asked for, without it: a recorded compiler stands for the package, in each of its forms."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from torch import fx, nn

from tests.techniques.engine.engine_subjects import made
from togi.core.errors import Refused
from togi.techniques.engine.torch_tensorrt import TorchTensorRt

ENGINE = TorchTensorRt()


class TorchTensorRTModule(nn.Module):
    """Stands for the class of that name, which runs one engine."""


class Package:
    """Makes an engine of a graph with at least ``min_block_size`` operators that it supports, as the real one does."""

    def __init__(self, supported: int) -> None:
        self.supported, self.asked = supported, []  # type: int, list[dict[str, Any]]

    def compile(self, program: Any, *, inputs: Any, min_block_size: int = 5, **settings: Any) -> nn.Module:
        self.asked.append({"min_block_size": min_block_size, **settings})
        built = fx.GraphModule(nn.Module(), fx.Graph())
        if 0 < min_block_size <= self.supported:
            built.add_module("_run_on_acc_0", TorchTensorRTModule())
        return built

    def of_2_9(self, program: Any, *, use_explicit_typing: bool = False, **settings: Any) -> nn.Module:
        return self.compile(program, use_explicit_typing=use_explicit_typing, **settings)

    def of_2_14(self, program: Any, *, inputs: Any, disable_tf32: bool, min_block_size: int = 5) -> nn.Module:
        return self.compile(program, inputs=inputs, disable_tf32=disable_tf32, min_block_size=min_block_size)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    def done(compiled: Callable[..., Any]) -> None:
        package, dynamo = ModuleType("torch_tensorrt"), ModuleType("torch_tensorrt.dynamo")
        package.dynamo, dynamo.compile = dynamo, compiled  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "torch_tensorrt", package)
        monkeypatch.setitem(sys.modules, "torch_tensorrt.dynamo", dynamo)

    return done


def test_engines_compute_in_the_types_of_the_graph(install: Callable[..., None]) -> None:
    """Before 2.11 the package made all of it float32 unless it was asked not to."""
    for form, asks in (("of_2_9", True), ("of_2_14", None)):
        package = Package(supported=9)
        install(getattr(package, form))
        program = ENGINE.apply(made("convolutions"), {}).program
        assert program is not None
        (asked,) = package.asked
        assert asked.get("use_explicit_typing") is asks
        assert asked["disable_tf32"] is True, "as plain eager multiplies"
        assert asked["min_block_size"] == 5, "the package's own choice, which keeps switches between engines few"


def test_a_small_module_becomes_an_engine_all_the_same(install: Callable[..., None]) -> None:
    package = Package(supported=2)
    install(package.of_2_9)
    ENGINE.apply(made("convolutions"), {})
    assert [asked["min_block_size"] for asked in package.asked] == [5, 1]


def test_what_torch_would_run_alone_is_refused(install: Callable[..., None]) -> None:
    install(Package(supported=0).of_2_9)
    with pytest.raises(Refused, match="TensorRT supports none of its operators"):
        ENGINE.apply(made("convolutions"), {})


def test_tf32_is_allowed_where_plain_eager_multiplies_so(install: Callable[..., None]) -> None:
    package = Package(supported=9)
    install(package.of_2_9)
    ENGINE.apply(made("convolutions", tf32=("convolution",)), {})
    assert package.asked[0]["disable_tf32"] is False
