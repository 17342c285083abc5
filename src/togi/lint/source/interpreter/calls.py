"""Evaluates calls: functions of torch, of other libraries and of the file, classes, builtins, containers."""

from __future__ import annotations

import ast

from togi.lint.source import torch_api
from togi.lint.source.interpreter.expressions import attribute_of
from togi.lint.source.interpreter.state import State, key
from togi.lint.source.interpreter.torch_objects import (
    OF_DISTRIBUTIONS,
    common_device,
    given_device,
    given_dtype,
    module_call,
    module_method,
    pair,
    tensor,
    tensor_method,
    tensors_among,
)
from togi.lint.source.syntax import argument
from togi.lint.source.value import ARRAY, NONE, NUMBER, STRING, UNKNOWN, Kind, Value, element_of, iterate, join_all

_MODEL_MAKERS = ("torchvision.models.", "segmentation_models_pytorch.", "efficientnet_pytorch.")
_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")
_REGISTERED = ("Parameter", "Buffer", "UninitializedParameter", "UninitializedBuffer")
"""What moves with its module, so that nothing is known of its device."""
_NORMS = ("clip_grad_norm_", "clip_grad_norm", "get_total_norm")
_NUMBERS = frozenset(
    """float int bool complex len isinstance issubclass hasattr callable any all id hash ord round divmod""".split()
)
_STRINGS = frozenset("str repr format chr input hex bin ascii".split())
_ITERABLES = frozenset(["iter", "reversed", "sorted", "list", "tuple", "set", "frozenset"])


def call(state: State, node: ast.Call) -> Value:
    func = node.func
    name = state.qualified(func)
    base = state.evaluate(func.value) if name is None and isinstance(func, ast.Attribute) else None
    values = [state.evaluate(one) for one in node.args]
    for keyword in node.keywords:
        state.evaluate(keyword.value)
    if name is not None:
        return _call_of_name(state, name, node, values)
    if base is not None and isinstance(func, ast.Attribute):
        return _call_of_attribute(state, base, func, node, values)
    return _call_of_value(state, state.evaluate(func), node, values)


def _call_of_attribute(state: State, base: Value, func: ast.Attribute, node: ast.Call, values: list[Value]) -> Value:
    found = _method(state, base, func, node, values)
    if found is not None:
        return found
    callee = attribute_of(state, base, func)
    dotted = state.env.get(f"{func.value.id}.{func.attr}") if isinstance(func.value, ast.Name) else None
    state.values[func] = callee = dotted or callee
    return _call_of_value(state, callee, node, values)


def _call_of_value(state: State, callee: Value, node: ast.Call, values: list[Value]) -> Value:
    if callee.kind is Kind.MODULE:
        return module_call(state, callee, node, values)
    if isinstance(callee.definition, ast.ClassDef) and callee.kind is Kind.CLASS:
        return state.flow.instance(callee.definition).but(origin=node)
    if callee.definition is not None and callee.kind is Kind.FUNCTION:
        return _call_of_function(state, callee)
    if callee.qualified is not None and callee.kind in (Kind.FUNCTION, Kind.CLASS):
        return _call_of_name(state, callee.qualified, node, values)
    func = node.func
    if _is_submodule_call(state, func) and values and values[0].kind is Kind.TENSOR:
        return Value(
            Kind.TENSOR,
            device=values[0].device,
            graph=state.recorded([Value(graph=True)]),
            certain=False,
            origin=node,
            note=f"is what {ast.unparse(func)} returns",
            cause=values[0],
        )
    return UNKNOWN


def _call_of_function(state: State, callee: Value) -> Value:
    assert callee.definition is not None
    result = state.flow.result(callee.definition)
    return result.but(call=None) if result.call is not None else result


def _is_submodule_call(state: State, func: ast.expr) -> bool:
    """``self.NAME(...)`` in a module, where NAME is none of its methods: a submodule, most likely."""
    if not (isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "self"):
        return False
    owner = state.env.get("self", UNKNOWN)
    return owner.kind is Kind.MODULE and isinstance(owner.definition, ast.ClassDef)


def _call_of_name(state: State, name: str, node: ast.Call, values: list[Value]) -> Value:
    """What calling the imported or builtin ``name`` returns."""
    if "." not in name:
        found = _builtin_call(state, name, node, values)
        return UNKNOWN if found is None else found
    root = name.partition(".")[0]
    if root == "torch":
        return _torch_call(state, name, node, values)
    if root in ("numpy", "cupy", "scipy", "jax"):
        last = name.rpartition(".")[2]
        return NUMBER if last in torch_api.NUMPY_NUMBERS else ARRAY
    if root in ("math", "time", "random", "statistics"):
        return NUMBER
    return _library_call(state, name, node, values)


# Functions of torch


def _torch_call(state: State, name: str, node: ast.Call, values: list[Value]) -> Value:
    package, _, last = name.rpartition(".")
    if package == "torch":
        special = _torch_function(state, last, node, values)
        if special is not None:
            return special
    if name in torch_api.NUMBER_FUNCTIONS:
        return NUMBER
    if name == "torch.autograd.Variable" and values and values[0].kind is Kind.TENSOR:
        return values[0]
    if name in torch_api.TENSOR_CLASSES:
        if last in _REGISTERED:
            dtype = values[0].dtype if values else None
            return Value(Kind.TENSOR, dtype=dtype, graph=True if last == "Parameter" else None)
        return Value(
            Kind.TENSOR,
            device=None if "cuda" in name or last == "Parameter" else "cpu",
            call=node,
            dtype=torch_api.TENSOR_CLASSES[name],
            origin=node,
            note="makes a tensor",
        )
    if name in torch_api.LOADERS:
        return _loader(name, node)
    if package.startswith("torch.nn") and last[:1].isupper():
        wrapped = last in _WRAPPERS and values and values[0].kind is Kind.MODULE
        return values[0] if wrapped else Value(Kind.MODULE, qualified=name, origin=node)
    if package.startswith("torch.distributions") and last[:1].isupper():
        given = [*values, *(state.values[keyword.value] for keyword in node.keywords)]
        tensors = tensors_among(given)
        return Value(qualified=name, device=common_device(tensors) if tensors else None, origin=node)
    if package.startswith("torch.nn.utils") and last in _NORMS:
        return Value(Kind.TENSOR, graph=False, scalar=True, origin=node, note="is the norm of the gradients")
    if package.startswith("torch.optim") and last[:1].isupper():
        return Value(Kind.OPTIMIZER if "lr_scheduler" not in package else Kind.UNKNOWN, qualified=name, origin=node)
    if name in torch_api.MODULE_FACTORIES:
        return (
            values[0]
            if values and values[0].kind in (Kind.MODULE, Kind.FUNCTION)
            else Value(Kind.MODULE, qualified=name, origin=node, certain=False)
        )
    if name in torch_api.TUPLE_FUNCTIONS:
        made = tensor(state, node, values)
        return Value(Kind.LIST, element=made)
    if name in torch_api.LIST_FUNCTIONS:
        return Value(Kind.LIST, element=tensor(state, node, values))
    if package == "torch.nn.utils.rnn":
        return tensor(state, node, values) if last == "pad_sequence" else UNKNOWN
    if name in ("torch.autograd.grad",):
        return Value(Kind.LIST, element=tensor(state, node, values))
    if name in ("torch.utils.checkpoint.checkpoint",) and values:
        return _call_of_value(state, values[0], node, values[1:])
    return tensor(state, node, values) if torch_api.returns_tensor(name) else UNKNOWN


def _torch_function(state: State, last: str, node: ast.Call, values: list[Value]) -> Value | None:
    if last == "device":
        return Value(Kind.DEVICE, device=values[0].device if values else None, origin=node)
    if last in ("finfo", "iinfo"):
        return Value(Kind.UNKNOWN)
    if last == "Size":
        return Value(Kind.SHAPE)
    if last == "compile" and not values:
        return UNKNOWN
    if last in torch_api.FACTORIES or last in torch_api.FROM_DATA:
        return _factory_call(state, last, node, values)
    if last in torch_api.LIKE or last.startswith("new_"):
        return _like(state, node, values)
    if last == "where" and len(values) == 1:
        return Value(Kind.LIST, element=tensor(state, node, values, dtype="int64"))
    if last == "nonzero" and any(keyword.arg == "as_tuple" for keyword in node.keywords):
        return Value(Kind.LIST, element=tensor(state, node, values, dtype="int64"))
    if last in torch_api.PAIR_METHODS:
        return pair(state, last, node, values, node.args[1:])
    if last in ("unique", "unique_consecutive") and node.keywords:
        flags = {"return_inverse", "return_counts"} & {keyword.arg for keyword in node.keywords}
        return Value(Kind.LIST, element=tensor(state, node, values)) if flags else None
    return None


def _factory_call(state: State, last: str, node: ast.Call, values: list[Value]) -> Value:
    if last in ("as_tensor", "asarray") and values and values[0].kind is Kind.TENSOR:
        return values[0].but(device=given_device(state, node) or values[0].device)
    given = argument(node, "device")
    device = state.values[given].device if given is not None else "cpu"
    if given is not None and state.values[given].kind is Kind.NONE:
        device = "cpu"
    dtype = given_dtype(state, node) or ("int64" if last in ("randint", "randperm") else None)
    if last == "tensor" and values and isinstance(values[0].constant, float):
        dtype = dtype or "float32"
    return Value(
        Kind.TENSOR,
        device=device,
        dtype=dtype,
        graph=argument(node, "requires_grad") is not None,
        call=node,
        scalar=bool(values) and values[0].kind is Kind.NUMBER and last in ("tensor", "as_tensor"),
        origin=node,
        note="makes a tensor" + (" on the CPU" if device == "cpu" else ""),
    )


def _like(state: State, node: ast.Call, values: list[Value]) -> Value:
    device = given_device(state, node) or (values[0].device if values else None)
    return Value(Kind.TENSOR, device=device, dtype=given_dtype(state, node), graph=False, origin=node)


# Functions of other libraries and of Python


def _library_call(state: State, name: str, node: ast.Call, values: list[Value]) -> Value:
    last = name.rpartition(".")[2]
    if last in ("tqdm", "trange", "track", "islice", "cycle", "prange", "progress_bar") and values:
        return values[0]
    if name in torch_api.LOADERS or last == "DataLoader":
        return _loader(name, node)
    if name in torch_api.MODULE_FACTORIES or name.startswith(_MODEL_MAKERS):
        made = last[:1].islower() or name.startswith("segmentation")
        return Value(Kind.MODULE, qualified=name, origin=node) if made else UNKNOWN
    if last == "from_pretrained" and any(part in name for part in ("Model", "ForC", "ForS", "ForT", "ForI", "UNet")):
        return Value(Kind.MODULE, qualified=name, origin=node)
    if name.startswith("torchmetrics.") and last[:1].isupper():
        return Value(Kind.MODULE, qualified=name, origin=node)
    if name == "copy.deepcopy" and values:
        return values[0]
    if torch_api.returns_tensor(name):
        return tensor(state, node, values)
    if name.startswith("einops.") and values:
        return values[0].but(call=None) if values[0].kind in (Kind.TENSOR, Kind.NDARRAY) else UNKNOWN
    if last in ("Path", "PurePath"):
        return STRING
    return UNKNOWN


def _loader(name: str, node: ast.Call) -> Value:
    pinned: bool | None = False
    for keyword in node.keywords:
        if keyword.arg is None:
            pinned = None
        elif keyword.arg == "pin_memory":
            constant = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
            pinned = constant if isinstance(constant, bool) else True
    return Value(Kind.DATALOADER, qualified=name, pinned=pinned, origin=node, note="is a DataLoader")


def _builtin_call(state: State, name: str, node: ast.Call, values: list[Value]) -> Value | None:
    """The value of ``name(...)``; None where it is not known."""
    first = values[0] if values else UNKNOWN
    if name in ("abs", "round") and first.kind is Kind.TENSOR:
        return first.but(call=None)
    if name in _NUMBERS:
        return Value(Kind.NUMBER)
    if name in _STRINGS:
        return Value(Kind.STRING)
    if name == "print":
        return Value(Kind.NONE)
    if name in _ITERABLES:
        return _list_of(first, node, name)
    if name == "range":
        return Value(Kind.LIST, element=Value(Kind.NUMBER))
    if name == "enumerate":
        return Value(Kind.LIST, element=Value(Kind.TUPLE, items=(Value(Kind.NUMBER), iterate(first))))
    if name == "zip":
        return Value(Kind.LIST, element=Value(Kind.TUPLE, items=tuple(iterate(value) for value in values)))
    if name == "next":
        return iterate(first)
    if name == "sum":
        return _sum(first)
    if name in ("max", "min"):
        return join_all(values) if len(values) > 1 else iterate(first)
    if name == "abs":
        return first
    if name == "super":
        return state.env.get("self", UNKNOWN).but(definition=None) if "self" in state.env else UNKNOWN
    if name == "getattr" and len(node.args) >= 2:
        return UNKNOWN
    if name == "dict":
        return Value(
            Kind.DICT, element=join_all([state.values[k.value] for k in node.keywords]) if node.keywords else None
        )
    return None


def _list_of(first: Value, node: ast.Call, name: str) -> Value:
    if not node.args:
        return Value(Kind.LIST)
    if first.kind in (Kind.DATALOADER, Kind.LIST):
        return first
    if first.kind is Kind.TUPLE and name != "set":
        return first if name in ("list", "tuple") else Value(Kind.LIST, element=element_of(first))
    element = iterate(first)
    return Value(Kind.LIST, element=element if element.kind is not Kind.UNKNOWN else None)


def _sum(first: Value) -> Value:
    element = iterate(first)
    if element.kind is Kind.TENSOR:
        return element.but(call=None)
    return Value(Kind.NUMBER) if element.kind is Kind.NUMBER else UNKNOWN


# Methods


def _method(state: State, base: Value, func: ast.Attribute, node: ast.Call, values: list[Value]) -> Value | None:
    """What ``base.NAME(...)`` returns; None where NAME is an attribute that is called."""
    if func.attr == "clip_grad_norm_":
        return Value(Kind.TENSOR, graph=False, scalar=True, origin=node, note="is the norm of the gradients")
    match base.kind:
        case Kind.TENSOR:
            return tensor_method(state, base, func.attr, node, values)
        case Kind.MODULE:
            return module_method(state, base, func.attr, node, values)
        case Kind.NDARRAY:
            return NUMBER if func.attr == "item" else Value(Kind.LIST) if func.attr == "tolist" else ARRAY
        case Kind.LIST | Kind.TUPLE | Kind.DICT:
            return _container_method(base, func.attr)
        case Kind.STRING:
            return STRING
        case Kind.NUMBER:
            return NUMBER
        case Kind.OPTIMIZER:
            return UNKNOWN
        case Kind.UNKNOWN if base.definition is None:
            return _unknown_method(state, base, func, node, values)
    return None


def _container_method(base: Value, name: str) -> Value:
    element = element_of(base)
    if name == "items":
        return Value(Kind.LIST, element=Value(Kind.TUPLE, items=(UNKNOWN, element)))
    if name in ("values", "copy"):
        return Value(base.kind if name == "copy" else Kind.LIST, element=element)
    if name in ("pop", "get", "setdefault", "popleft"):
        return element
    if name in ("index", "count"):
        return NUMBER
    return Value(Kind.LIST) if name == "keys" else NONE if name in ("append", "extend", "update") else UNKNOWN


def _unknown_method(
    state: State, base: Value, func: ast.Attribute, node: ast.Call, values: list[Value]
) -> Value | None:
    name = func.attr
    if name in OF_DISTRIBUTIONS and (name in ("log_prob", "rsample") or _is_distribution(base)):
        graph = state.recorded([Value(graph=True)]) if name != "sample" else False
        return Value(Kind.TENSOR, device=base.device, graph=graph, certain=_is_distribution(base), origin=node)
    if name == "log_every" and values and values[0].kind is Kind.DATALOADER:
        return values[0]
    if name in ("train_dataloader", "val_dataloader", "test_dataloader", "get_train_dataloader"):
        return Value(Kind.DATALOADER, certain=False)
    if name == "item" or name not in torch_api.TORCH_ONLY or name in torch_api.NOT_TELLING:
        return None
    tensor = Value(Kind.TENSOR, origin=func.value, note=f"is a tensor, as {name} tells")
    known = key(func.value)
    if known is not None and known in state.env:
        state.env[known] = tensor
    return tensor_method(state, tensor, name, node, values)


def _is_distribution(value: Value) -> bool:
    return (value.qualified or "").startswith("torch.distributions.")
