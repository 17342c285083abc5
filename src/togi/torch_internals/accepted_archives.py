"""Files of exported programs that may be loaded: those in which every member and every string is of the plain form.

torch's reader of exported programs executes what a file asks for in several places: pickled weights and example inputs,
``sympy.sympify`` on symbolic sizes (an ``eval``). Also any callable below ``torch`` or ``operator`` as a node's target,
guards as Python source, and names that are pasted into generated code. Each is answered here by a closed list. Records
are read with torch's own zip reader, so that both see the same bytes.

Behind it: torch._C.PyTorchFileReader (torch 2.9 to 2.15). When it goes: ``zipfile`` reads the archives.
"""

from __future__ import annotations

import ast
import json
import math
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from togi.core.errors import ArtifactError
from togi.core.quantities import first_line
from togi.torch_internals.accepted_operators import is_accepted

ArchiveReader = torch._C.PyTorchFileReader
"""torch's own reader of ``.pt`` and ``.pt2`` archives: ``get_all_records()``, ``get_record(name)``."""

MAX_JSON_BYTES = 256 * 1024**2
MAX_MEMBERS = 200_000
MAX_SIZE_TEXT = 20_000
MAX_SIZE_BITS = 16_384
MAX_EXPONENT = 64

_MEMBER = re.compile(
    r"data/weights/weight_\d+|data/weights/model_weights_config\.json|data/constants/tensor_\d+"
    r"|data/constants/model_constants_config\.json|data/sample_inputs/model\.pt|models/model\.json"
    r"|archive_format|archive_version|byteorder|\.data/(version|serialization_id)|\.format_version|\.storage_alignment"
)
_MODEL = "models/model.json"
_WEIGHTS = ("data/weights/model_weights_config.json", re.compile(r"weight_\d+"))
_CONSTANTS = ("data/constants/model_constants_config.json", re.compile(r"tensor_\d+"))

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_PATH = re.compile(r"[\w.\-/ :+@]*")
"""Names of weights and modules: no quotes, brackets or backslashes, since they are pasted into generated code."""
_TEXTS: dict[str, re.Pattern[str]] = {
    "name": re.compile(r"\w*"),
    "as_name": _IDENTIFIER,
    "forward_arg_names": _IDENTIFIER,
    "parameter_name": _PATH,
    "buffer_name": _PATH,
    "tensor_constant_name": _PATH,
    "user_input_name": _PATH,
    "fqn": _PATH,
    "type": re.compile(r"[a-z]+"),
    "verifiers": re.compile(r"[A-Z_]+"),
    "torch_version": re.compile(r"[\w.+]*"),
    "as_string": re.compile(r"(?s).*"),  # a text argument of an operator, quoted by torch
    "as_strings": re.compile(r"(?s).*"),
    "as_none": re.compile(r""),
    "as_float": re.compile(r"-?Infinity|NaN"),  # other numbers are JSON's own
    "as_floats": re.compile(r"-?Infinity|NaN"),
}
_EMPTY = frozenset({"guards_code", "metadata", "custom_obj_values", "treespec_namedtuple_fields"})
_FORBIDDEN = frozenset({"as_custom_obj", "custom_obj", "class_fqn", "token", "as_opaque"})

_HIGHER_ORDER = frozenset(
    {"wrap_with_set_grad_enabled", "wrap_with_autocast", "cond", "map_impl", "while_loop", "scan"}
)
_FUNCTION = re.compile(
    r"_operator\.(add|sub|mul|mod|floordiv|truediv|neg|pos|pow|eq|ne|lt|le|gt|ge|and_|or_|not_|xor|getitem|lshift|rshift)"
    r"|math\.(ceil|floor|trunc|sqrt|log|log2|exp|pow)"
    r"|torch\._?sym_\w+"
)
# fmt: off
_SIZE_FUNCTIONS = frozenset({
    "Symbol", "Integer", "Rational", "Float", "Add", "Mul", "Pow", "Mod", "Max", "Min", "Abs", "Equality",
    "Unequality", "Eq", "Ne", "StrictLessThan", "LessThan", "StrictGreaterThan", "GreaterThan", "Lt", "Le", "Gt",
    "Ge", "And", "Or", "Not", "FloorDiv", "ModularIndexing", "Where", "PythonMod", "CleanDiv", "CeilToInt",
    "FloorToInt", "CeilDiv", "LShift", "RShift", "PowByNatural", "FloatPow", "FloatTrueDiv", "IntTrueDiv",
    "IsNonOverlappingAndDenseIndicator", "TruncToFloat", "TruncToInt", "RoundToInt", "RoundDecimal", "ToFloat",
    "Identity",
})
# fmt: on
_SIZE_NODES = (
    ast.Expression,
    ast.Call,
    ast.Name,
    ast.Load,
    ast.Constant,
    ast.keyword,
    ast.BinOp,
    ast.UnaryOp,
    ast.Compare,
    ast.operator,
    ast.unaryop,
    ast.cmpop,
)
_SIZE_NAME = re.compile(r"[suz][a-z]*\d*|true|false")


def check_archive(path: Path) -> None:
    """Raises ArtifactError, saying what and why, unless ``path`` holds one exported program in the plain form."""
    records = _Records(path)
    config, names = _WEIGHTS
    _check_payload(records.json(config), names)
    config, names = _CONSTANTS
    _check_payload(records.json(config), names)
    if records.size("data/sample_inputs/model.pt"):
        raise ArtifactError(f"{path.name} holds example inputs, which torch would unpickle: it was not written by togi")
    _check_graph(records.json(_MODEL))


class _Records:
    """The members of the archive, by torch's own reader."""

    def __init__(self, path: Path) -> None:
        _check_zip(path)
        self.name = path.name
        try:
            self._reader = ArchiveReader(str(path))
            names = self._reader.get_all_records()
        except RuntimeError as error:
            raise ArtifactError(f"{path.name} is damaged: {first_line(error)}") from error
        strange = sorted(name for name in names if not _MEMBER.fullmatch(name))
        if strange:
            raise ArtifactError(f"{path.name} holds {strange[0]!r}, which an exported program of togi never does")

    def size(self, name: str) -> int:
        return len(self._bytes(name))

    def json(self, name: str) -> Any:
        try:
            return json.loads(self._bytes(name))
        except ValueError as error:
            raise ArtifactError(f"{self.name}: {name} is not JSON ({error})") from error

    def _bytes(self, name: str) -> bytes:
        try:
            record: bytes = self._reader.get_record(name)
        except RuntimeError as error:
            raise ArtifactError(f"{self.name} has no {name}: it is damaged or of another torch version") from error
        return record


def _check_zip(path: Path) -> None:
    """Members are stored, lie under one folder, are named once, and are no larger than the file and our limits."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (OSError, zipfile.BadZipFile) as error:
        raise ArtifactError(f"{path.name} is not a readable archive: {error}") from error
    names = [member.filename for member in members]
    if len(members) > MAX_MEMBERS or len(set(names)) != len(names):
        raise ArtifactError(f"{path.name} holds {len(members)} members, or one of them twice")
    roots = {name.split("/")[0] for name in names}
    if len(roots) != 1 or any(".." in name.split("/") or name.startswith("/") or "\\" in name for name in names):
        raise ArtifactError(f"{path.name} holds members outside one folder: {', '.join(sorted(roots)[:3])}")
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED or member.file_size > path.stat().st_size:
            raise ArtifactError(f"{path.name}: {member.filename} is compressed, which torch never writes")
        if member.filename.endswith(".json") and member.file_size > MAX_JSON_BYTES:
            raise ArtifactError(f"{path.name}: {member.filename} has {member.file_size} bytes, over {MAX_JSON_BYTES}")


def _check_payload(payload: Any, names: re.Pattern[str]) -> None:
    """Weights or constants: raw tensors only."""
    entries = payload.get("config") if isinstance(payload, dict) else None
    if not isinstance(entries, dict):
        raise ArtifactError("the list of weights has an unknown form: it is damaged or of another torch version")
    for name, meta in entries.items():
        raw = isinstance(meta, dict) and meta.get("use_pickle") is False and meta.get("tensor_meta") is not None
        if not raw or not names.fullmatch(str(meta.get("path_name"))) or not _PATH.fullmatch(name):
            raise ArtifactError(f"{name} is not stored as a plain tensor (a pickle, or a custom class): refused")
        _check_graph(meta["tensor_meta"])


def _check_graph(document: Any) -> None:
    """Every text in the program's description, by the key it stands under."""
    for key, value in _walk(document, ""):
        if key in _FORBIDDEN and value is not None:
            raise ArtifactError(f"it holds a custom object ({key}), which has no safe file form")
        if key in _EMPTY and value:
            raise ArtifactError(f"it holds {key}, which togi never writes and torch may execute")
        if isinstance(value, dict) and not all(_PATH.fullmatch(name) for name in value):
            raise ArtifactError(f"{key} holds a name with characters that no weight or value has")
        if isinstance(value, str):
            _check_text(key, value)


def _walk(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """``(key, value)`` of every value, however deep; items of a list stand under the list's key."""
    pending = [(key, value)]
    while pending:
        key, value = pending.pop()
        yield key, value
        if isinstance(value, dict):
            pending.extend(value.items())
        elif isinstance(value, list):
            pending.extend((key, item) for item in value)


def _check_text(key: str, text: str) -> None:
    if key in ("target", "as_operator"):
        _check_operator(text)
    elif key == "expr_str":
        _check_size(text)
    elif key in ("in_spec", "out_spec"):
        _check_tree(text)
    elif key not in _TEXTS or not _TEXTS[key].fullmatch(text):
        raise ArtifactError(f"it holds the text {text[:80]!r} as {key!r}, which no exported program of togi does")


def _check_operator(target: str) -> None:
    """An operator of torch, found where torch would find it, or arithmetic on sizes."""
    if _FUNCTION.fullmatch(target):
        return
    match target.split("."):
        case ["torch", "ops", "higher_order", name] if name in _HIGHER_ORDER:
            return
        case ["torch", "ops", namespace, name, overload] if is_accepted(namespace, name, overload):
            packet = getattr(getattr(torch.ops, namespace), name, None)
            operator = getattr(packet, overload, None) if isinstance(packet, torch._ops.OpOverloadPacket) else None
            if isinstance(operator, torch._ops.OpOverload):
                return
    raise ArtifactError(
        f"it calls {target[:120]!r}, which is not an operator that a file may call here: private and custom operators "
        "have no safe file form. Operators of torchvision need 'import torchvision' before loading."
    )


def _check_size(text: str) -> None:
    """A symbolic size: arithmetic on symbols. torch evaluates this text."""
    try:
        if len(text) > MAX_SIZE_TEXT:
            raise ValueError(f"it has {len(text):,} characters")
        tree = ast.parse(text, mode="eval")
        nodes = list(ast.walk(tree))
        if _bits(tree.body) > MAX_SIZE_BITS:
            raise ValueError("it is a number beyond all sizes")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ArtifactError(f"the size {text[:80]!r} cannot be read: {error}") from error
    for node in nodes:
        called = isinstance(node, ast.Call) and not isinstance(node.func, ast.Name)
        named = isinstance(node, ast.Name) and node.id not in _SIZE_FUNCTIONS and not _SIZE_NAME.fullmatch(node.id)
        quoted = isinstance(node, ast.Constant) and isinstance(node.value, str) and not node.value.isidentifier()
        if called or named or quoted or not isinstance(node, _SIZE_NODES):
            raise ArtifactError(f"the size {text[:80]!r} is more than arithmetic on sizes: refused")


def _bits(node: ast.AST) -> int:
    """A bound on the binary digits of an expression whose symbols are sizes: sympy would compute ``9**9**9`` for ever.

    Raises ValueError where an exponent, or a precision, is not a small number.
    """
    inside = [_bits(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr | ast.keyword)]
    match node:
        case ast.Constant(value=float() as number) if not abs(number) < math.inf:
            raise ValueError("it is not a number")
        case ast.Constant(value=int() | float() as number):
            return int(abs(number)).bit_length()
        case ast.Constant() | ast.Name():
            return 63
        case (
            ast.BinOp(op=ast.Pow() | ast.LShift(), left=base, right=exponent)
            | ast.Call(func=ast.Name(id="Pow" | "PowByNatural" | "FloatPow" | "LShift"), args=[base, exponent])
        ):
            return _bits(base) * _small(exponent)
        case ast.Call(func=ast.Name(id="Float"), args=args, keywords=keywords) if len(args) > 1 or keywords:
            raise ValueError("a precision is given")
        case _:
            return min(sum(inside) + 1, MAX_SIZE_BITS + 1)


def _small(exponent: ast.AST) -> int:
    """Return whether a number is small, as sympy writes it: ``2``, ``-1``, ``Integer(2)``, ``Rational(1, 2)``."""
    nodes = [node for node in ast.walk(exponent) if not isinstance(node, ast.Load | ast.unaryop)]
    parts = [node.id if isinstance(node, ast.Name) else getattr(node, "value", 0) for node in nodes]
    numbers = [abs(part) for part in parts if isinstance(part, int | float)]
    plain = all(isinstance(node, ast.Constant | ast.UnaryOp | ast.Call | ast.Name) for node in nodes)
    if not plain or {part for part in parts if isinstance(part, str)} - {"Integer", "Rational", "Float"}:
        raise ValueError("an exponent is not a number")
    if not max(numbers, default=0) <= MAX_EXPONENT:
        raise ValueError(f"an exponent is above {MAX_EXPONENT}")
    return max(1, *map(int, numbers), 1)


def _check_tree(text: str) -> None:
    """The nesting of arguments: tuples, lists and dicts only (torch imports enumerations that it names)."""
    try:
        protocol, tree = json.loads(text)
    except (ValueError, TypeError) as error:
        raise ArtifactError(f"the nesting {text[:80]!r} cannot be read: {error}") from error
    for key, value in _walk(tree, ""):
        accepted = key != "type" or value in (None, "builtins.tuple", "builtins.list", "builtins.dict")
        plain = key != "context" or value is None or re.fullmatch(r'null|\[("\w*"(, )?)*\]', str(value))
        if protocol != 1 or not accepted or not plain:
            raise ArtifactError(f"the arguments are nested in {str(value)[:80]!r}, which togi never writes")
