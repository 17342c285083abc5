"""Operators of the dispatcher: their classes, schemas, composite kernels and Python implementations.

Behind it: torch._ops, ``OpOverload._schema``, torch._library.custom_ops, torch._C dispatch queries, torch._decomp
(torch 2.9 to 2.15). When they go: ``torch.export.default_decompositions`` is public; schemas and kernels have no
public form, and what relies on them must refuse. ``aten._scaled_dot_product_attention_math`` (torch 2.9 to 2.15). When
it goes: ``functional.scaled_dot_product_attention`` with ``sdpa_kernel(MATH)``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

__all__ = [
    "HigherOrderOperator",
    "OpOverload",
    "OpOverloadPacket",
    "attention_of_operators",
    "bound_arguments",
    "can_decompose",
    "core_decompositions",
    "decompositions_of",
    "is_composite",
    "is_python_operator",
    "may_hold_tensors",
    "python_kernel",
    "result_arguments",
    "runs_python",
    "schema_of",
    "written_arguments",
]

schema_of: Callable[[Any], torch.FunctionSchema] = attrgetter("_schema")
"""The schema of an operator (``OpOverload``): its name, arguments, results, and what it writes."""

attention_of_operators: Any = torch.ops.aten._scaled_dot_product_attention_math
"""Scaled dot-product attention without a kernel of its own, as torch computes it where no such kernel serves a call."""

_WITHOUT_TENSORS = frozenset(
    f"{name}Type"
    for name in "Bool Complex DeviceObj Float Generator Int Layout MemoryFormat Number ScalarType Stream String "
    "SymBool SymFloat SymInt".split()
)

COMPOSITE = "CompositeImplicitAutograd"
_REGISTERED_IN_CPP = re.compile(r": registered at .*\.(cpp|cc|cxx|c|cu|cuh|h|hpp|hip|mm|inc):\d+ ::")
_KEYS_OF_CALLS = ("CPU", "CUDA", "XPU", "MPS", "PrivateUse", "Composite", "Autograd", "ADInplaceOrView")


@cache
def is_composite(operator: Any) -> bool:
    """Return whether an operator is made of other operators for every device, so that none of its own kernels is
    needed."""
    if not isinstance(operator, OpOverload):
        return False
    name: str = operator.name()  # type: ignore[no-untyped-call]
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, COMPOSITE))


@cache
def can_decompose(operator: Any) -> bool:
    """Return whether ``operator.decompose(...)`` works: it has a composite kernel in C++ or in Python."""
    if not isinstance(operator, OpOverload):
        return False
    return bool(operator.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))


@cache
def written_arguments(operator: Any) -> frozenset[str]:
    """Names of the arguments that an operator writes in place."""
    arguments = schema_of(operator).arguments
    return frozenset(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)


@cache
def result_arguments(operator: Any) -> tuple[str, ...]:
    """Names of the arguments that are given a result's memory and form (``out=``): all are keywords."""
    return tuple(a.name for a in schema_of(operator).arguments if a.is_out)


def may_hold_tensors(argument: Any) -> bool:
    """Return whether what is given for an argument of a schema may be a tensor, or a sequence that holds some."""
    kind = argument.type
    while kind.kind() in ("ListType", "OptionalType"):
        kind = kind.getElementType()
    return kind.kind() not in _WITHOUT_TENSORS


def bound_arguments(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of a call by schema name, in schema order, defaults filled in."""
    bound: dict[str, Any] = {}
    for index, argument in enumerate(schema_of(operator).arguments):
        if index < len(args):
            bound[argument.name] = args[index]
        else:
            bound[argument.name] = kwargs.get(argument.name, argument.default_value)
    return bound


def is_python_operator(operator: Any) -> bool:
    """Return whether ``torch.library.custom_op`` made it: written in Python, so that what it calls can be watched."""
    return getattr(getattr(operator, "_schema", None), "name", None) in OPDEFS


def runs_python(name: str) -> bool:
    """Return whether compiled code that calls the operator (``"library::name.overload"``) may run Python: one of its
    kernels was registered from Python (``torch.library``), which no C++ source says of itself. True where it is
    unknown.

    Kernels for fake tensors do not count, nor those of transformations that compiled code does not use.
    """
    lines = torch._C._dispatch_dump(name).splitlines()
    kernels = [line for line in lines if line.startswith(_KEYS_OF_CALLS)]
    return not lines or any(_REGISTERED_IN_CPP.search(line) is None for line in kernels)


def python_kernel(operator: Any, device_type: str | None) -> Callable[..., Any]:
    """The Python function behind an ``is_python_operator`` on a kind of device (``cpu``, ``cuda``)."""
    definition = OPDEFS[schema_of(operator).name]
    kernel: Callable[..., Any] = definition._backend_fns.get(device_type, definition._init_fn)
    return kernel


def core_decompositions() -> dict[Any, Any]:
    """Operator -> Python function, for all operators outside of the core ATen set (``torch.export``'s table)."""
    from torch._decomp import core_aten_decompositions

    return dict(core_aten_decompositions().items())  # type: ignore[no-untyped-call]


def decompositions_of(operators: Sequence[Any]) -> dict[Any, Any]:
    """Operator -> Python function in simpler operators, for those of ``operators`` that have one."""
    from torch._decomp import get_decompositions

    return dict(get_decompositions(operators))
