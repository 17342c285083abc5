"""Names and type annotations, read as abstract values."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable
from dataclasses import replace

from togi.lint.source import torch_api
from togi.lint.source.syntax import is_constant, is_text
from togi.lint.source.value import ARRAY, NONE, NUMBER, STRING, UNKNOWN, Evidence, Value, ValueKind, list_of, tuple_of

PASSING_ON = frozenset(["tqdm", "trange", "track", "islice", "cycle", "prange", "progress_bar"])
"""Functions of libraries that give what they are given, item by item."""

_SUGGESTED = (
    (
        re.compile(r"^_?((\w+_)?(criterion|loss_fn|loss_func|lossfn|loss_function)|criterion_\w+)$", re.IGNORECASE),
        Value(
            ValueKind.MODULE,
            certain=False,
            qualified="torch.nn.modules.loss",
            evidence=Evidence(note="is named like a loss"),
        ),
    ),
    (
        re.compile(
            r"^_?((\w+_)?(model|net|network|backbone|encoder|decoder|discriminator|generator|classifier|unet|vae|teacher"
            r"|student|policy|actor|critic)|netG|netD|net_g|net_d|model_ema)$"
        ),
        Value(ValueKind.MODULE, certain=False, evidence=Evidence(note="is named like a model")),
    ),
    (
        re.compile(r"^_?((\w+_)?(optimizer|optim)|opt|optimizer\w*|opt_[gd])$", re.IGNORECASE),
        Value(ValueKind.OPTIMIZER, certain=False, evidence=Evidence(note="is named like an optimizer")),
    ),
    (
        re.compile(
            r"^_?((\w+_)?(dataloader|data_loader|loader)|(train|val|valid|test|eval|trn|tst)_?(dl|iter)|loader_\w+)$",
            re.IGNORECASE,
        ),
        Value(ValueKind.DATALOADER, certain=False, evidence=Evidence(note="is named like a DataLoader")),
    ),
    (re.compile(r"^_?((\w+_)?device)$", re.IGNORECASE), Value(ValueKind.DEVICE, certain=False)),
    (
        re.compile(
            r"^_?(num_\w+|n_\w+|\w+_size|\w+_dim|\w+_steps|step|epoch|global_step|batch_idx|batch_index"
            r"|max_\w+_len\w*|eps)$"
        ),
        Value(ValueKind.NUMBER, certain=False),
    ),
)
"""What names suggest, the first that fits."""
_AMBIGUOUS = re.compile(r"(encoder|decoder|generator|classifier)$")
"""Names that other libraries' objects bear as well."""


@functools.lru_cache(maxsize=4096)
def guessed(name: str) -> Value:
    """The value that ``name`` suggests, not certain; UNKNOWN where it suggests none."""
    return next((value for pattern, value in _SUGGESTED if pattern.match(name)), UNKNOWN)


def named(name: str) -> Value:
    """What the imported ``name`` is."""
    package, _, last = name.rpartition(".")
    if package == "torch" and last in torch_api.DTYPES:
        return Value(ValueKind.DTYPE, dtype=torch_api.CASTS.get(last, last))
    if package == "numpy" and last in ("pi", "e", "inf", "nan", "newaxis", "euler_gamma"):
        return NUMBER if last != "newaxis" else NONE
    if package == "math" and last in ("pi", "e", "inf", "nan", "tau"):
        return NUMBER
    return Value(ValueKind.CLASS if last[:1].isupper() else ValueKind.FUNCTION, qualified=name)


def guessed_result(name: str) -> Value:
    """The value that ``name`` suggests for what a call of something unknown returned, where names are clear enough."""
    value = guessed(name)
    if value.kind is ValueKind.MODULE and _AMBIGUOUS.search(name):
        return UNKNOWN
    return value if value.kind in (ValueKind.DATALOADER, ValueKind.OPTIMIZER, ValueKind.MODULE) else UNKNOWN


_SEQUENCES = frozenset(
    """list set List Set Sequence Iterable Iterator Collection MutableSequence Generator frozenset FrozenSet""".split()
)
_MAPPINGS = frozenset(["dict", "Dict", "Mapping", "MutableMapping", "OrderedDict", "defaultdict"])
_PLAIN_TYPES = {
    "str": STRING,
    "bytes": STRING,
    "torch.device": Value(ValueKind.DEVICE),
    "torch.dtype": Value(ValueKind.DTYPE),
    "torch.Size": Value(ValueKind.SHAPE),
}
_PLAIN_TYPES_BY_LAST_NAME = {
    **dict.fromkeys(("int", "float", "bool", "complex", "Number"), NUMBER),
    **dict.fromkeys(("Path", "PathLike"), STRING),
    **dict.fromkeys(("ndarray", "ArrayLike", "NDArray"), ARRAY),
    **dict.fromkeys((*_SEQUENCES, "tuple", "Tuple"), list_of(None)),
    **dict.fromkeys(_MAPPINGS, Value(ValueKind.DICT)),
}


def annotated(node: ast.expr | None, qualified: Callable[[ast.AST], str | None]) -> Value:
    """The value that the annotation ``node`` promises; UNKNOWN where it promises nothing of interest."""
    match node:
        case None:
            return UNKNOWN
        case ast.Constant():
            return _constant(node, qualified)
        case ast.BinOp(op=ast.BitOr()):
            return _union([node.left, node.right], qualified)
        case ast.Subscript():
            return _generic(node, qualified)
        case ast.Call():  # a type that is made: of a compiler for kernels, say
            return Value(evidence=Evidence(node, "is annotated"))
    return _type(node, qualified)


def _constant(node: ast.Constant, qualified: Callable[[ast.AST], str | None]) -> Value:
    if node.value is None:
        return NONE
    if not isinstance(node.value, str):
        return UNKNOWN
    try:
        quoted = ast.parse(node.value, mode="eval").body
    except (SyntaxError, ValueError):
        return UNKNOWN
    return annotated(quoted, lambda part: qualified(part) or _text(part))


def _text(node: ast.AST) -> str | None:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else None


def _generic(node: ast.Subscript, qualified: Callable[[ast.AST], str | None]) -> Value:
    name = (qualified(node.value) or _text(node.value) or "").rpartition(".")[2]
    arguments = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
    if name == "Optional":
        return replace(annotated(arguments[0], qualified), optional=True)
    if name == "Union":
        return _union(arguments, qualified)
    if name in ("Annotated", "Final", "ClassVar", "Required", "NotRequired"):
        return annotated(arguments[0], qualified)
    if name in ("tuple", "Tuple"):
        if len(arguments) == 2 and is_constant(arguments[1], ...):
            return list_of(annotated(arguments[0], qualified))
        return tuple_of(*(annotated(argument, qualified) for argument in arguments))
    if name in _SEQUENCES:
        return list_of(annotated(arguments[0], qualified))
    if name in _MAPPINGS:
        return Value(ValueKind.DICT, element=annotated(arguments[-1], qualified))
    if name == "Literal":
        return STRING if all(map(is_text, arguments)) else NUMBER
    return _type(node.value, qualified)


def _union(parts: list[ast.expr], qualified: Callable[[ast.AST], str | None]) -> Value:
    values = [annotated(part, qualified) for part in parts]
    present = [value for value in values if value.kind is not ValueKind.NONE]
    if not present:
        return NONE
    optional = len(present) < len(values) or any(value.optional for value in present)
    if len({value.kind for value in present}) == 1:
        return replace(present[0], optional=optional)
    return Value(optional=optional, evidence=Evidence(note="is annotated as a union"))


def _type(node: ast.AST, qualified: Callable[[ast.AST], str | None]) -> Value:
    name = qualified(node) or _text(node)
    if name is None:
        return UNKNOWN
    last = name.rpartition(".")[2]
    if name in torch_api.TENSOR_CLASSES:
        return Value(ValueKind.TENSOR, qualified=name, dtype=torch_api.TENSOR_CLASSES[name])
    if last in ("Tensor", "FloatTensor", "LongTensor", "BoolTensor") and "tf" not in name:
        return Value(ValueKind.TENSOR, qualified=name, dtype=torch_api.TENSOR_CLASSES.get(f"torch.{last}"))
    plain = _PLAIN_TYPES.get(name) or _PLAIN_TYPES_BY_LAST_NAME.get(last)
    if plain is not None:
        return plain
    if last == "DataLoader":
        return Value(ValueKind.DATALOADER, qualified=name)
    of_torch = name.startswith("torch.nn.") and last[:1].isupper()
    if of_torch or last in ("PreTrainedModel", "LightningModule", "ScriptModule"):
        return Value(ValueKind.MODULE, qualified=name)
    if last == "Optimizer" or name.startswith("torch.optim."):
        return Value(ValueKind.OPTIMIZER, qualified=name)
    return Value(evidence=Evidence(node, "is annotated")) if last[:1].isupper() else UNKNOWN
