"""Private torch APIs are used in ``togi.torch_internals`` alone, and the search for them finds what it should."""

from __future__ import annotations

from pathlib import Path

import pytest

import togi
from tests.torch_internals.private_torch import defined_names, private_torch_uses

SOURCES = Path(togi.__file__).parent
ALLOWED = SOURCES / "torch_internals"


def test_private_torch_apis_are_used_in_torch_internals_alone() -> None:
    files = [path for path in sorted(SOURCES.rglob("*.py")) if ALLOWED not in path.parents]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    own = frozenset[str]().union(*(defined_names(text) for text in texts.values()))
    uses = [
        f"{path.relative_to(SOURCES)}:{use.line} {use.name}"
        for path, text in texts.items()
        for use in private_torch_uses(text, own)
    ]
    assert len(files) > 100
    assert not uses, "give these a public name in togi.torch_internals:\n" + "\n".join(uses)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import torch\ntorch._C._current_autograd_node()", "torch._C._current_autograd_node"),
        ("import torch as t\nt._dynamo.reset()", "torch._dynamo"),
        ("import torch._dynamo as d", "torch._dynamo"),
        ("import torch._inductor.config", "torch._inductor.config"),
        ("from torch import _dynamo", "torch._dynamo"),
        ("from torch.utils import _pytree as pytree", "torch.utils._pytree"),
        ("from torch.utils._pytree import tree_leaves", "torch.utils._pytree.tree_leaves"),
        ("from torch.autograd.profiler import _is_profiler_enabled", "torch.autograd.profiler._is_profiler_enabled"),
        (
            "from torch import nn\nnn.modules.batchnorm._BatchNorm",
            "torch.nn.modules.batchnorm._BatchNorm",
        ),
        ("import torch\ninternals = torch.autograd\ninternals._functions", "torch.autograd._functions"),
        ("def f():\n    from torch._subclasses import FakeTensorMode", "torch._subclasses.FakeTensorMode"),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch._ops", "torch._ops"),
        ("def f(tensor):\n    return tensor._version", "..._version"),
        ("def f(tensor):\n    return tensor.untyped_storage()._cdata", "..._cdata"),
        ("def f(node):\n    return node.target._schema.name", "..._schema"),
        ("def f(module):\n    return module._brand_new_hooks", "..._brand_new_hooks"),
        ("def f(module):\n    module._compiled_call_impl = None", "..._compiled_call_impl"),
        ("class M(Module):\n    def f(self):\n        return self._parameters", "..._parameters"),
        (
            "class A:\n    def f(self):\n        self._version = 1\ndef f(t):\n    return t._version",
            "..._version",
        ),
        ("import importlib\nimportlib.import_module('torch._dynamo')", "torch._dynamo"),
        ("__import__('torch._inductor')", "torch._inductor"),
        ("import torch\ngetattr(torch, '_dynamo')", "torch._dynamo"),
        ("def f(module):\n    return getattr(module, '_orig_mod', None)", "..._orig_mod"),
        ("from operator import attrgetter\nkey = attrgetter('target._schema')", "..._schema"),
        ("import torch\ntorch.fx.trace(f, _allow=True)", "torch.fx.trace(_allow=)"),
    ],
)
def test_finds_every_way_to_reach_a_private_name(source: str, name: str) -> None:
    assert name in {use.name for use in private_torch_uses(source)}


@pytest.mark.parametrize(
    "source",
    [
        "import torch\nprint(torch.__version__, torch.Tensor.device.__get__)",
        "import torch\naten = torch.ops.aten\naten._softmax.default",
        "import torch\ntorch.ops.aten._unsafe_view.default",
        "import os, sys\nos._exit(1)\nsys._getframe(1)",
        "class A:\n    def __init__(self):\n        self._schema = 1\n    def f(self):\n        return self._schema",
        "class A:\n    _held = 0\ndef f(a):\n    return a._held",
        "def f(record):\n    return record._replace(x=1)._asdict()",
        'TEXT = "torch._dynamo.reset() forgets"',
        "from typing import Any\n_private: Any = None\nprint(_private)",
        "class A:\n    def f(self):\n        return self._ray._private",
    ],
)
def test_leaves_public_names_alone(source: str) -> None:
    assert not private_torch_uses(source)
