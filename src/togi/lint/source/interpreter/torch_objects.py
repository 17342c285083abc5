"""Evaluates operators, attributes, methods and calls of tensors and modules."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from togi.lint.source import torch_api
from togi.lint.source.hints import guessed
from togi.lint.source.interpreter.state import State
from togi.lint.source.syntax import argument, is_pairwise, last_name
from togi.lint.source.value import ARRAY, NONE, NUMBER, STRING, UNKNOWN, Kind, Value, element_of

_BITWISE = (ast.BitAnd, ast.BitOr, ast.BitXor)
_ANY_MODULE = ("torch.nn.Module", "torch.nn.Sequential")
_SAME_DTYPE = frozenset(
    """view reshape permute transpose flatten squeeze unsqueeze expand expand_as repeat t flip roll contiguous
    logical_not index_select gather view_as movedim masked_fill clone T narrow""".split()
)
_PLAIN = frozenset([Kind.NUMBER, Kind.STRING, Kind.SHAPE, Kind.DTYPE, Kind.NONE])
_ELSEWHERE = ("torch.cuda.", "torch.xpu.", "torch.mps.", "torch.distributed.", "torch.ops.")
OF_DISTRIBUTIONS = frozenset(["sample", "rsample", "log_prob", "entropy"])


# Tensors


def tensor_operation(
    state: State, node: ast.AST, op: ast.operator, one: Value, other: Value, left: ast.expr, right: ast.expr
) -> Value:
    if Kind.STRING in (one.kind, other.kind) or Kind.NONE in (one.kind, other.kind):
        return UNKNOWN
    tensors = [value for value in (one, other) if value.kind is Kind.TENSOR]
    main = tensors[0]
    both = len(tensors) == 2
    boolean = isinstance(op, _BITWISE) and any(value.dtype == "bool" for value in tensors)
    same = main.dtype if both and one.dtype == other.dtype and main.dtype != "bool" else None
    return Value(
        Kind.TENSOR,
        device=common_device(tensors),
        dtype="bool" if boolean else same,
        graph=state.recorded(tensors),
        certain=main.certain or tensors[-1].certain,
        large=(any(value.large for value in tensors) and not isinstance(op, ast.MatMult))
        or (both and is_pairwise(left, right)),
        scalar=all(value.scalar for value in tensors),
        origin=node,
        cause=main,
    )


def tensor_comparison(node: ast.Compare, operands: Sequence[Value]) -> Value:
    """The tensor of truth values that ``operands``, of which at least one is a tensor, compare to."""
    tensors = [value for value in operands if value.kind is Kind.TENSOR]
    return Value(
        Kind.TENSOR,
        device=common_device(tensors),
        dtype="bool",
        graph=False,
        origin=node,
        certain=any(value.certain for value in tensors),
        scalar=all(value.scalar for value in tensors),
        large=any(value.large for value in tensors)
        or (len(tensors) == 2 == len(operands) and is_pairwise(node.left, node.comparators[0])),
        cause=tensors[0],
    )


def tensor(state: State, node: ast.Call, values: list[Value], *, dtype: str | None = None) -> Value:
    """The tensor that a function of torch makes from ``values``."""
    func = node.func
    last = last_name(func)
    tensors = tensors_among(values)
    if dtype is None:
        dtype = given_dtype(state, node) or _result_dtype(last)
    counted = dtype in ("bool", "int64")
    pairs = len(node.args) >= 2 and is_pairwise(node.args[0], node.args[1])
    reduced = last in torch_api.REDUCTIONS and len(node.args) == 1 and not node.keywords
    loss = last in torch_api.LOSSES and argument(node, "reduction") is None
    return Value(
        Kind.TENSOR,
        device=given_device(state, node) or _made_on(state, node, values, tensors),
        dtype=dtype,
        graph=False if counted or not state.grad else state.recorded(tensors),
        scalar=reduced or loss,
        large=pairs or last == "cdist" or (any(v.large for v in tensors) and last not in torch_api.CONTRACTING),
        origin=node,
        note="is a tensor",
        cause=tensors[0] if tensors else None,
    )


def _made_on(state: State, node: ast.Call, values: list[Value], tensors: list[Value]) -> str | None:
    """Where the tensors are; the CPU, where PyTorch makes what it is given none for: of a file, of numbers alone."""
    name = state.qualified(node.func) or ""
    if name in torch_api.ON_CPU:
        return "cpu"
    if tensors:
        return common_device(tensors)
    given = [*values, *(state.values.get(keyword.value, UNKNOWN) for keyword in node.keywords)]
    plain = bool(given) and all(value.kind in _PLAIN for value in given) and argument(node, "device") is None
    return "cpu" if plain and name.startswith("torch.") and not name.startswith(_ELSEWHERE) else None


def pair(state: State, last: str, node: ast.Call, values: list[Value], rest: list[ast.expr]) -> Value:
    """``max(x)``, ``max(x, dim)``, ``max(x, y)``, ``topk``, ``sort``."""
    made = tensor(state, node, values)
    if last in torch_api.ONLY_WITH_DIM:
        second = state.values.get(rest[0], UNKNOWN) if rest else UNKNOWN
        dims = (
            bool(rest)
            and second.kind is not Kind.TENSOR
            and (second.kind is Kind.NUMBER or isinstance(rest[0], ast.Constant | ast.UnaryOp))
        )
        if not dims and argument(node, "dim") is None:
            return made
    indices = made.but(dtype="int64", graph=False, scalar=False)
    return Value(Kind.TUPLE, items=(made.but(scalar=False), indices))


def tensor_attribute(base: Value, attr: str, node: ast.Attribute) -> Value:
    if attr == "shape":
        return Value(Kind.SHAPE)
    if attr in torch_api.NUMBER_PROPERTIES:
        return NUMBER
    if attr == "device":
        return Value(Kind.DEVICE, device=base.device)
    if attr == "dtype":
        return Value(Kind.DTYPE, dtype=base.dtype)
    if attr in torch_api.TENSOR_PROPERTIES:
        graph = False if attr in ("data", "grad") else base.graph
        return base.but(graph=graph, call=None, origin=node, note="", cause=base)
    if base.certain or attr in torch_api.OTHER_PROPERTIES:
        return UNKNOWN
    held = attr in ("loss", "logits", "last_hidden_state", "pooler_output")
    return (
        base.but(call=None, origin=node, certain=attr in ("loss", "logits"), scalar=attr == "loss", cause=base)
        if (held or base.batch)
        else UNKNOWN
    )


def tensor_method(state: State, base: Value, name: str, node: ast.Call, values: list[Value]) -> Value:
    """What the method ``name`` of a tensor returns."""
    if name in torch_api.NUMBER_METHODS:
        return Value(Kind.NUMBER, origin=node, cause=base)
    if name in OF_DISTRIBUTIONS and not base.certain:  # a policy that returns a distribution
        return base.but(graph=False if name == "sample" else base.graph, call=None, origin=node, cause=base)
    if name.rstrip("_") not in torch_api.TENSOR_METHODS and not _keeps_kind(base, name):
        return UNKNOWN
    if name in torch_api.NONE_METHODS:
        return NONE
    if name in ("size", "stride"):
        return NUMBER if node.args or node.keywords else Value(Kind.SHAPE)
    if name == "tolist":
        return NUMBER if base.scalar else Value(Kind.LIST)
    if name == "numpy":
        return ARRAY
    if name in ("to", "type", "type_as", "cpu", "cuda", "xpu", "pin_memory"):
        return _moved(state, base, name, node, values)
    if name in ("items", "keys", "values", "get", "pop", "update") and not base.certain:
        return _of_batch(base, name)
    return _computed(state, base, name, node, values)


def _keeps_kind(base: Value, name: str) -> bool:
    """Methods of containers that a batch or a model's output may be."""
    return not base.certain and name in ("items", "keys", "values", "get", "pop", "update")


def _computed(state: State, base: Value, name: str, node: ast.Call, values: list[Value]) -> Value:
    if name in torch_api.LIST_METHODS:
        return Value(Kind.LIST, element=base.but(call=None, origin=node, cause=base))
    if name == "nonzero" and argument(node, "as_tuple") is not None:
        return Value(Kind.LIST, element=base.but(dtype="int64", graph=False, call=None))
    if name in torch_api.PAIR_METHODS:
        return pair(state, name, node, [base, *values], node.args)
    if name in ("detach", "detach_"):
        return base.but(graph=False, origin=node, note="", cause=base)
    if name in ("clone", "contiguous", "requires_grad_"):
        return base.but(graph=True if name == "requires_grad_" and not node.args else base.graph)
    made = tensor(state, node, [base, *values])
    scalar = name in torch_api.REDUCTIONS and not node.args and argument(node, "dim") is None
    keeps = base.dtype if name in _SAME_DTYPE else None
    reduced = name in torch_api.REDUCTIONS
    return made.but(
        call=base.call if name in _SAME_DTYPE else None,
        scalar=scalar or (base.scalar and not reduced),
        dtype=made.dtype or keeps,
        note="",
        cause=base,
        device=base.device if base.device is not None else made.device,
        certain=base.certain or name in torch_api.TORCH_ONLY or name in torch_api.ARRAY_LIKE,
    )


def _moved(state: State, base: Value, name: str, node: ast.Call, values: list[Value]) -> Value:
    if name == "cpu":
        return base.but(device="cpu", batch=False, origin=node, note="is on the CPU", cause=base)
    if name in ("cuda", "xpu"):
        return base.but(device="cuda", batch=False, call=None, origin=node, note="is on the GPU", cause=base)
    if name == "pin_memory":
        return base.but(pinned=True)
    device, moved, dtype = base.device, False, base.dtype
    for value, one in [
        *zip(values, node.args, strict=True),
        *((state.values[k.value], k.value) for k in node.keywords if k.arg in ("device", "dtype", "other", None)),
    ]:
        keyword = next((k.arg for k in node.keywords if k.value is one), None)
        if value.kind is Kind.DTYPE or keyword == "dtype":
            dtype = value.dtype
        elif value.kind in (Kind.DEVICE, Kind.STRING, Kind.TENSOR) or keyword == "device":
            device, moved = value.device, True
        elif value.kind is Kind.UNKNOWN and not _names_dtype(one):
            device, moved, dtype = None, True, None
        elif value.kind is Kind.NUMBER and name == "to" and one in node.args[:1]:
            device, moved = "cuda", True  # the number of a GPU
        else:
            dtype = value.dtype
    if not moved:
        return base.but(dtype=dtype, origin=node, note="", cause=base)
    return base.but(device=device, dtype=dtype, batch=False, call=None, origin=node, note="", cause=base)


def _names_dtype(node: ast.expr) -> bool:
    text = last_name(node)
    return "dtype" in text or "precision" in text


def _of_batch(base: Value, name: str) -> Value:
    one = base.but(call=None, batch=base.batch)
    if name == "items":
        return Value(Kind.LIST, element=Value(Kind.TUPLE, items=(STRING, one)))
    return (
        Value(Kind.LIST, element=STRING)
        if name == "keys"
        else (Value(Kind.LIST, element=one) if name == "values" else one)
    )


def given_device(state: State, node: ast.Call) -> str | None:
    given = argument(node, "device")
    return state.values[given].device if given is not None else None


def given_dtype(state: State, node: ast.Call) -> str | None:
    given = argument(node, "dtype")
    return state.values[given].dtype if given is not None else None


def _result_dtype(last: str) -> str | None:
    if last in torch_api.BOOL_RESULTS:
        return "bool"
    if last in torch_api.INT_RESULTS:
        return "int64"
    return torch_api.CASTS.get(last)


def tensors_among(values: list[Value]) -> list[Value]:
    found = [value for value in values if value.kind is Kind.TENSOR]
    for value in values:
        if value.kind in (Kind.LIST, Kind.TUPLE):
            element = element_of(value)
            found += [element] if element.kind is Kind.TENSOR else []
    return found


def common_device(tensors: Sequence[Value]) -> str | None:
    """Where the result of an operation on ``tensors`` lies: a CPU scalar may join tensors of a device."""
    devices = {value.device for value in tensors}
    if "cuda" in devices:
        return "cuda"
    return "cpu" if devices == {"cpu"} else None


# Modules


def module_call(state: State, module: Value, node: ast.Call, values: list[Value]) -> Value:
    """What calling ``module`` returns."""
    tensors = [value for value in values if value.kind is Kind.TENSOR]
    device = common_device(tensors) if tensors and common_device(tensors) == "cuda" else module.device
    last = (module.qualified or "").rpartition(".")[2]
    graph = state.grad
    made = Value(
        Kind.TENSOR,
        device=device,
        graph=graph,
        origin=node,
        note=f"is what {ast.unparse(node.func)} returns",
        cause=module if module.note else None,
    )
    if isinstance(module.definition, ast.ClassDef):
        return _own_module_call(state, module.definition, made)
    own = (module.qualified or "").startswith("torch.nn.") and module.qualified not in _ANY_MODULE
    if module.qualified is None or not own:
        return made.but(certain=False)
    if last in torch_api.TUPLE_MODULES:
        return Value(Kind.TUPLE, items=(made, made.but(certain=False)))
    if module.qualified in torch_api.CONTAINERS:
        return UNKNOWN
    loss = last == "loss" or last.endswith("Loss")
    return made.but(scalar=loss, dtype=None)


def _own_module_call(state: State, definition: ast.ClassDef, made: Value) -> Value:
    forward = state.flow.classes.method(definition, "forward")
    if forward is None:
        return made.but(certain=False)
    result = state.flow.result(forward)
    if result.kind is Kind.TENSOR:
        return result.but(
            call=None, device=made.device, graph=made.graph, note=made.note, origin=made.origin, cause=None
        )
    if result.kind is Kind.UNKNOWN:
        return made.but(certain=False)
    return result.but(call=None)


def module_method(state: State, base: Value, name: str, node: ast.Call, values: list[Value]) -> Value | None:
    if isinstance(base.definition, ast.ClassDef) and state.flow.classes.method(base.definition, name) is not None:
        return None
    if name in ("to", "cuda", "cpu", "xpu"):
        if name in ("cpu", "cuda"):
            return base.but(device="cuda" if name == "cuda" else "cpu")
        devices = [state.values[one] for one in (*node.args, *(k.value for k in node.keywords))]
        given = [value.device for value in devices if value.kind in (Kind.DEVICE, Kind.STRING)]
        return base.but(device=given[0] if given else None)
    if name in torch_api.SAME_MODULE:
        return base
    if name in ("register_buffer", "register_parameter") and len(values) >= 2:
        _register(state, base, values)
        return NONE
    if name in ("forward", "__call__"):
        return module_call(state, base, node, values)
    if name in ("parameters", "buffers"):
        return Value(Kind.LIST, element=Value(Kind.TENSOR, device=base.device, graph=True, certain=False))
    if name in ("named_parameters", "named_buffers"):
        tensor = Value(Kind.TENSOR, device=base.device, graph=True, certain=False)
        return Value(Kind.LIST, element=Value(Kind.TUPLE, items=(STRING, tensor)))
    if name in ("modules", "children", "values"):
        return Value(Kind.LIST, element=Value(Kind.MODULE))
    if name in ("named_modules", "named_children", "items"):
        return Value(Kind.LIST, element=Value(Kind.TUPLE, items=(STRING, Value(Kind.MODULE))))
    if name in ("state_dict", "apply", "load_state_dict", "keys", "append"):
        return UNKNOWN
    if base.definition is None and name in ("encode", "decode", "generate", "forward_features", "predict"):
        return Value(Kind.TENSOR, device=base.device, certain=False, graph=None)
    return None


def _register(state: State, base: Value, values: list[Value]) -> None:
    name, value = values[0].constant, values[1]
    if isinstance(name, str) and isinstance(base.definition, ast.ClassDef):
        kept = Value(Kind.TENSOR, dtype=value.dtype) if value.kind is Kind.TENSOR else value
        state.flow.keep(base.definition, name, kept)


def module_attribute(base: Value, attr: str) -> Value:
    if attr in ("weight", "bias", "running_mean", "running_var", "in_proj_weight"):
        return Value(Kind.TENSOR, device=base.device, certain=False)
    if attr == "training":
        return NUMBER
    if attr == "device":
        return Value(Kind.DEVICE, device=base.device)
    if attr == "dtype":
        return Value(Kind.DTYPE)
    if attr == "module" and base.definition is None:
        return base
    if attr in torch_api.CONTAINER_ATTRIBUTES and base.definition is None:
        return UNKNOWN
    return guessed(attr)
