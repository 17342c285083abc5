"""Abstract interpretation of one scope: methods of tensors, modules, loaders and containers."""

from __future__ import annotations

import ast

from togi.lint.source import torch_api
from togi.lint.source.expressions import ARRAY, NONE, NUMBER, STRING, Expressions
from togi.lint.source.join import element_of
from togi.lint.source.narrowing import key
from togi.lint.source.tensor_methods import TENSOR_METHODS
from togi.lint.source.value import UNKNOWN, Kind, Value
from togi.lint.source.words import words


class Methods(Expressions):
    """Evaluates calls of methods."""

    def method(self, base: Value, func: ast.Attribute, node: ast.Call, values: list[Value]) -> Value | None:
        """What ``base.NAME(...)`` returns; None where NAME is an attribute that is called."""
        if func.attr == "clip_grad_norm_":
            return Value(Kind.TENSOR, graph=False, scalar=True, origin=node, note="is the norm of the gradients")
        match base.kind:
            case Kind.TENSOR:
                return self.of_tensor(base, func.attr, node, values)
            case Kind.MODULE:
                return self._of_module_method(base, func.attr, node, values)
            case Kind.NDARRAY:
                return NUMBER if func.attr == "item" else Value(Kind.LIST) if func.attr == "tolist" else ARRAY
            case Kind.LIST | Kind.TUPLE | Kind.DICT:
                return self._of_container(base, func.attr, values)
            case Kind.STRING:
                return STRING
            case Kind.NUMBER:
                return NUMBER
            case Kind.OPTIMIZER:
                return UNKNOWN
            case Kind.UNKNOWN if base.definition is None:
                return self._of_unknown(base, func, node, values)
        return None

    def of_tensor(self, base: Value, name: str, node: ast.Call, values: list[Value]) -> Value:
        """What the method ``name`` of a tensor returns."""
        if name in torch_api.NUMBER_METHODS:
            return Value(Kind.NUMBER, origin=node, cause=base)
        if name in _OF_DISTRIBUTIONS and not base.certain:  # a policy that returns a distribution
            return base.but(graph=False if name == "sample" else base.graph, call=None, origin=node, cause=base)
        if name.rstrip("_") not in TENSOR_METHODS and not self._keeps_kind(base, name):
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
            return self._moved(base, name, node, values)
        if name in ("items", "keys", "values", "get", "pop", "update") and not base.certain:
            return self._of_batch(base, name)
        return self._computed(base, name, node, values)

    def _keeps_kind(self, base: Value, name: str) -> bool:
        """Methods of containers that a batch or a model's output may be."""
        return not base.certain and name in ("items", "keys", "values", "get", "pop", "update")

    def _computed(self, base: Value, name: str, node: ast.Call, values: list[Value]) -> Value:
        if name in torch_api.LIST_METHODS:
            return Value(Kind.LIST, element=base.but(call=None, origin=node, cause=base))
        if name == "nonzero" and self.keyword(node, "as_tuple") is not None:
            return Value(Kind.LIST, element=base.but(dtype="int64", graph=False, call=None))
        if name in torch_api.PAIR_METHODS:
            return self.pair(name, node, [base, *values], node.args)
        if name in ("detach", "detach_"):
            return base.but(graph=False, origin=node, note="", cause=base)
        if name in ("clone", "contiguous", "requires_grad_"):
            return base.but(graph=True if name == "requires_grad_" and not node.args else base.graph)
        made = self.tensor(node, [base, *values])
        scalar = name in torch_api.REDUCTIONS and not node.args and self.keyword(node, "dim") is None
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

    def _moved(self, base: Value, name: str, node: ast.Call, values: list[Value]) -> Value:
        if name == "cpu":
            return base.but(device="cpu", batch=False, origin=node, note="is on the CPU", cause=base)
        if name in ("cuda", "xpu"):
            return base.but(device="cuda", batch=False, call=None, origin=node, note="is on the GPU", cause=base)
        if name == "pin_memory":
            return base.but(pinned=True)
        device, moved, dtype = base.device, False, base.dtype
        for value, one in [
            *zip(values, node.args, strict=True),
            *((self.values[k.value], k.value) for k in node.keywords if k.arg in ("device", "dtype", "other", None)),
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

    def _of_batch(self, base: Value, name: str) -> Value:
        one = base.but(call=None, batch=base.batch)
        if name == "items":
            return Value(Kind.LIST, element=Value(Kind.TUPLE, items=(STRING, one)))
        return (
            Value(Kind.LIST, element=STRING)
            if name == "keys"
            else (Value(Kind.LIST, element=one) if name == "values" else one)
        )

    def _of_module_method(self, base: Value, name: str, node: ast.Call, values: list[Value]) -> Value | None:
        if isinstance(base.definition, ast.ClassDef) and self.flow.classes.method(base.definition, name) is not None:
            return None
        if name in ("to", "cuda", "cpu", "xpu"):
            if name in ("cpu", "cuda"):
                return base.but(device="cuda" if name == "cuda" else "cpu")
            devices = [self.values[one] for one in (*node.args, *(k.value for k in node.keywords))]
            given = [value.device for value in devices if value.kind in (Kind.DEVICE, Kind.STRING)]
            return base.but(device=given[0] if given else None)
        if name in torch_api.SAME_MODULE:
            return base
        if name in ("register_buffer", "register_parameter") and len(values) >= 2:
            self._register(base, node, values)
            return NONE
        if name in ("forward", "__call__"):
            return self.of_module(base, node, values)
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

    def _register(self, base: Value, node: ast.Call, values: list[Value]) -> None:
        name, value = values[0].constant, values[1]
        if isinstance(name, str) and isinstance(base.definition, ast.ClassDef):
            kept = Value(Kind.TENSOR, dtype=value.dtype) if value.kind is Kind.TENSOR else value
            self.flow.keep(base.definition, name, kept)

    def _of_container(self, base: Value, name: str, values: list[Value]) -> Value:
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

    def _of_unknown(self, base: Value, func: ast.Attribute, node: ast.Call, values: list[Value]) -> Value | None:
        name = func.attr
        if name in _OF_DISTRIBUTIONS and (name in ("log_prob", "rsample") or _is_distribution(base)):
            graph = self.recorded([Value(graph=True)]) if name != "sample" else False
            return Value(Kind.TENSOR, device=base.device, graph=graph, certain=_is_distribution(base), origin=node)
        if name in ("log_every", "prepare_data_loader") and values and values[0].kind is Kind.DATALOADER:
            return values[0]
        if name in ("train_dataloader", "val_dataloader", "test_dataloader", "get_train_dataloader"):
            return Value(Kind.DATALOADER, certain=False)
        if name == "item" or name not in torch_api.TORCH_ONLY or name in _NOT_TELLING:
            return None
        tensor = Value(Kind.TENSOR, origin=func.value, note=f"is a tensor, as {name} tells")
        known = key(func.value)
        if known is not None and known in self.env:
            self.env[known] = tensor
        return self.of_tensor(tensor, name, node, values)

    # What the next layer evaluates

    def keyword(self, node: ast.Call, name: str) -> ast.expr | None:
        return next((keyword.value for keyword in node.keywords if keyword.arg == name), None)

    def device(self, node: ast.Call) -> str | None:
        given = self.keyword(node, "device")
        return self.values[given].device if given is not None else None

    def dtype(self, node: ast.Call) -> str | None:
        given = self.keyword(node, "dtype")
        return self.values[given].dtype if given is not None else None

    def of_module(self, module: Value, node: ast.Call, values: list[Value]) -> Value:
        raise NotImplementedError

    def pair(self, last: str, node: ast.Call, values: list[Value], rest: list[ast.expr]) -> Value:
        raise NotImplementedError

    def tensor(self, node: ast.Call, values: list[Value], *, dtype: str | None = None) -> Value:
        raise NotImplementedError


def _is_distribution(value: Value) -> bool:
    return (value.qualified or "").startswith("torch.distributions.")


def _names_dtype(node: ast.expr) -> bool:
    text = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return "dtype" in text or "precision" in text


_SAME_DTYPE = words(
    """view reshape permute transpose flatten squeeze unsqueeze expand expand_as repeat t flip roll contiguous
    logical_not index_select gather view_as movedim masked_fill clone T narrow"""
)
_OF_DISTRIBUTIONS = words("sample rsample log_prob entropy")
_NOT_TELLING = words(
    """cuda half train type new scatter gather split size copy_ device storage expand register_hook softmax permute_
    normal_ requires_grad to cpu sigmoid tanh relu gelu narrow fill_"""
)
"""Names of ``TORCH_ONLY`` that models, other libraries or users' classes have as methods too."""
