"""The rule ``tensor-made-in-forward``."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source import torch_api
from togi.lint.source.call_sites import method_calls
from togi.lint.source.compiled import names_in
from togi.lint.source.identifiers import decorators_mention, file_mentions
from togi.lint.source.model import Source
from togi.lint.source.syntax import last_name
from togi.lint.source.uses_of_tensors import meets_device
from togi.lint.source.value import Value, ValueKind, excerpt

_FILLED = frozenset("arange zeros ones full eye linspace logspace tril_indices triu_indices".split())
_DEFAULTS = ("set_default_device", "set_default_tensor_type")
_MOVES = ("to", "cuda", "type_as", "type", "xpu")
_FIXED = {"self", "math", "torch", "np", "range", "float", "int", "list"}
"""Names of what is the same in each pass: settings of the module, and functions."""


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
        if file_mentions(source, _DEFAULTS):
            return
        moved: set[ast.Call] | None = None
        for call in source.nodes(ast.Call):
            if last_name(call.func) not in _FILLED | torch_api.FROM_DATA:
                continue
            package, _, name = source.dotted(call.func).rpartition(".")
            if package != "torch" or not _lies_on_cpu(source, call, name):
                continue
            hot = source.hot(call)
            if hot is None or hot.function is None or _is_read_back(source, call):
                continue
            if decorators_mention(source, source.function(call), ("cache",)):
                continue  # made once
            moved = _moved(source) if moved is None else moved
            if not _stays(source, call, name, moved):
                yield source.finding(
                    self.id, call, _message(call, name), _remedy(source, call, name), evidence=hot.reason
                )


def _lies_on_cpu(source: Source, call: ast.Call, name: str) -> bool:
    """Whether it makes a tensor on the CPU, or copies data that Python holds to the device."""
    if name in _FILLED:
        return all(keyword.arg not in ("device", "out", None) for keyword in call.keywords)
    data = call.args[0] if call.args else None
    value = source.value(data) if data is not None else Value()
    if value.kind is ValueKind.TENSOR or _copies_nothing(source, call, name):
        return False
    of_python = value.kind in (ValueKind.NUMBER, ValueKind.NDARRAY) or (
        value.kind is ValueKind.LIST and _holds_numbers(value)
    )
    return of_python or name in ("tensor", "from_numpy", "frombuffer") or _is_display(data)


def _holds_numbers(value: Value) -> bool:
    """A list of numbers, or of tuples of numbers."""
    element = value.element
    return element is not None and all(item.kind is ValueKind.NUMBER for item in element.items or (element,))


def _copies_nothing(source: Source, call: ast.Call, name: str) -> bool:
    """A number without ``device=``, which kernels take as an argument, and ``torch.tensor([])``."""
    if name != "tensor" or not call.args:
        return False
    data = call.args[0]
    if isinstance(data, ast.List | ast.Tuple) and not data.elts:
        return True
    return not _is_placed(call) and source.value(data).kind is ValueKind.NUMBER


def _stays(source: Source, call: ast.Call, name: str, moved: set[ast.Call]) -> bool:
    """Whether the tensor stays where it is made, or another rule reports the move."""
    if name in _FILLED:
        return call in moved
    if call in moved or _is_placed(call):
        return False
    return _may_be_number(source, call, name) or not meets_device(source, call)


def _may_be_number(source: Source, call: ast.Call, name: str) -> bool:
    """``torch.tensor(self.p)``: kernels take a number as an argument."""
    if name not in ("tensor", "as_tensor") or not call.args or _is_display(call.args[0]):
        return False
    return source.value(call.args[0]).kind in (ValueKind.UNKNOWN, ValueKind.NUMBER)


def _is_placed(call: ast.Call) -> bool:
    return any(keyword.arg in ("device", None) for keyword in call.keywords)


def _is_display(data: ast.expr | None) -> bool:
    return isinstance(data, ast.List | ast.Tuple | ast.ListComp)


def _is_read_back(source: Source, call: ast.Call) -> bool:
    """Whether the same statement turns the result into Python numbers: arithmetic on the CPU, nothing is copied."""
    for above in source.ancestors(call):
        match above:
            case ast.stmt():
                return False
            case ast.Call(func=ast.Attribute(attr="item" | "tolist" | "numpy")):
                return True
            case ast.Call(func=ast.Name(id="int" | "float" | "bool" | "len" | "range")):
                return True
    return False


def _moved(source: Source) -> set[ast.Call]:
    """Factories whose result is moved somewhere later in this file."""
    factories = (source.value(method.value).call for _, method in method_calls(source, _MOVES))
    return {factory for factory in factories if factory is not None}


def _message(call: ast.Call, name: str) -> str:
    if name in _FILLED:
        return f"{excerpt(call, 40)} makes a tensor on the CPU in every pass"
    return f"{excerpt(call, 40)} copies Python's data to the device in every pass"


def _remedy(source: Source, call: ast.Call, name: str) -> str:
    if name in _FILLED:
        return f"torch.{name}(..., device=x.device) with an input x; what never changes belongs into a buffer"
    if not all(names_in(source, data) <= _FIXED for data in call.args):
        return (
            "data that changes with each pass: compute it on the device from tensors that lie there; else make it in "
            "the DataLoader's workers, or pinned (pin_memory=True) and moved with non_blocking=True"
        )
    return (
        "make it once in __init__ and keep it with self.register_buffer(name, ..., persistent=False); fill numbers "
        "that change with torch.full((), value, device=x.device)"
    )
