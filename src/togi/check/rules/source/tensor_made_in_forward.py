"""The rule ``tensor-made-in-forward``."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from togi.check.finding import Finding
from togi.check.rule import SourceRule
from togi.check.source import torch_api
from togi.check.source.value import Kind, excerpt

if TYPE_CHECKING:
    from togi.check.source.model import Source

_FILLED = frozenset(["arange", "zeros", "ones", "full", "eye", "linspace", "logspace", "tril_indices", "triu_indices"])
_DEFAULTS = ("torch.set_default_device", "torch.set_default_tensor_type")


class TensorMadeInForward(SourceRule):
    """A tensor is made from Python's data, or on the CPU, in ``forward``.

    What it reports: ``torch.tensor``, ``torch.as_tensor``, ``torch.from_numpy``, and ``torch.arange``, ``torch.zeros``,
    ``torch.ones``, ... without ``device=``, in ``forward`` or what it calls.

    Why it costs: data that Python holds is copied to the device from pageable memory in every pass, and the copy waits
    for the device, also with ``device=``. What is made without ``device=`` lies on the CPU and has to follow. CUDA
    graphs and ``torch.export`` freeze such values into constants.

    When it stays silent: factories with ``device=``, ``zeros_like`` and ``x.new_zeros``, random draws on the CPU,
    ``as_tensor`` of a tensor, files that set a default device, results that are moved later
    (``copy-to-device-in-forward`` reports the move), code outside of ``forward``.

    Example::

        def forward(self, x):
            mean = torch.tensor([0.485, 0.456, 0.406], device=x.device)
            return (x - mean) * torch.arange(x.shape[1])

    Use instead::

        def __init__(self):
            self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]))

        def forward(self, x):
            return (x - self.mean) * torch.arange(x.shape[1], device=x.device)

    Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#create-tensors-directly-on-the-target-device
    """

    id = "tensor-made-in-forward"
    valid = (
        "import torch\nfrom torch import nn\n\nclass Net(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.register_buffer('mean', torch.tensor([0.5, 0.5]))\n\n    def forward(self, x):\n"
        "        a = torch.arange(x.shape[1], device=x.device)\n        b = torch.zeros_like(x) + x.new_zeros(3)\n"
        "        return x - self.mean + a + b + torch.as_tensor(x)\n",
        "import torch\n\nmean = torch.tensor([0.5])\n\ndef prepare(n):\n    return torch.arange(n)\n",
        "import torch\nfrom torch import nn\n\nclass Net(nn.Module):\n    def forward(self, x):\n"
        "        if torch.rand(1) < 0.5:\n            return x\n        mask = torch.ones(3)\n"
        "        return torch.relu(x) * mask.to(x.device)\n",
    )
    invalid = (
        "import torch\nfrom torch import nn\n\nclass Net(nn.Module):\n    def forward(self, x):\n"
        "        mean = torch.tensor([0.5, 0.5], device=x.device)  # here\n"
        "        step = torch.arange(x.shape[1])  # here\n        return x - mean + step\n",
        "import numpy as np\nimport torch\nfrom torch import nn\n\nclass Net(nn.Module):\n    def forward(self, x):\n"
        "        return x * self.window(x.shape[0])\n\n    def window(self, n):\n"
        "        return torch.from_numpy(np.hanning(n))  # here\n",
    )

    def check(self, source: Source) -> Iterable[Finding]:
        if any(name in source.text for name in _DEFAULTS):
            return
        moved: set[ast.AST] | None = None
        for call in source.nodes(ast.Call):
            name = source.names.qualified(call.func, source.scope(call)) if _candidate(call) else None
            if name is None or not name.startswith("torch.") or not _counts(source, call, name):
                continue
            hot = source.hot(call)
            if hot is None or hot.function is None or _read_back(source, call):
                continue
            last = name.rpartition(".")[2]
            if last in _FILLED:
                moved = _moved(source) if moved is None else moved
                if call in moved:
                    continue
            yield source.finding(self, call, _message(call, last), _remedy(last), evidence=hot.reason)


def _candidate(call: ast.Call) -> bool:
    func = call.func
    name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
    return name in _FILLED or name in torch_api.FROM_DATA


def _counts(source: Source, call: ast.Call, name: str) -> bool:
    package, _, last = name.rpartition(".")
    if package != "torch":
        return False
    if last in _FILLED:
        return all(keyword.arg not in ("device", "out", None) for keyword in call.keywords)
    first = source.value(call.args[0]).kind if call.args else Kind.UNKNOWN
    if first is Kind.TENSOR:
        return False
    return (
        last in ("tensor", "from_numpy", "frombuffer")
        or first in (Kind.NUMBER, Kind.NDARRAY)
        or (bool(call.args) and isinstance(call.args[0], ast.List | ast.Tuple | ast.ListComp))
    )


def _read_back(source: Source, call: ast.Call) -> bool:
    """Whether the same statement turns the result into Python numbers: arithmetic on the CPU, nothing is copied."""
    for above in source.ancestors(call):
        if isinstance(above, ast.stmt):
            return False
        if isinstance(above, ast.Call):
            func = above.func
            if isinstance(func, ast.Attribute) and func.attr in ("item", "tolist", "numpy"):
                return True
            if isinstance(func, ast.Name) and func.id in ("int", "float", "bool", "len", "range"):
                return True
    return False


def _moved(source: Source) -> set[ast.AST]:
    """Factories whose result is moved somewhere later in this file."""
    found: set[ast.AST] = set()
    for call in source.nodes(ast.Call):
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("to", "cuda", "type_as", "type", "xpu"):
            made = source.value(call.func.value).call
            if made is not None:
                found.add(made)
    return found


def _message(call: ast.Call, last: str) -> str:
    if last in _FILLED:
        return f"{excerpt(call, 40)} makes a tensor on the CPU in every pass"
    return f"{excerpt(call, 40)} copies Python's data to the device in every pass"


def _remedy(last: str) -> str:
    if last in _FILLED:
        return f"torch.{last}(..., device=x.device) with an input x; what never changes belongs into a buffer"
    return (
        "make it once in __init__ and keep it with self.register_buffer(name, ..., persistent=False); fill numbers "
        "that change with torch.full((), value, device=x.device)"
    )
