"""The rule ``float64-by-accident``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from togi.lint.finding import Finding, Fix
from togi.lint.rule import SourceRule
from togi.lint.source import torch_api
from togi.lint.source.call_sites import method_calls
from togi.lint.source.edits import add_argument
from togi.lint.source.fixes import append, fix
from togi.lint.source.identifiers import file_mentions, mentions
from togi.lint.source.loaders import is_test
from togi.lint.source.model import Source
from togi.lint.source.numpy_types import is_float64, tensor_cast_later
from togi.lint.source.references import calls_of
from togi.lint.source.surroundings import function_name
from togi.lint.source.syntax import argument, arguments_of, last_name, unpacks
from togi.lint.source.value import ValueKind

_FROM_NUMPY = {"torch.from_numpy": None, "torch.tensor": 1, "torch.as_tensor": 1}
"""Position of ``dtype``."""
_DEFAULTS = {"torch.set_default_dtype", "torch.set_default_tensor_type"}
_DOUBLES = {"torch.float64", "torch.double", "torch.DoubleTensor"}
_NEEDS_IT = tuple(
    """freq theta rope rotary position angle phase timestep precis grid coord stat linalg cumsum logsumexp
    inverse""".split()
)
"""Parts of names of what is computed in float64 on purpose."""
_REDUCTIONS = ("sum", "mean", "norm", "var", "std", "pow", "item")


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

    Fix safety: the fix is not applied without being asked. It rounds to float32, and only you know whether the digits
    were needed.

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
        for call, name in calls_of(source, _FROM_NUMPY):
            if not call.args or unpacks(call):
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
        for call, name in calls_of(source, _DEFAULTS):
            if not call.args or not _is_double(source, call.args[0]):
                continue
            if not file_mentions(source, ("gradcheck", "get_default_dtype")):
                yield source.finding(
                    self.id,
                    call,
                    f"{name.rpartition('.')[2]} makes every new tensor and parameter float64",
                    "leave the default, and use float64 where it is needed: x.double() there",
                )

    def _doubled(self, source: Source) -> Iterator[Finding]:
        for call, method in method_calls(source, ("double",)):
            if arguments_of(call):
                continue
            value = source.value(method.value)
            if value.kind is ValueKind.MODULE and not file_mentions(source, ("gradcheck",)):
                yield source.finding(
                    self.id,
                    call,
                    f"{ast.unparse(call)} makes all parameters float64, and so all that is computed with them",
                    "keep the model in float32 and cast its inputs: x.float()",
                )
            elif _is_activation(source, call, method) and not _is_deliberate(source, call):
                yield source.finding(
                    self.id,
                    call,
                    f"{ast.unparse(call)} doubles the bytes of an activation, and what follows is computed in float64",
                    "leave its type; where a sum needs it, give that one dtype=torch.float64",
                    evidence=value.why,
                )

    def _made(self, source: Source) -> Iterator[Finding]:
        for keyword in source.nodes(ast.keyword):
            call = source.parent(keyword)
            # torch.float64 is asked for by its name.
            if keyword.arg != "dtype" or source.qualified(keyword.value) != "float" or not isinstance(call, ast.Call):
                continue
            name = source.dotted(call.func)
            makes = name.rpartition(".")[2] in (*torch_api.FACTORIES, *torch_api.FROM_DATA, *torch_api.LIKE)
            if makes and name.startswith("torch.") and not _is_deliberate(source, call):
                yield source.finding(
                    self.id,
                    call,
                    f"{ast.unparse(call)} is float64, and so is what it meets",
                    "give it the dtype of what it meets (dtype=x.dtype)",
                )


def _fix(source: Source, call: ast.Call, name: str) -> Fix | None:
    cast = append(source, call, ".float()")
    if name != "torch.from_numpy" and isinstance(call.func, ast.Attribute):  # else nothing here says how torch is named
        cast = add_argument(source, call, f"dtype={ast.unparse(call.func.value)}.float32") or cast
    return fix("Make it float32", cast, safe=False)


def _is_double(source: Source, node: ast.expr) -> bool:
    by_text = isinstance(node, ast.Constant) and str(node.value).endswith("DoubleTensor")
    return by_text or source.qualified(node) in _DOUBLES


def _is_activation(source: Source, call: ast.Call, method: ast.Attribute) -> bool:
    """A tensor of floating point inside ``forward`` or a loop over batches."""
    if source.hot(call) is None:
        return False
    value = source.value(method.value)
    return (
        value.kind is ValueKind.TENSOR and not value.scalar and value.dtype in (None, "float32", "float16", "bfloat16")
    )


def _is_deliberate(source: Source, call: ast.Call) -> bool:
    """Known to need it, reduced at once, or cast back in the same function."""
    above = source.parent(call)
    if isinstance(above, ast.Attribute) and above.attr in _REDUCTIONS:
        return True
    if any(part in function_name(source, call) for part in _NEEDS_IT):
        return True
    statement = source.index.statement(call)
    if statement is not None and not hasattr(statement, "body") and _needs_it(source, statement):
        return True
    function = source.function(call)
    return function is not None and _casts(source, function, call)


def _needs_it(source: Source, statement: ast.stmt) -> bool:
    determinants = (last_name(call.func).endswith("det") for call in source.walk(statement, ast.Call))
    return mentions(source, statement, _NEEDS_IT) or any(determinants)


def _casts(source: Source, function: ast.AST, double: ast.Call) -> bool:
    """Whether the function casts something else to another type, or holds one in a name: ``input_dtype = x.dtype``."""
    own = set(source.walk(double, ast.Call))
    calls = (call for call in source.walk(function, ast.Call) if call not in own)
    return mentions(source, function, ("_dtype",)) or any(_is_cast(source, call) for call in calls)


def _is_cast(source: Source, call: ast.Call) -> bool:
    """``x.float()``, ``x.to(dtype)``, ``x.to(other)``, ``torch.zeros(n, dtype=x.dtype)``."""
    values = arguments_of(call)
    name = last_name(call.func)
    if name == "type_as" or (name == "float" and not values and isinstance(call.func, ast.Attribute)):
        return True
    if name == "to" and (
        argument(call, "dtype") is not None or (values and source.value(values[0]).kind is ValueKind.TENSOR)
    ):
        return True
    return bool(values) and last_name(values[-1]).endswith("dtype")
