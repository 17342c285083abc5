"""Compares outputs in all but their numbers: structure, dtype, device, shape, strides, shared memory.

Each function returns problems (sentences; any makes a candidate wrong) and notes (worth knowing, not wrong).

What counts as wrong: whatever makes a line of the caller's code raise, or compute something else, that works with the
original. A contiguous output that comes back otherwise (channels_last) makes ``view`` raise: wrong. The other way round
nothing breaks: a note. An output that newly shares memory with an input, another output or a later call's output
changes when that is changed: wrong. A copy where the original returned a view: a note.
"""

from __future__ import annotations

from collections import defaultdict

from torch import Tensor, nn

from togi.subject.classes import name_of
from togi.subject.compared import ATTRIBUTES, NUMBER, TEXT, ArrayOf, ItemsOf
from togi.subject.structure import Structure
from togi.torch_internals.deferred import Deferred
from togi.verify.observe import Observation, after_name
from togi.verify.truth import LeafTruth, OriginalAnswer, form_of

Findings = tuple[list[str], list[str]]
_WRAPPED = (name_of(ArrayOf), name_of(ItemsOf), NUMBER, TEXT, ATTRIBUTES)
"""Classes of the form in which values are compared: the first that they hold is the value's own class."""
NOT_COMPARED = "is not compared"
_PLAIN = (name_of(Tensor), name_of(nn.Parameter))


def form(seen: Observation, answer: OriginalAnswer) -> Findings:
    """All that is wrong or notable in the form of one answer. The tensors can be compared when nothing is wrong with
    structure and shapes (``comparable``)."""
    problems = structure_problems(seen, answer)
    if problems:
        return problems, []
    notes: list[str] = []
    for leaf, (name, tensor) in zip(answer.leaves, seen.leaves, strict=True):
        wrong, notable = leaf_form(leaf, name, tensor)
        problems += wrong
        notes += notable
    wrong, notable = sharing(seen, answer)
    return [*problems, *wrong], [*notes, *notable]


def structure_problems(seen: Observation, answer: OriginalAnswer) -> list[str]:
    new = sorted(set(seen.changed) - set(answer.changed))
    not_changed = sorted(set(answer.changed) - set(seen.changed))
    problems = [f"the input {_said(name)} is modified, the original leaves it as it is" for name in new]
    problems += [f"the input {_said(name)} is left as it is, the original modifies it" for name in not_changed]
    left = sorted(answer.left.keys() & seen.left)
    problems += filter(None, (unlike(answer.left[name], seen.left[name], after_name(name)) for name in left))
    different = unlike(answer.structure, seen.structure, "output")
    if different:
        problems.append(different)
    expected, names = [leaf.name for leaf in answer.leaves], [name for name, _ in seen.leaves]
    if not problems and expected != names:
        problems.append(f"the output holds the tensors {', '.join(names)}, the original's {', '.join(expected)}")
    return problems


def not_compared(structure: Structure) -> list[str]:
    """Notes on what an output holds that can be used and not compared: functions, iterators."""
    paths = defaultdict[str, list[str]](list)
    for path, leaf in structure.named_leaves("output"):
        if leaf.kind == "opaque":
            paths[leaf.type].append(path)
    return [
        f"{first}{f' (and {len(more)} like it)' if more else ''}, a {kind}, {NOT_COMPARED}"
        for kind, (first, *more) in paths.items()
    ]


def incomparable(structure: Structure) -> str:
    """What an output is or holds that cannot be compared, besides the attributes of objects; empty where nothing is."""
    if structure.type == ATTRIBUTES:
        return ""
    if structure.is_leaf:
        return f"a {structure.type}" if structure.kind == "opaque" else ""
    return next(filter(None, map(incomparable, structure.children)), "")


def unlike(original: Structure, found: Structure, path: str) -> str:
    """The first difference between two structures, as a sentence; empty when they are equal."""
    if original.kind != found.kind or original.type != found.type:
        return f"{path} is {_named(found)}, the original returns {_named(original)}"
    if (type(original.value), original.value) != (type(found.value), found.value):
        if original.is_leaf:
            return f"{path} is {found.value!r}, the original returns {original.value!r}"
        return f"{path} is {_named(found)} that keeps {found.value!r}, the original's keeps {original.value!r}"
    if original.keys != found.keys:
        order = " in another order" if set(original.keys) == set(found.keys) else ""
        return f"{path} has the keys {_listed(found.keys)}, the original {_listed(original.keys)}{order}"
    if len(original.children) != len(found.children):
        return f"{path} has {len(found.children)} items, the original {len(original.children)}"
    labels = original.keys or tuple(range(len(original.children)))
    for label, a, b in zip(labels, original.children, found.children, strict=True):
        different = unlike(a, b, f"{path}[{label!r}]")
        if different:
            return different
    return ""


def leaf_form(leaf: LeafTruth, name: str, tensor: Tensor) -> Findings:
    problems, notes = _class_form(leaf, name, tensor)
    for what, value in form_of(tensor).items():
        if value != getattr(leaf, what):
            problems.append(f"{name} has {what} {value}, the original {getattr(leaf, what)}")
    if problems or leaf.layout != "strided":
        return problems, notes
    same = all(a == b for a, b, n in zip(tensor.stride(), leaf.stride, leaf.shape, strict=True) if n > 1)
    if leaf.contiguous and not tensor.is_contiguous():
        problems.append(
            f"{name} is not contiguous (strides {tuple(tensor.stride())}), the original's is {leaf.stride}: "
            "view() would raise"
        )
    elif not same and tensor.numel():
        notes.append(f"{name} has strides {tuple(tensor.stride())}, the original {leaf.stride}")
    if leaf.requires_grad and not tensor.requires_grad:
        notes.append(f"{name} does not require gradients, the original's does where autograd is on")
    if tensor.is_inference():
        notes.append(f"{name} is an inference tensor: autograd cannot use it later")
    return problems, notes


def _class_form(leaf: LeafTruth, name: str, tensor: Tensor) -> Findings:
    """A tensor of another class answers otherwise to what its class defines. A parameter is a tensor that says how it
    is used, and an engine's answer that comes when it is asked for is one, too."""
    found = name_of(type(tensor))
    if leaf.tensor_class in ("", found):
        return [], []
    said = f"{name} is a {found}, the original's is a {leaf.tensor_class}"
    if leaf.tensor_class not in _PLAIN:
        return [said], []
    return [], [] if isinstance(tensor, Deferred) else [said]


def sharing(seen: Observation, answer: OriginalAnswer) -> Findings:
    problems = [
        f"{out} shares memory with the input {name}, the original's does not"
        for out, name in sorted(seen.shares_inputs - set(answer.shares_inputs))
    ]
    problems += [
        f"{a} and {b} share memory, the original's do not"
        for a, b in sorted(seen.shares_outputs - set(answer.shares_outputs))
    ]
    lost = (set(answer.shares_inputs) - seen.shares_inputs) | (set(answer.shares_outputs) - seen.shares_outputs)
    return problems, [f"{a} is a copy, the original returns a view of {b}" for a, b in sorted(lost)]


def comparable(seen: Observation, answer: OriginalAnswer) -> bool:
    """Whether every leaf has a counterpart of the same shape and kind, so that numbers can be compared."""
    if len(seen.leaves) != len(answer.leaves):
        return False
    return all(
        tuple(tensor.shape) == leaf.shape and (tensor.is_floating_point() or tensor.is_complex()) == _continuous(leaf)
        for leaf, (_, tensor) in zip(answer.leaves, seen.leaves, strict=True)
    )


def _continuous(leaf: LeafTruth) -> bool:
    return "float" in leaf.dtype or "complex" in leaf.dtype


def _said(name: str) -> str:
    """An array or a number is what holds its numbers."""
    return name.removesuffix(".array").removesuffix(".number")


def _named(structure: Structure) -> str:
    if structure.type in _WRAPPED:  # in the form in which it is compared
        return f"a {structure.children[0].type.removeprefix('builtins:')}"
    return "a tensor" if structure.kind == "tensor" else structure.describe()


def _listed(keys: tuple[object, ...]) -> str:
    return "(" + ", ".join(repr(key) for key in keys) + ")"
