"""The table of names against the installed torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from importlib import metadata

import pytest
import torch

from togi.lint.cache import rules_version
from togi.lint.data.deprecated_names import GONE
from togi.lint.data.torch_names import behind_installed, torch_names
from togi.lint.rules.source.nonexistent_function import NonexistentFunction
from togi.lint.source.model import Source

SAME_VERSION = torch.__version__.partition("+")[0] == torch_names().version


def exists(name: str) -> bool:
    module, _, last = name.rpartition(".")
    try:
        if hasattr(importlib.import_module(module), last):
            return True
        importlib.import_module(name)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.skipif(not SAME_VERSION, reason="the table is of another version of torch than the installed one")
@pytest.mark.parametrize("name", GONE)
def test_what_is_said_to_be_gone_is_gone(name: str) -> None:
    assert not exists(name)


@pytest.mark.skipif(not SAME_VERSION, reason="the table is of another version of torch than the installed one")
@pytest.mark.parametrize("module", ["torch", "torch.nn", "torch.nn.functional", "torch.cuda", "torch.compiler"])
def test_the_table_holds_every_public_name(module: str) -> None:
    public = {name for name in dir(importlib.import_module(module)) if not name.startswith("_")}
    assert public <= torch_names().modules[module]


@pytest.mark.skipif(not SAME_VERSION, reason="the table is of another version of torch than the installed one")
def test_the_table_holds_every_method_of_a_tensor() -> None:
    public = {name for name in dir(torch.Tensor) if name[0] != "_" and callable(getattr(torch.Tensor, name))}
    assert {name.rstrip("_") for name in public} == torch_names().tensor_methods


@pytest.mark.parametrize("name", ["benchmark", "deterministic", "enabled", "allow_tf32", "flags"])
def test_settings_of_modules_with_a_class_of_their_own_are_known(name: str) -> None:
    assert name in torch_names().modules["torch.backends.cudnn"]


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("import torch\ntorch.compiler.optimize(m)\n", "reduce-overhead"),
        ("import torch\ntorch.cuda.syncronize()\n", "torch.cuda.synchronize"),
        ("import torch\ntorch.nn.scaled_dot_product_attention(q, k, v)\n", "torch.nn.functional.scaled_dot"),
        ("from torch.nn import functionl\n", "torch.nn.functional"),
    ],
)
def test_the_remedy_names_what_was_meant(text: str, remedy: str) -> None:
    (finding,) = NonexistentFunction().check(Source.parse(text))
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    "text", ["", "torch\n", "import torch\ntorch\n", "import torch.\\\n    nn\n", "torch.rfft(x)\n"]
)
def test_files_that_only_name_torch_are_left_alone(text: str) -> None:
    assert not list(NonexistentFunction().check(Source.parse(text)))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    known = metadata.version

    def pretend(version: str) -> None:
        # of torch alone: togi's own version is asked for too, and remembered for the whole process
        monkeypatch.setattr(metadata, "version", lambda name: version if name == "torch" else known(name))
        behind_installed.cache_clear()

    yield pretend
    behind_installed.cache_clear()


@pytest.mark.parametrize(
    ("version", "behind"),
    [("2.15.0+cu132", False), ("2.15.3", False), ("2.9.1", False), ("2.16.0.dev20261120+cpu", True), ("3.0", True)],
)
def test_a_later_torch_may_have_what_the_table_lacks(
    installed: Callable[[str], None], version: str, behind: bool
) -> None:
    installed(version)
    text = (
        "import torch\ntorch.compiler.optimize(m)\ntorch.brand_new(x)\nfrom torch.nn import Brand\nimport torch.rfft\n"
    )
    lines = [finding.place.line for finding in NonexistentFunction().check(Source.parse(text)) if finding.place]
    assert sorted(lines) == ([2, 5] if behind else [2, 3, 4, 5])


def test_findings_of_an_earlier_torch_are_not_taken_from_the_cache(installed: Callable[[str], None]) -> None:
    versions = set()
    for version in ("2.15.0", "2.16.0"):
        installed(version)
        rules_version.cache_clear()
        versions.add(rules_version())
    rules_version.cache_clear()
    assert len(versions) == 2
