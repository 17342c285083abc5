"""What is known where paths of control flow meet."""

from __future__ import annotations

from togi.lint.source.value import UNKNOWN, Kind, Value

Environment = dict[str, Value]


def join(one: Value, other: Value) -> Value:
    """What holds of both. A tensor met by something unknown stays a tensor that is not certain."""
    if one is other or one == other:
        return one
    if one.kind is other.kind is Kind.NONE:
        return Value(Kind.NONE)
    if one.kind is Kind.NONE:
        return other if other.optional else other.but(optional=True)
    if other.kind is Kind.NONE:
        return one if one.optional else one.but(optional=True)
    if one.kind is other.kind:
        return _same(one, other)
    if Kind.TENSOR in (one.kind, other.kind):
        tensor, rest = (one, other) if one.kind is Kind.TENSOR else (other, one)
        if rest.kind in (Kind.NUMBER, Kind.UNKNOWN):
            zero = rest.kind is Kind.NUMBER and rest.constant is not None
            return tensor.but(certain=tensor.certain and zero, call=None)
        return Value(optional=one.optional or other.optional)
    if {one.kind, other.kind} == {Kind.TUPLE, Kind.LIST}:
        return Value(Kind.LIST, element=join(_element(one), _element(other)))
    if {one.kind, other.kind} == {Kind.STRING, Kind.DEVICE}:
        return Value(Kind.DEVICE, device=_device(one, other))
    return UNKNOWN


def _same(one: Value, other: Value) -> Value:
    kind = one.kind
    if kind is Kind.TUPLE and one.items is not None and other.items is not None:
        if len(one.items) == len(other.items):
            return one.but(items=tuple(map(join, one.items, other.items)))
        return Value(Kind.LIST, element=join(_element(one), _element(other)))
    return one.but(
        device=_device(one, other),
        qualified=one.qualified if one.qualified == other.qualified else None,
        dtype=one.dtype if one.dtype == other.dtype else None,
        graph=one.graph if one.graph == other.graph else (True if True in (one.graph, other.graph) else None),
        certain=one.certain and other.certain,
        optional=one.optional or other.optional,
        batch=one.batch and other.batch,
        large=one.large or other.large,
        scalar=one.scalar and other.scalar,
        pinned=one.pinned if one.pinned == other.pinned else None,
        constant=one.constant if one.constant == other.constant else None,
        element=_elements(one, other),
        definition=one.definition if one.definition is other.definition else None,
        call=one.call if one.call is other.call else None,
    )


def _elements(one: Value, other: Value) -> Value | None:
    if one.element is None or other.element is None:
        return one.element or other.element  # an empty list takes the type of what is put in on the other path
    return join(one.element, other.element)


def _device(one: Value, other: Value) -> str | None:
    """``cuda`` if available, else ``cpu``: what a device tensor of the first kind is. Tensors must agree."""
    if one.device == other.device:
        return one.device
    if one.kind in (Kind.STRING, Kind.DEVICE, Kind.MODULE):
        return "cuda" if "cuda" in (one.device, other.device) else None
    return None


def _element(value: Value) -> Value:
    if value.items:
        return join_all(value.items)
    return value.element or UNKNOWN


element_of = _element


def join_all(values: tuple[Value, ...] | list[Value]) -> Value:
    found = values[0] if values else UNKNOWN
    for value in values[1:]:
        found = join(found, value)
    return found


def join_environments(environments: list[Environment]) -> Environment:
    """Names bound on some paths only keep the value of those paths."""
    first, *rest = environments
    joined = dict(first)
    for environment in rest:
        for name, value in environment.items():
            known = joined.get(name)
            if known is None:
                joined[name] = value
            elif known is not value:
                joined[name] = join(known, value)
    return joined
