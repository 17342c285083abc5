"""Abstract interpretation of one scope: calls of functions, classes and modules."""

from __future__ import annotations

import ast

from togi.lint.source import torch_api
from togi.lint.source.builtin_calls import builtin_call
from togi.lint.source.expressions import ARRAY, NUMBER, STRING, common_device
from togi.lint.source.join import element_of
from togi.lint.source.methods import Methods
from togi.lint.source.pairwise import is_pairwise
from togi.lint.source.value import UNKNOWN, Kind, Value

_MODEL_MAKERS = ("torchvision.models.", "segmentation_models_pytorch.", "efficientnet_pytorch.")
_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")


_REGISTERED = ("Parameter", "Buffer", "Variable", "UninitializedParameter", "UninitializedBuffer")
"""What moves with its module, so that nothing is known of its device."""
_NORMS = ("clip_grad_norm_", "clip_grad_norm", "get_total_norm")
_ANY_MODULE = ("torch.nn.Module", "torch.nn.Sequential")


class Calls(Methods):
    """Evaluates calls."""

    def call(self, node: ast.Call) -> Value:
        func = node.func
        name = self.qualified(func)
        base = self.ev(func.value) if name is None and isinstance(func, ast.Attribute) else None
        values = [self.ev(one) for one in node.args]
        for keyword in node.keywords:
            self.ev(keyword.value)
        if name is not None:
            return self.of_name(name, node, values)
        if base is not None and isinstance(func, ast.Attribute):
            return self._of_attribute(base, func, node, values)
        return self._of_value(self.ev(func), node, values)

    def _of_attribute(self, base: Value, func: ast.Attribute, node: ast.Call, values: list[Value]) -> Value:
        found = self.method(base, func, node, values)
        if found is not None:
            return found
        callee = self.attribute_of(base, func)
        dotted = self.env.get(f"{func.value.id}.{func.attr}") if isinstance(func.value, ast.Name) else None
        self.values[func] = callee = dotted or callee
        return self._of_value(callee, node, values)

    def _of_value(self, callee: Value, node: ast.Call, values: list[Value]) -> Value:
        if callee.kind is Kind.MODULE:
            return self.of_module(callee, node, values)
        if isinstance(callee.definition, ast.ClassDef) and callee.kind is Kind.CLASS:
            return self.flow.instance(callee.definition).but(origin=node)
        if callee.definition is not None and callee.kind is Kind.FUNCTION:
            return self._of_function(callee, node)
        if callee.qualified is not None and callee.kind in (Kind.FUNCTION, Kind.CLASS):
            return self.of_name(callee.qualified, node, values)
        func = node.func
        if self._is_submodule_call(func) and values and values[0].kind is Kind.TENSOR:
            return Value(
                Kind.TENSOR,
                device=values[0].device,
                graph=self.recorded([Value(graph=True)]),
                certain=False,
                origin=node,
                note=f"is what {ast.unparse(func)} returns",
                cause=values[0],
            )
        return UNKNOWN

    def _of_function(self, callee: Value, node: ast.Call) -> Value:
        assert callee.definition is not None
        result = self.flow.result(callee.definition)
        return result.but(call=None) if result.call is not None else result

    def _is_submodule_call(self, func: ast.expr) -> bool:
        """``self.NAME(...)`` in a module, where NAME is none of its methods: a submodule, most likely."""
        if not (isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "self"):
            return False
        owner = self.env.get("self", UNKNOWN)
        return owner.kind is Kind.MODULE and isinstance(owner.definition, ast.ClassDef)

    def of_module(self, module: Value, node: ast.Call, values: list[Value]) -> Value:
        """What calling ``module`` returns."""
        tensors = [value for value in values if value.kind is Kind.TENSOR]
        device = common_device(tensors) if tensors and common_device(tensors) == "cuda" else module.device
        last = (module.qualified or "").rpartition(".")[2]
        graph = self.grad
        made = Value(
            Kind.TENSOR,
            device=device,
            graph=graph,
            origin=node,
            note=f"is what {ast.unparse(node.func)} returns",
            cause=module if module.note else None,
        )
        if isinstance(module.definition, ast.ClassDef):
            return self._of_own_module(module.definition, made)
        own = (module.qualified or "").startswith("torch.nn.") and module.qualified not in _ANY_MODULE
        if module.qualified is None or not own:
            return made.but(certain=False)
        if last in torch_api.TUPLE_MODULES:
            return Value(Kind.TUPLE, items=(made, made.but(certain=False)))
        if module.qualified in torch_api.CONTAINERS:
            return UNKNOWN
        loss = last == "loss" or last.endswith("Loss")
        return made.but(scalar=loss, dtype=None)

    def _of_own_module(self, definition: ast.ClassDef, made: Value) -> Value:
        forward = self.flow.classes.method(definition, "forward")
        if forward is None:
            return made.but(certain=False)
        result = self.flow.result(forward)
        if result.kind is Kind.TENSOR:
            return result.but(
                call=None, device=made.device, graph=made.graph, note=made.note, origin=made.origin, cause=None
            )
        if result.kind is Kind.UNKNOWN:
            return made.but(certain=False)
        return result.but(call=None)

    def of_name(self, name: str, node: ast.Call, values: list[Value]) -> Value:
        """What calling the imported or builtin ``name`` returns."""
        if "." not in name:
            found = builtin_call(self, name, node, values)
            return UNKNOWN if found is None else found
        root = name.partition(".")[0]
        if root == "torch":
            return self._of_torch(name, node, values)
        if root in ("numpy", "cupy", "scipy", "jax"):
            last = name.rpartition(".")[2]
            return NUMBER if last in torch_api.NUMPY_NUMBERS else ARRAY
        if root in ("math", "time", "random", "statistics"):
            return NUMBER
        return self._of_library(name, node, values)

    def _of_library(self, name: str, node: ast.Call, values: list[Value]) -> Value:
        last = name.rpartition(".")[2]
        if last in ("tqdm", "trange", "track", "islice", "cycle", "prange", "progress_bar") and values:
            return values[0]
        if name in torch_api.LOADERS or last == "DataLoader":
            return self.loader(name, node)
        if name in torch_api.MODULE_FACTORIES or name.startswith(_MODEL_MAKERS):
            made = last[:1].islower() or name.startswith("segmentation")
            return Value(Kind.MODULE, qualified=name, origin=node) if made else UNKNOWN
        if last == "from_pretrained" and any(
            part in name for part in ("Model", "ForC", "ForS", "ForT", "ForI", "UNet")
        ):
            return Value(Kind.MODULE, qualified=name, origin=node)
        if name.startswith("torchmetrics.") and last[:1].isupper():
            return Value(Kind.MODULE, qualified=name, origin=node)
        if name == "copy.deepcopy" and values:
            return values[0]
        if torch_api.returns_tensor(name):
            return self.tensor(node, values)
        if name.startswith("einops.") and values:
            return values[0].but(call=None) if values[0].kind in (Kind.TENSOR, Kind.NDARRAY) else UNKNOWN
        if last in ("Path", "PurePath"):
            return STRING
        return UNKNOWN

    def loader(self, name: str, node: ast.Call) -> Value:
        pinned: bool | None = False
        for keyword in node.keywords:
            if keyword.arg is None:
                pinned = None
            elif keyword.arg == "pin_memory":
                constant = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
                pinned = constant if isinstance(constant, bool) else True
        return Value(Kind.DATALOADER, qualified=name, pinned=pinned, origin=node, note="is a DataLoader")

    def _of_torch(self, name: str, node: ast.Call, values: list[Value]) -> Value:
        package, _, last = name.rpartition(".")
        if package == "torch":
            special = self._of_torch_itself(last, node, values)
            if special is not None:
                return special
        if name in torch_api.NUMBER_FUNCTIONS:
            return NUMBER
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
            return self.loader(name, node)
        if package.startswith("torch.nn") and last[:1].isupper():
            wrapped = last in _WRAPPERS and values and values[0].kind is Kind.MODULE
            return values[0] if wrapped else Value(Kind.MODULE, qualified=name, origin=node)
        if package.startswith("torch.distributions") and last[:1].isupper():
            given = [*values, *(self.values[keyword.value] for keyword in node.keywords)]
            tensors = self.tensors_among(given)
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
            made = self.tensor(node, values)
            return Value(Kind.LIST, element=made)
        if name in torch_api.LIST_FUNCTIONS:
            return Value(Kind.LIST, element=self.tensor(node, values))
        if package == "torch.nn.utils.rnn":
            return self.tensor(node, values) if last == "pad_sequence" else UNKNOWN
        if name in ("torch.autograd.grad",):
            return Value(Kind.LIST, element=self.tensor(node, values))
        if name in ("torch.utils.checkpoint.checkpoint",) and values:
            return self._of_value(values[0], node, values[1:])
        return self.tensor(node, values) if torch_api.returns_tensor(name) else UNKNOWN

    def _of_torch_itself(self, last: str, node: ast.Call, values: list[Value]) -> Value | None:
        if last == "device":
            return Value(Kind.DEVICE, device=values[0].device if values else None, origin=node)
        if last in ("finfo", "iinfo"):
            return Value(Kind.UNKNOWN)
        if last == "Size":
            return Value(Kind.SHAPE)
        if last == "compile" and not values:
            return UNKNOWN
        if last in torch_api.FACTORIES or last in torch_api.FROM_DATA:
            return self._made(last, node, values)
        if last in torch_api.LIKE or last.startswith("new_"):
            return self._like(node, values)
        if last == "where" and len(values) == 1:
            return Value(Kind.LIST, element=self.tensor(node, values, dtype="int64"))
        if last == "nonzero" and any(keyword.arg == "as_tuple" for keyword in node.keywords):
            return Value(Kind.LIST, element=self.tensor(node, values, dtype="int64"))
        if last in torch_api.PAIR_METHODS:
            return self.pair(last, node, values, node.args[1:])
        if last in ("unique", "unique_consecutive") and node.keywords:
            flags = {"return_inverse", "return_counts"} & {keyword.arg for keyword in node.keywords}
            return Value(Kind.LIST, element=self.tensor(node, values)) if flags else None
        return None

    def _made(self, last: str, node: ast.Call, values: list[Value]) -> Value:
        if last in ("as_tensor", "asarray") and values and values[0].kind is Kind.TENSOR:
            return values[0].but(device=self.device(node) or values[0].device)
        given = self.keyword(node, "device")
        device = self.values[given].device if given is not None else "cpu"
        if given is not None and self.values[given].kind is Kind.NONE:
            device = "cpu"
        dtype = self.dtype(node) or ("int64" if last in ("randint", "randperm") else None)
        if last == "tensor" and values and isinstance(values[0].constant, float):
            dtype = dtype or "float32"
        return Value(
            Kind.TENSOR,
            device=device,
            dtype=dtype,
            graph=self.keyword(node, "requires_grad") is not None,
            call=node,
            scalar=bool(values) and values[0].kind is Kind.NUMBER and last in ("tensor", "as_tensor"),
            origin=node,
            note="makes a tensor" + (" on the CPU" if device == "cpu" else ""),
        )

    def _like(self, node: ast.Call, values: list[Value]) -> Value:
        device = self.device(node) or (values[0].device if values else None)
        return Value(Kind.TENSOR, device=device, dtype=self.dtype(node), graph=False, origin=node)

    def tensor(self, node: ast.Call, values: list[Value], *, dtype: str | None = None) -> Value:
        """The tensor that a function of torch makes from ``values``."""
        func = node.func
        last = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
        tensors = self.tensors_among(values)
        if dtype is None:
            dtype = self.dtype(node) or self.result_dtype(last)
        counted = dtype in ("bool", "int64")
        pairs = len(node.args) >= 2 and is_pairwise(node.args[0], node.args[1])
        reduced = last in torch_api.REDUCTIONS and len(node.args) == 1 and not node.keywords
        loss = last in torch_api.LOSSES and self.keyword(node, "reduction") is None
        return Value(
            Kind.TENSOR,
            device=self.device(node) or (common_device(tensors) if tensors else None),
            dtype=dtype,
            graph=False if counted or not self.grad else self.recorded(tensors),
            scalar=reduced or loss,
            large=pairs or last == "cdist" or (any(v.large for v in tensors) and last not in torch_api.CONTRACTING),
            origin=node,
            note="is a tensor",
            cause=tensors[0] if tensors else None,
        )

    def tensors_among(self, values: list[Value]) -> list[Value]:
        found = [value for value in values if value.kind is Kind.TENSOR]
        for value in values:
            if value.kind in (Kind.LIST, Kind.TUPLE):
                element = element_of(value)
                found += [element] if element.kind is Kind.TENSOR else []
        return found

    def pair(self, last: str, node: ast.Call, values: list[Value], rest: list[ast.expr]) -> Value:
        """``max(x)``, ``max(x, dim)``, ``max(x, y)``, ``topk``, ``sort``."""
        made = self.tensor(node, values)
        if last in torch_api.ONLY_WITH_DIM:
            second = self.values.get(rest[0], UNKNOWN) if rest else UNKNOWN
            dims = (
                bool(rest)
                and second.kind is not Kind.TENSOR
                and (second.kind is Kind.NUMBER or isinstance(rest[0], ast.Constant | ast.UnaryOp))
            )
            if not dims and self.keyword(node, "dim") is None:
                return made
        indices = made.but(dtype="int64", graph=False, scalar=False)
        return Value(Kind.TUPLE, items=(made.but(scalar=False), indices))

    def result_dtype(self, last: str) -> str | None:
        if last in torch_api.BOOL_RESULTS:
            return "bool"
        if last in torch_api.INT_RESULTS:
            return "int64"
        return torch_api.CASTS.get(last)
