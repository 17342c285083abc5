"""Element types of NumPy expressions, where the source shows them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from togi.lint.source.loaders import assigned, made_by
from togi.lint.source.references import reaching
from togi.lint.source.syntax import argument, unpacks
from togi.lint.source.value import ValueKind

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_ElementType = Callable[[ast.expr], "str | None"]
_FLOAT64, _BYTES, _INTEGERS = "float64", "uint8", "int64"
_FLOAT64_BY_DEFAULT = frozenset(
    """zeros ones empty identity eye linspace logspace geomspace hanning hamming bartlett blackman kaiser loadtxt
    genfromtxt random.multivariate_normal""".split()
)
_DTYPE_AT = {
    **dict.fromkeys(("zeros", "ones", "empty", "identity", "loadtxt", "genfromtxt", "array", "asarray"), 1),
    **{"full": 2, "eye": 3, "arange": 3, "geomspace": 4, "linspace": 5, "logspace": 5},
}
"""Position of the parameter ``dtype``."""
_DRAWS = frozenset(
    """rand randn random random_sample normal uniform standard_normal beta gamma exponential laplace""".split()
)
"""Of ``numpy.random`` and of its generators."""
_GENERATORS = frozenset(["numpy.random.default_rng", "numpy.random.RandomState"])
_KEEPING_METHODS = frozenset("copy reshape transpose squeeze ravel flatten swapaxes clip cumsum cumprod".split())
_KEEPING = frozenset(
    """ascontiguousarray stack concatenate transpose flip copy vstack hstack column_stack tile repeat pad zeros_like
    ones_like cumsum abs fft.fftfreq""".split()
)
_FLOATS_OF = frozenset("sin cos tan exp log log2 log10 sqrt tanh arctan2 power".split())
"""Of integers too, they make float64."""
_READ = frozenset(["cv2.imread", "imageio.imread", "imageio.v2.imread", "imageio.v3.imread"])
_STATISTICS = ("mean", "std", "var", "sum")
_OF_PICTURES = ("convert", "resize", "crop", "rotate", "transpose")
_CASTS = ("float", "half", "bfloat16", "type", "type_as", "long", "int", "bool", "double")
_DEPTH = 6


def is_float64(source: Source, node: ast.expr) -> bool:
    """Whether a NumPy array of float64 is what this is, evidently: nobody asked for the type, it is a default."""
    return _element_type(source, node, 0) == _FLOAT64


def _element_type(source: Source, node: ast.expr, depth: int) -> str | None:
    if depth > _DEPTH:
        return None

    def inner(part: ast.expr) -> str | None:
        return _element_type(source, part, depth + 1)

    match node:
        case ast.Name():
            value = reaching(source, node)
            return inner(value) if value is not None else None
        case ast.BinOp():
            return _of_operation(source, node, inner)
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return _FLOAT64 if any(inner(part) == _FLOAT64 for part in parts) else None
        case ast.Attribute(value=ast.Name(id="self")):
            types = {inner(value) for value in assigned(source, node)}
            return types.pop() if len(types) == 1 else None
        case ast.Attribute(value=table, attr="values"):
            return _FLOAT64 if _is_table(source, table) else None
        case (
            ast.UnaryOp(operand=operand)
            | ast.Subscript(value=operand)
            | ast.ListComp(elt=operand)
            | ast.Attribute(value=operand, attr="T")
        ):
            return inner(operand)
        case ast.Call() if not unpacks(node):
            name = source.dotted(node.func)
            if isinstance(node.func, ast.Attribute) and not name:
                return _of_method(source, node, node.func, inner)
            return _of_function(source, node, name, inner)
    return None


def _of_operation(source: Source, node: ast.BinOp, inner: _ElementType) -> str | None:
    types = {inner(node.left), inner(node.right)}
    if types == {None}:
        return None
    kinds = (source.value(node.left).kind, source.value(node.right).kind)
    if isinstance(node.op, ast.Div) and types & {_BYTES, _INTEGERS}:
        return _FLOAT64 if ValueKind.NUMBER in kinds else None
    return _FLOAT64 if _FLOAT64 in types and ValueKind.TENSOR not in kinds else None


def _of_function(source: Source, node: ast.Call, name: str, inner: _ElementType) -> str | None:
    if name in _READ:
        return _BYTES
    function = name.removeprefix("numpy.")
    if function == name or argument(node, "dtype", _DTYPE_AT.get(function)) is not None:
        return None
    if function in _FLOAT64_BY_DEFAULT:
        return _FLOAT64
    drawn = function.removeprefix("random.")
    if drawn != function:
        return _FLOAT64 if drawn in _DRAWS and _draws_many(node, drawn) else None
    if function == "full":
        filled = argument(node, "fill_value", 1)
        return _FLOAT64 if filled is not None and _has_fraction(source, filled) else None
    if function == "arange":
        return _FLOAT64 if any(_has_fraction(source, arg) for arg in node.args) else _INTEGERS
    if function == "bincount":
        return _INTEGERS if argument(node, "weights", 1) is None else None
    first = node.args[0] if node.args else None
    if first is None:
        return None
    if function in ("array", "asarray"):
        return _FLOAT64 if _holds_floats(source, first) else _BYTES if _is_picture(source, first) else None
    if function in _FLOATS_OF:
        return _FLOAT64 if any(map(inner, node.args)) else None
    if function in _STATISTICS and argument(node, "axis", 1) is not None:
        return _FLOAT64 if inner(first) == _FLOAT64 else None
    return inner(first) if function in _KEEPING else None


def _of_method(source: Source, node: ast.Call, func: ast.Attribute, inner: _ElementType) -> str | None:
    owner, name = func.value, func.attr
    if name == "astype" and node.args:
        return _FLOAT64 if source.dotted(node.args[0]) == "float" else None
    if argument(node, "dtype", 0 if name == "to_numpy" else None) is not None:
        return None
    if name == "to_numpy":
        return _FLOAT64 if _is_table(source, owner) else None
    if name in _STATISTICS and argument(node, "axis", 0) is not None:
        return _FLOAT64 if inner(owner) == _FLOAT64 else None
    if name in _KEEPING_METHODS:
        return inner(owner)
    if name in ("fit_transform", "transform") or (name in _DRAWS and _draws_many(node, name)):
        makers = [source.dotted(call.func) for call in made_by(source, owner) if isinstance(call, ast.Call)]
        scales = "transform" in name and any(maker.startswith("sklearn.preprocessing.") for maker in makers)
        return _FLOAT64 if scales or not _GENERATORS.isdisjoint(makers) else None
    return None


def _is_picture(source: Source, node: ast.expr) -> bool:
    """``Image.open(path).convert("RGB")``."""
    maker = reaching(source, node) if isinstance(node, ast.Name) else node
    while isinstance(maker, ast.Call) and isinstance(maker.func, ast.Attribute) and maker.func.attr in _OF_PICTURES:
        maker = maker.func.value
    return isinstance(maker, ast.Call) and source.dotted(maker.func) == "PIL.Image.open"


def _is_table(source: Source, node: ast.expr) -> bool:
    """Several columns of a table that pandas read: of mixed numbers it makes float64."""
    several = isinstance(node, ast.Name)
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Subscript):
            several = several or isinstance(node.slice, ast.List | ast.Tuple)
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "drop":
            several, node = True, node.func.value
        elif isinstance(node, ast.Attribute) and node.attr in ("iloc", "loc"):
            node = node.value
        else:
            return False
    maker = reaching(source, node)
    return several and isinstance(maker, ast.Call) and source.dotted(maker.func).startswith("pandas.read_")


def _draws_many(node: ast.Call, name: str) -> bool:
    """Whether more than one number is drawn: one alone is a Python float."""
    if name in ("rand", "randn", "random", "random_sample", "standard_normal"):
        return bool(node.args or node.keywords)
    return argument(node, "size", 2) is not None


def _holds_floats(source: Source, node: ast.expr) -> bool:
    """A list that holds a literal float: NumPy makes float64 of it."""
    if not isinstance(node, ast.List | ast.Tuple):
        return False
    plain = all(isinstance(item, ast.List | ast.Tuple | ast.Constant | ast.UnaryOp) for item in node.elts)
    return plain and _has_fraction(source, node)


def _has_fraction(source: Source, node: ast.expr) -> bool:
    return any(type(constant.value) is float for constant in source.walk(node, ast.Constant))


def tensor_cast_later(source: Source, node: ast.expr) -> bool:
    """Whether the tensor that ``node`` makes is cast where it is made, or later under the name that it gets."""
    above = source.parent(node)
    while isinstance(above, ast.Attribute) and isinstance(call := source.parent(above), ast.Call):
        if _casts(source, call, above.attr):
            return True
        node, above = call, source.parent(call)
    if not isinstance(above, ast.Assign) or not isinstance(above.targets[0], ast.Name | ast.Attribute):
        return False
    name = ast.unparse(above.targets[0])
    return any(
        isinstance(call.func, ast.Attribute)
        and call.lineno >= above.lineno
        and _casts(source, call, call.func.attr)
        and ast.unparse(call.func.value).startswith(name)
        for call in source.nodes(ast.Call)
    )


def _casts(source: Source, call: ast.Call, method: str) -> bool:
    """``.float()``, ``.to(...)`` with a dtype or something that may be one."""
    if method != "to":
        return method in _CASTS
    if argument(call, "dtype") is not None or len(call.args) > 1 or unpacks(call):
        return True
    target = call.args[0] if call.args else None
    if target is None or isinstance(target, ast.Constant) or source.value(target).kind is ValueKind.DEVICE:
        return False
    text = ast.unparse(target).lower()
    return not any(word in text for word in ("device", "cuda", "cpu", "gpu"))
