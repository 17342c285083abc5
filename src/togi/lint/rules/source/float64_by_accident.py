"""The rule ``float64-by-accident``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from togi.lint.finding import Finding, Fix
from togi.lint.rule import SourceRule
from togi.lint.source import torch_api
from togi.lint.source.edits import add_argument, end, insert
from togi.lint.source.loaders import is_test
from togi.lint.source.numpy_types import is_float64, tensor_cast_later
from togi.lint.source.references import uses
from togi.lint.source.syntax import argument, unpacks
from togi.lint.source.value import Kind

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_FROM_NUMPY = {"torch.from_numpy": None, "torch.tensor": 1, "torch.as_tensor": 1}
"""Position of ``dtype``."""
_DEFAULTS = {"torch.set_default_dtype", "torch.set_default_tensor_type"}
_DOUBLES = {"torch.float64", "torch.double", "torch.DoubleTensor"}
_DELIBERATE = (
    "freq",
    "theta",
    "rope",
    "rotary",
    "position",
    "angle",
    "phase",
    "timestep",
    "precis",
    "grid",
    "coord",
    "stat",
)


class Float64ByAccident(SourceRule):
    """Tensors in double precision that nobody asked for.

    What it reports: ``dtype=float``, which is float64, tensors made of NumPy arrays whose float64 is NumPy's
    default (``np.random.randn``, ``np.zeros``, ``np.linspace``, an image divided by 255); ``.double()`` of an
    activation in ``forward``; ``set_default_dtype(torch.float64)``.

    Why it costs: twice the bytes everywhere it reaches, since float32 and float64 give float64; and a GPU computes
    double precision at a 32nd to a 64th of its speed (consumer cards), without tensor cores.

    When it stays silent: a dtype is given on either side (``dtype=torch.float64`` and ``.to(torch.float64)`` say what
    they want), the tensor is cast where it is made or under its name later, or the file does not show an array's type.
    ``.double()`` of what is cast back, of sums, positions, frequencies and angles is deliberate. Files that call
    ``gradcheck`` need it; files that hold tests are left alone.

    Example::

        z = torch.from_numpy(np.random.randn(batch, dim))

    Use instead::

        z = torch.randn(batch, dim)

    or ``torch.from_numpy(array.astype(np.float32))``.

    Source: https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc
    """

    id = "float64-by-accident"

    def check(self, source: Source) -> Iterable[Finding]:
        if "torch" in source.text and not is_test(source.path):
            yield from self._arrays(source)
            yield from self._defaults(source)
            yield from self._doubled(source)
            yield from self._made(source)

    def _arrays(self, source: Source) -> Iterator[Finding]:
        for node, name in uses(source, _FROM_NUMPY):
            call = source.parent(node)
            if not isinstance(call, ast.Call) or call.func is not node or not call.args or unpacks(call):
                continue
            position = _FROM_NUMPY[name]
            typed = position is not None and argument(call, "dtype", position) is not None
            if not typed and is_float64(source, call.args[0]) and not tensor_cast_later(source, call):
                yield source.finding(
                    self.id,
                    call,
                    f"{ast.unparse(call.args[0])} is float64 by NumPy's default, and so is this tensor and what it "
                    "meets",
                    "give dtype=torch.float32, or make it in PyTorch (torch.randn, torch.zeros, torch.linspace)",
                    fix=_fix(source, call, name),
                )

    def _defaults(self, source: Source) -> Iterator[Finding]:
        if "gradcheck" in source.text or "get_default_dtype" in source.text:
            return
        for node, name in uses(source, _DEFAULTS):
            call = source.parent(node)
            if isinstance(call, ast.Call) and call.func is node and call.args and _is_double(source, call.args[0]):
                yield source.finding(
                    self.id,
                    call,
                    f"{name.rpartition('.')[2]} makes every new tensor and parameter float64",
                    "leave the default, and use float64 where it is needed: x.double() there",
                )

    def _made(self, source: Source) -> Iterator[Finding]:
        for node in source.nodes(ast.keyword):
            call = source.parent(node)
            given = source.qualified(node.value) if node.arg == "dtype" else None
            if given != "float" or not isinstance(call, ast.Call):  # torch.float64 is asked for by its name
                continue
            name = source.names.qualified(call.func, source.scope(call)) or ""
            factory = name.rpartition(".")[2] in (*torch_api.FACTORIES, *torch_api.FROM_DATA, *torch_api.LIKE)
            if name.startswith("torch.") and factory and not _deliberate(source, call):
                yield source.finding(
                    self.id,
                    call,
                    f"{ast.unparse(call)} is float64, and so is what it meets",
                    "give it the dtype of what it meets (dtype=x.dtype)",
                )

    def _doubled(self, source: Source) -> Iterator[Finding]:
        for call in source.nodes(ast.Call):
            if not _doubles(call):
                continue
            if source.value(call.func.value).kind is Kind.MODULE and "gradcheck" not in source.text:
                yield source.finding(
                    self.id,
                    call,
                    f"{ast.unparse(call)} makes all parameters float64, and so all that is computed with them",
                    "keep the model in float32 and cast its inputs: x.float()",
                )
            elif _is_activation(source, call) and not _deliberate(source, call):
                yield source.finding(
                    self.id,
                    call,
                    f"{ast.unparse(call)} doubles the bytes of an activation, and what follows is computed in float64",
                    "leave its type; where a sum needs it, give that one dtype=torch.float64",
                    evidence=source.value(call.func.value).why,
                )


def _fix(source: Source, call: ast.Call, name: str) -> Fix | None:
    edit = insert(*end(source, call), ".float()")
    if name != "torch.from_numpy" and isinstance(call.func, ast.Attribute):  # else nothing here says how torch is named
        edit = add_argument(source, call, f"dtype={ast.unparse(call.func.value)}.float32") or edit
    return Fix(title="Make it float32", edits=(edit,), safe=False)


def _is_double(source: Source, node: ast.expr) -> bool:
    text = isinstance(node, ast.Constant) and str(node.value).endswith("DoubleTensor")
    return text or source.qualified(node) in _DOUBLES


def _doubles(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    return call.func.attr == "double" and not call.args and not call.keywords


def _is_activation(source: Source, call: ast.Call) -> bool:
    """A tensor of floating point inside ``forward`` or a loop over batches."""
    if not isinstance(call.func, ast.Attribute) or source.hot(call) is None:
        return False
    value = source.value(call.func.value)
    return value.kind is Kind.TENSOR and not value.scalar and value.dtype in (None, "float32", "float16", "bfloat16")


def _deliberate(source: Source, call: ast.Call) -> bool:
    """Cast back in the same statement or function, or known to need it."""
    statement = source.index.statement(call)
    function = source.function(call)
    name = getattr(function, "name", "")
    text = ast.unparse(statement).lower() if statement is not None and not hasattr(statement, "body") else ""
    if any(word in f"{name} {text}" for word in (*_DELIBERATE, "linalg", "cumsum", "logsumexp", ".inverse", "det(")):
        return True
    above = source.parent(call)
    reduced = isinstance(above, ast.Attribute) and above.attr in ("sum", "mean", "norm", "var", "std", "pow", "item")
    body = ast.unparse(function).replace(ast.unparse(call), "") if function is not None else ""
    return reduced or any(back in body for back in (".float()", ".to(dtype", "dtype)", ".type_as(", ".to(x)", "_dtype"))
