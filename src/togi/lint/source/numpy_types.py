"""Tells the element type of a NumPy expression, where the source shows it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from togi.lint.source.loaders import assigned, made_by
from togi.lint.source.references import reaching
from togi.lint.source.syntax import argument, unpacks
from togi.lint.source.value import Kind

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_FILLED = {"numpy.zeros": 1, "numpy.ones": 1, "numpy.empty": 1, "numpy.eye": 3, "numpy.identity": 1}
"""Position of ``dtype`` in functions whose default is float64."""
_RANDOM = {
    f"numpy.random.{name}"
    for name in (
        "rand",
        "randn",
        "random",
        "random_sample",
        "normal",
        "uniform",
        "standard_normal",
        "beta",
        "gamma",
        "exponential",
        "laplace",
    )
}
_GENERATORS = {"numpy.random.default_rng", "numpy.random.RandomState"}
_GENERATOR = ("rand", "randn", "random", "normal", "uniform", "standard_normal", "beta", "gamma", "exponential")
_SPACED = {"numpy.linspace": 5, "numpy.logspace": 5, "numpy.geomspace": 4}
_MADE = {"numpy.array": 1, "numpy.asarray": 1}
_KEEP = {"copy", "reshape", "transpose", "squeeze", "ravel", "flatten", "swapaxes", "clip", "T", "cumsum", "cumprod"}
_KEEPING = {
    "numpy.ascontiguousarray",
    "numpy.stack",
    "numpy.concatenate",
    "numpy.transpose",
    "numpy.flip",
    "numpy.copy",
    "numpy.vstack",
    "numpy.hstack",
    "numpy.column_stack",
    "numpy.tile",
    "numpy.repeat",
    "numpy.pad",
    "numpy.zeros_like",
    "numpy.ones_like",
    "numpy.cumsum",
    "numpy.abs",
    "numpy.fft.fftfreq",
}
_FLOATS_OF = {
    f"numpy.{name}" for name in ("sin", "cos", "tan", "exp", "log", "log2", "log10", "sqrt", "tanh", "arctan2", "power")
}
"""Of integers too, they make float64."""
_WINDOWS = {
    f"numpy.{name}" for name in ("hanning", "hamming", "bartlett", "blackman", "kaiser", "loadtxt", "genfromtxt")
}
_READ = {"cv2.imread", "imageio.imread", "imageio.v2.imread", "imageio.v3.imread"}
_MEANS = ("numpy.mean", "numpy.std", "numpy.var", "numpy.sum")
_OF_PICTURES = ("convert", "resize", "crop", "rotate", "transpose")
_DEPTH = 6


def is_float64(source: Source, node: ast.expr, depth: int = 0) -> bool:
    """Whether a NumPy array of float64 is what this is, evidently: nobody asked for the type, it is a default."""
    if depth > _DEPTH:
        return False
    match node:
        case ast.Name():
            made = reaching(source, node)
            return made is not None and is_float64(source, made, depth + 1)
        case ast.BinOp(left=left, op=op, right=right):
            if isinstance(op, ast.Div) and (_is_whole(source, left, depth + 1) or _is_whole(source, right, depth + 1)):
                return _number(left) or _number(right) or _is_plain(source, left) or _is_plain(source, right)
            known = is_float64(source, left, depth + 1) or is_float64(source, right, depth + 1)
            return known and not any(source.value(side).kind is Kind.TENSOR for side in (left, right))
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return any(is_float64(source, one, depth + 1) for one in parts)
        case ast.ListComp(elt=elt):
            return is_float64(source, elt, depth + 1)
        case ast.Attribute(value=table, attr="values"):
            return _is_table(source, table)
        case ast.Attribute(value=ast.Name(id="self")):
            kept = assigned(source, node)
            return bool(kept) and all(is_float64(source, one, depth + 1) for one in kept)
        case ast.UnaryOp(operand=operand) | ast.Subscript(value=operand):
            return is_float64(source, operand, depth + 1)
        case ast.Attribute(value=value, attr="T"):
            return is_float64(source, value, depth + 1)
        case ast.Call():
            return _call_is_float64(source, node, depth)
    return False


def is_bytes(source: Source, node: ast.expr, depth: int = 0) -> bool:
    """Whether an array of bytes is what this is: a picture read by OpenCV or imageio, indexed or turned."""
    if depth > _DEPTH:
        return False
    match node:
        case ast.Name():
            made = reaching(source, node)
            return made is not None and is_bytes(source, made, depth + 1)
        case ast.Subscript(value=value):
            return is_bytes(source, value, depth + 1)
        case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in _KEEP:
            return is_bytes(source, value, depth + 1)
        case ast.Call(func=func, args=args) if _is_picture(source, func, args):
            return argument(node, "dtype", 1) is None
        case ast.Call(func=func, args=args):
            name = source.names.qualified(func, source.scope(node))
            return name in _READ or (name in _KEEPING and bool(args) and is_bytes(source, args[0], depth + 1))
    return False


def _is_picture(source: Source, func: ast.expr, args: list[ast.expr]) -> bool:
    """``np.array(Image.open(path).convert("RGB"))``."""
    if source.names.qualified(func, source.scope(func)) not in _MADE or not args:
        return False
    made = reaching(source, args[0]) if isinstance(args[0], ast.Name) else args[0]
    while isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and made.func.attr in _OF_PICTURES:
        made = made.func.value
    opened = made.func if isinstance(made, ast.Call) else None
    return opened is not None and source.names.qualified(opened, source.scope(opened)) == "PIL.Image.open"


def _call_is_float64(source: Source, node: ast.Call, depth: int) -> bool:
    name = source.names.qualified(node.func, source.scope(node)) or ""
    if unpacks(node):
        return False
    if name in _RANDOM:
        return argument(node, "dtype") is None and _drawn_many(node, name)
    if name in _FILLED:
        return argument(node, "dtype", _FILLED[name]) is None
    if name in _SPACED:
        return argument(node, "dtype", _SPACED[name]) is None
    if name in _WINDOWS:
        return argument(node, "dtype", 1 if "txt" in name else None) is None
    if name in _FLOATS_OF and node.args and argument(node, "dtype") is None:
        return any(is_float64(source, arg, depth + 1) or _is_whole(source, arg, depth + 1) for arg in node.args)
    if name == "numpy.full":
        filled = argument(node, "fill_value", 1)
        return argument(node, "dtype", 2) is None and filled is not None and _fraction(source, filled)
    if name == "numpy.random.multivariate_normal":
        return True
    if name in _MEANS and node.args and argument(node, "axis", 1) is not None:
        return argument(node, "dtype") is None and is_float64(source, node.args[0], depth + 1)
    if name == "numpy.arange":
        return argument(node, "dtype", 3) is None and any(_fraction(source, arg) for arg in node.args)
    if name in _MADE and node.args:
        return argument(node, "dtype", _MADE[name]) is None and _floats(source, node.args[0])
    if name in _KEEPING and node.args and argument(node, "dtype") is None:
        return is_float64(source, node.args[0], depth + 1)
    if isinstance(node.func, ast.Attribute):
        owner = node.func.value
        if node.func.attr in ("fit_transform", "transform") and any(
            isinstance(one, ast.Call)
            and (source.names.qualified(one.func, source.scope(one)) or "").startswith("sklearn.preprocessing.")
            for one in made_by(source, owner)
        ):
            return True
        if node.func.attr in ("mean", "std", "var", "sum") and argument(node, "axis", 0) is not None:
            return argument(node, "dtype") is None and is_float64(source, owner, depth + 1)
        if node.func.attr == "to_numpy":
            return argument(node, "dtype", 0) is None and _is_table(source, owner)
        if node.func.attr == "astype" and node.args:
            return isinstance(node.args[0], ast.Name) and source.qualified(node.args[0]) == "float"
        if node.func.attr in _KEEP:
            return is_float64(source, owner, depth + 1)
        made = any(
            isinstance(one, ast.Call) and source.qualified(one.func) in _GENERATORS for one in made_by(source, owner)
        )
        drawn = node.func.attr in _GENERATOR and argument(node, "dtype") is None
        return made and drawn and _drawn_many(node, f".{node.func.attr}")
    return False


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
    made = reaching(source, node)
    read = source.names.qualified(made.func, source.scope(made)) if isinstance(made, ast.Call) else None
    return several and (read or "").startswith("pandas.read_")


def _drawn_many(node: ast.Call, name: str) -> bool:
    """Whether more than one number is drawn: one alone is a Python float."""
    if name.rpartition(".")[2] in ("rand", "randn", "random", "random_sample", "standard_normal"):
        return bool(node.args or node.keywords)
    return argument(node, "size", 2) is not None


def _floats(source: Source, node: ast.expr) -> bool:
    """A list that holds a literal float: NumPy makes float64 of it."""
    if not isinstance(node, ast.List | ast.Tuple):
        return False
    parts = source.walk(node, ast.Constant)
    plain = all(isinstance(one, ast.List | ast.Tuple | ast.Constant | ast.UnaryOp) for one in node.elts)
    return plain and any(type(part.value) is float for part in parts)


def _number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _is_plain(source: Source, node: ast.expr) -> bool:
    """A Python number, as far as the file tells: a name of one, ``len(...)``."""
    return source.value(node).kind is Kind.NUMBER


def _is_whole(source: Source, node: ast.expr, depth: int) -> bool:
    """An array of integers: bytes of a picture, ``np.arange(n)``."""
    if isinstance(node, ast.Name):
        made = reaching(source, node)
        return made is not None and depth <= _DEPTH and _is_whole(source, made, depth + 1)
    if isinstance(node, ast.Call) and source.names.qualified(node.func, source.scope(node)) == "numpy.arange":
        return argument(node, "dtype", 3) is None and not any(_fraction(source, arg) for arg in node.args)
    if isinstance(node, ast.Call) and source.names.qualified(node.func, source.scope(node)) == "numpy.bincount":
        return argument(node, "weights", 1) is None
    return is_bytes(source, node, depth)


def _fraction(source: Source, node: ast.expr) -> bool:
    return any(type(part.value) is float for part in source.walk(node, ast.Constant))


def tensor_cast_later(source: Source, node: ast.expr) -> bool:
    """Whether the tensor that ``node`` makes is cast where it is made, or later under the name that it gets."""
    above = source.parent(node)
    while isinstance(above, ast.Attribute) and isinstance(call := source.parent(above), ast.Call):
        if above.attr in ("float", "half", "bfloat16", "type", "type_as", "long", "int", "bool", "double"):
            return True
        if above.attr == "to" and _names_type(source, call):
            return True
        node, above = call, source.parent(call)
    if isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Name | ast.Attribute):
        return _cast_under_name(source, ast.unparse(above.targets[0]), above)
    return False


def _cast_under_name(source: Source, name: str, after: ast.stmt) -> bool:
    for call in source.nodes(ast.Call):
        if not isinstance(call.func, ast.Attribute) or call.lineno < after.lineno:
            continue
        if not ast.unparse(call.func.value).startswith(name):
            continue
        if call.func.attr in ("float", "half", "bfloat16", "type", "type_as", "double", "long"):
            return True
        if call.func.attr == "to" and _names_type(source, call):
            return True
    return False


def _names_type(source: Source, call: ast.Call) -> bool:
    """Whether ``.to(...)`` is given a dtype, or something that may be one."""
    if argument(call, "dtype") is not None or len(call.args) > 1 or unpacks(call):
        return True
    given = call.args[0] if call.args else None
    if given is None or isinstance(given, ast.Constant):
        return False
    text = ast.unparse(given).lower()
    return source.value(given).kind is not Kind.DEVICE and not any(
        word in text for word in ("device", "cuda", "cpu", "gpu")
    )
