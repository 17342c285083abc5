"""Reads names and type annotations as abstract values."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from togi.lint.source import torch_api
from togi.lint.source.value import NONE, NUMBER, UNKNOWN, Kind, Value

_MODELS = re.compile(
    r"^_?((\w+_)?(model|net|network|backbone|encoder|decoder|discriminator|generator|classifier|unet|vae|teacher|student|policy|actor|critic)"
    r"|netG|netD|net_g|net_d|ddp_model|model_ema|ema_model)$"
)
_LOSSES = re.compile(r"^_?((\w+_)?(criterion|loss_fn|loss_func|lossfn|loss_function)|criterion_\w+)$", re.IGNORECASE)
_OPTIMIZERS = re.compile(r"^_?((\w+_)?(optimizer|optim)|opt|optimizer\w*|opt_[gd])$", re.IGNORECASE)
_LOADERS = re.compile(
    r"^_?((\w+_)?(dataloader|data_loader|loader)|(train|val|valid|test|eval|trn|tst)_?(dl|iter)|loader_\w+)$",
    re.IGNORECASE,
)
_AMBIGUOUS = re.compile(r"(encoder|decoder|generator|classifier)$")
"""Names that other libraries' objects bear as well."""
_DEVICES = re.compile(r"^_?((\w+_)?device)$", re.IGNORECASE)
_NUMBERS = re.compile(
    r"^_?(num_\w+|n_\w+|\w+_size|\w+_dim|\w+_steps|step|epoch|global_step|batch_idx|batch_index|max_\w+_len\w*|eps)$"
)


def guessed(name: str) -> Value:
    """The value that ``name`` suggests, not certain; UNKNOWN where it suggests none."""
    if _LOSSES.match(name):
        return Value(Kind.MODULE, qualified="torch.nn.modules.loss", certain=False, note="is named like a loss")
    if _MODELS.match(name):
        return Value(Kind.MODULE, certain=False, note="is named like a model")
    if _OPTIMIZERS.match(name):
        return Value(Kind.OPTIMIZER, certain=False, note="is named like an optimizer")
    if _LOADERS.match(name):
        return Value(Kind.DATALOADER, certain=False, note="is named like a DataLoader")
    if _DEVICES.match(name):
        return Value(Kind.DEVICE, certain=False)
    if _NUMBERS.match(name):
        return Value(Kind.NUMBER, certain=False)
    return UNKNOWN


def named(name: str) -> Value:
    """What the imported ``name`` is."""
    package, _, last = name.rpartition(".")
    if package == "torch" and last in torch_api.DTYPES:
        return Value(Kind.DTYPE, dtype=torch_api.DTYPE_NAMES.get(last, last))
    if package == "numpy" and last in ("pi", "e", "inf", "nan", "newaxis", "euler_gamma"):
        return NUMBER if last != "newaxis" else NONE
    if package == "math" and last in ("pi", "e", "inf", "nan", "tau"):
        return NUMBER
    return Value(Kind.CLASS if last[:1].isupper() else Kind.FUNCTION, qualified=name)


def guessed_result(name: str) -> Value:
    """The value that ``name`` suggests for what a call of something unknown returned, where names are clear enough."""
    value = guessed(name)
    told = value.kind in (Kind.DATALOADER, Kind.OPTIMIZER) or (
        value.kind is Kind.MODULE and not _AMBIGUOUS.search(name)
    )
    return value if told else UNKNOWN


_SEQUENCES = frozenset(
    """list set List Set Sequence Iterable Iterator Collection MutableSequence Generator frozenset FrozenSet""".split()
)
_MAPPINGS = frozenset(["dict", "Dict", "Mapping", "MutableMapping", "OrderedDict", "defaultdict"])
_NUMBER_TYPES = frozenset(["int", "float", "bool", "complex", "Number"])


def annotated(node: ast.expr | None, qualified: Callable[[ast.AST], str | None]) -> Value:
    """The value that the annotation ``node`` promises; UNKNOWN where it promises nothing of interest."""
    if node is None:
        return UNKNOWN
    if isinstance(node, ast.Constant):
        return _constant(node, qualified)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _union([node.left, node.right], qualified)
    if isinstance(node, ast.Subscript):
        return _generic(node, qualified)
    if isinstance(node, ast.Call):  # a type that is made: of a compiler for kernels, say
        return Value(note="is annotated", origin=node)
    return _plain(node, qualified)


def _constant(node: ast.Constant, qualified: Callable[[ast.AST], str | None]) -> Value:
    if node.value is None:
        return Value(Kind.NONE)
    if not isinstance(node.value, str):
        return UNKNOWN
    try:
        inner = ast.parse(node.value, mode="eval").body
    except (SyntaxError, ValueError):
        return UNKNOWN
    return annotated(inner, lambda one: qualified(one) or _text(one))


def _text(node: ast.AST) -> str | None:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else None


def _generic(node: ast.Subscript, qualified: Callable[[ast.AST], str | None]) -> Value:
    name = (qualified(node.value) or _text(node.value) or "").rpartition(".")[2]
    arguments = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
    if name == "Optional":
        return annotated(arguments[0], qualified).but(optional=True)
    if name == "Union":
        return _union(arguments, qualified)
    if name in ("Annotated", "Final", "ClassVar", "Required", "NotRequired"):
        return annotated(arguments[0], qualified)
    if name in ("tuple", "Tuple"):
        if len(arguments) == 2 and isinstance(arguments[1], ast.Constant) and arguments[1].value is ...:
            return Value(Kind.LIST, element=annotated(arguments[0], qualified))
        return Value(Kind.TUPLE, items=tuple(annotated(one, qualified) for one in arguments))
    if name in _SEQUENCES:
        return Value(Kind.LIST, element=annotated(arguments[0], qualified))
    if name in _MAPPINGS:
        return Value(Kind.DICT, element=annotated(arguments[-1], qualified))
    if name == "Literal":
        strings = all(isinstance(one, ast.Constant) and isinstance(one.value, str) for one in arguments)
        return Value(Kind.STRING if strings else Kind.NUMBER)
    return _plain(node.value, qualified)


def _union(parts: list[ast.expr], qualified: Callable[[ast.AST], str | None]) -> Value:
    values = [annotated(part, qualified) for part in parts]
    some = [value for value in values if value.kind is not Kind.NONE]
    if not some:
        return Value(Kind.NONE)
    optional = len(some) < len(values) or any(value.optional for value in some)
    if len({value.kind for value in some}) == 1:
        return some[0].but(optional=optional)
    return Value(optional=optional, note="is annotated as a union")


def _plain(node: ast.AST, qualified: Callable[[ast.AST], str | None]) -> Value:
    name = qualified(node) or _text(node)
    if name is None:
        return UNKNOWN
    last = name.rpartition(".")[2]
    if name in torch_api.TENSOR_CLASSES:
        return Value(Kind.TENSOR, qualified=name, dtype=torch_api.TENSOR_CLASSES[name])
    if last in ("Tensor", "FloatTensor", "LongTensor", "BoolTensor") and "tf" not in name:
        return Value(Kind.TENSOR, qualified=name, dtype=torch_api.TENSOR_CLASSES.get(f"torch.{last}"))
    if last in _NUMBER_TYPES:
        return Value(Kind.NUMBER)
    if name in ("str", "bytes") or last in ("Path", "PathLike"):
        return Value(Kind.STRING)
    if last in ("ndarray", "ArrayLike", "NDArray"):
        return Value(Kind.NDARRAY)
    if name == "torch.device":
        return Value(Kind.DEVICE)
    if name == "torch.dtype":
        return Value(Kind.DTYPE)
    if name == "torch.Size":
        return Value(Kind.SHAPE)
    if last == "DataLoader":
        return Value(Kind.DATALOADER, qualified=name)
    if name == "torch.nn.Module" or last in ("PreTrainedModel", "LightningModule", "ScriptModule"):
        return Value(Kind.MODULE, qualified=name)
    if name.startswith("torch.nn.") and last[:1].isupper():
        return Value(Kind.MODULE, qualified=name)
    if last == "Optimizer" or name.startswith("torch.optim."):
        return Value(Kind.OPTIMIZER, qualified=name)
    if last in _SEQUENCES or last in ("tuple", "Tuple"):
        return Value(Kind.LIST)
    if last in _MAPPINGS:
        return Value(Kind.DICT)
    return Value(note="is annotated", origin=node) if last[:1].isupper() else UNKNOWN
