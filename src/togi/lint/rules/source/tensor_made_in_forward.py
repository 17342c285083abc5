"""The rule ``tensor-made-in-forward``."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source import torch_api
from togi.lint.source.syntax import last_name
from togi.lint.source.uses_of_tensors import meets_device
from togi.lint.source.value import Kind, Value, excerpt

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_FILLED = frozenset("arange zeros ones full eye linspace logspace tril_indices triu_indices".split())
_DEFAULTS = ("torch.set_default_device", "torch.set_default_tensor_type")


class TensorMadeInForward(SourceRule):
    """A tensor is made from Python's data, or on the CPU, in ``forward``.

    What it reports: ``torch.tensor``, ``torch.as_tensor``, ``torch.from_numpy``, and ``torch.arange``, ``torch.zeros``,
    ``torch.ones``, ... without ``device=``, in ``forward`` or what it calls.

    Why it costs: data that Python holds is copied to the device from pageable memory in every pass, and the copy waits
    for the device, also with ``device=``. What is made without ``device=`` lies on the CPU and has to follow. CUDA
    graphs and ``torch.export`` freeze such values into constants.

    When it stays silent: factories with ``device=``, ``zeros_like`` and ``x.new_zeros``, random draws on the CPU,
    ``as_tensor`` of a tensor, data that the file shows to stay on the CPU. A number without ``device=`` (kernels take
    it as an argument), cached functions, files that set a default device. Results that are moved later
    (``copy-to-device-in-forward`` reports the move), and code outside of ``forward``.

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

    def check(self, source: Source) -> Iterable[Finding]:
        if any(name in source.text for name in _DEFAULTS):
            return
        moved: set[ast.AST] | None = None
        for call in source.nodes(ast.Call):
            name = source.names.qualified(call.func, source.scope(call)) if _candidate(call) else None
            if name is None or not name.startswith("torch.") or not _counts(source, call, name):
                continue
            hot = source.hot(call)
            if hot is None or hot.function is None or _read_back(source, call) or _is_cached(source, call):
                continue
            last = name.rpartition(".")[2]
            moved = _moved(source) if moved is None else moved
            if last in _FILLED:
                stays = call in moved  # the move is reported instead
            else:
                here = call not in moved and not _is_placed(call)
                stays = here and (_may_be_number(source, call, last) or not meets_device(source, call))
            if stays:
                continue
            yield source.finding(self.id, call, _message(call, last), _remedy(source, call, last), evidence=hot.reason)


def _candidate(call: ast.Call) -> bool:
    func = call.func
    name = last_name(func)
    return name in _FILLED or name in torch_api.FROM_DATA


def _counts(source: Source, call: ast.Call, name: str) -> bool:
    package, _, last = name.rpartition(".")
    if package != "torch":
        return False
    if last in _FILLED:
        return all(keyword.arg not in ("device", "out", None) for keyword in call.keywords)
    first = source.value(call.args[0]).kind if call.args else Kind.UNKNOWN
    if first is Kind.TENSOR or _stays_on_cpu(source, call, last):
        return False
    return (
        last in ("tensor", "from_numpy", "frombuffer")
        or first in (Kind.NUMBER, Kind.NDARRAY)
        or _is_display(call.args[:1])
        or (first is Kind.LIST and _of_numbers(source.value(call.args[0])))
    )


def _of_numbers(value: Value) -> bool:
    """A list of numbers, or of tuples of numbers."""
    inner = value.element
    if inner is None:
        return False
    items = inner.items if inner.items else (inner,)
    return all(one.kind is Kind.NUMBER for one in items)


def _stays_on_cpu(source: Source, call: ast.Call, last: str) -> bool:
    """A number without ``device=``, which kernels take as an argument, and ``torch.tensor([])``: nothing is copied."""
    if last != "tensor" or not call.args:
        return False
    data = call.args[0]
    if isinstance(data, ast.List | ast.Tuple) and not data.elts:
        return True
    return not _is_placed(call) and source.value(data).kind is Kind.NUMBER


def _may_be_number(source: Source, call: ast.Call, last: str) -> bool:
    """``torch.tensor(self.p)``: kernels take a number as an argument."""
    plain = last in ("tensor", "as_tensor") and bool(call.args) and not _is_display(call.args[:1])
    return plain and source.value(call.args[0]).kind in (Kind.UNKNOWN, Kind.NUMBER)


def _is_placed(call: ast.Call) -> bool:
    return any(keyword.arg in ("device", None) for keyword in call.keywords)


def _is_display(data: list[ast.expr]) -> bool:
    return any(isinstance(one, ast.List | ast.Tuple | ast.ListComp) for one in data)


def _is_cached(source: Source, call: ast.Call) -> bool:
    """In a function under ``lru_cache`` or a decorator named after caching."""
    function = source.function(call)
    return any("cache" in ast.unparse(one) for one in getattr(function, "decorator_list", ()))


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


def _is_fixed(source: Source, node: ast.expr) -> bool:
    """Literals and settings of the module: the same in each pass."""
    names = source.walk(node, ast.Name)
    return all(name.id in ("self", "math", "torch", "np", "range", "float", "int", "list") for name in names)


def _remedy(source: Source, call: ast.Call, last: str) -> str:
    if last in _FILLED:
        return f"torch.{last}(..., device=x.device) with an input x; what never changes belongs into a buffer"
    if not all(_is_fixed(source, one) for one in call.args):
        return (
            "data that changes with each pass: compute it on the device from tensors that lie there; else make it in "
            "the DataLoader's workers, or pinned (pin_memory=True) and moved with non_blocking=True"
        )
    return (
        "make it once in __init__ and keep it with self.register_buffer(name, ..., persistent=False); fill numbers "
        "that change with torch.full((), value, device=x.device)"
    )
