"""Reasons why a candidate cannot be captured, in plain words, with the line of the user's source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from togi.core.quantities import first_line
from togi.core.user_code import error_line, printed_frames
from togi.subject.inputs import Inputs
from togi.subject.program import ProgramModule
from togi.subject.signature import Signature
from togi.subject.state import WithState
from togi.torch_internals.script import assigned_inside, holds_torchscript

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate

_MOST_CALLS = 4
"""Of one module by a program's own Python, where it is captured whole: both towers of a comparison, and no loop."""
FIXED_SIZE = "a size that differs between the samples is fixed by what it computes"
_OF_VALUES = "DataDependent"
_OF_NUMPY = ".numpy() is not supported"
_DEPENDS_ON_VALUES = "a branch or a size depends on the values of a tensor"
KEEP_SIZES_OPEN = "Compute with tensors of that size instead of looping over it, or give samples of one size"
_IN_PLAIN_WORDS = (
    (
        _OF_VALUES,
        _DEPENDS_ON_VALUES,
        "Compute both ways and choose with torch.where, or leave that step to a function outside of the module",
    ),
    ("Constraints violated", FIXED_SIZE, KEEP_SIZES_OPEN),
    (
        _OF_NUMPY,
        "it leaves torch for NumPy",
        "Use the function of torch",
    ),
)
"""What torch.export's message or its class holds; what that means; what to change."""


def why_not_whole(candidate: Candidate) -> str | None:
    """The reason why trying to capture it is useless, or would give what is right for these samples alone."""
    module = candidate.module
    if holds_torchscript(module) and candidate.signature.dynamic:
        return "it is TorchScript, which is captured for one size, and its samples or its declared sizes have several"
    given = {name for part in module.modules() if isinstance(part, WithState) for name in part.names}
    if assigned := [name for name in assigned_inside(module) if name not in given]:
        return f"it is TorchScript that keeps {assigned[0]} from call to call, which a captured graph would not"
    if as_given := next(_given_as_they_are(candidate.signature), ""):
        return (
            f"{as_given}, which a captured graph cannot be given: turn it into a tensor before, or tune what is below"
        )
    if not candidate.signature.inputs_facts:
        return "it is given no tensor, so that a captured graph would hold the answer to these samples"
    if isinstance(module, ProgramModule):
        if module.in_parts:
            return f"what is tuned goes into the modules that {module.name} runs: they are captured one by one"
        path, calls = _most_called(module, candidate.samples[0])
        if calls > _MOST_CALLS:
            return (
                f"{module.name} calls {path} {calls} times, and a captured graph would hold each of them: "
                "its modules are captured one by one"
            )
    return None


def _given_as_they_are(signature: Signature) -> Iterator[str]:
    """The arguments of other classes than a graph takes."""
    for name, structure in zip(signature.names, signature.arguments, strict=True):
        for path, leaf in structure.named_leaves(name):
            if leaf.kind == "opaque":
                yield f"{path} is {leaf.describe()}"


def _most_called(program: ProgramModule, sample: Inputs) -> tuple[str, int]:
    """The module that the program's own Python calls most often in one run, and how often."""
    counts, depth = Counter[str](), 0
    names = {id(module): path for path, module in program.named_modules() if module is not program}

    def enter(module: nn.Module, _: Any) -> None:
        nonlocal depth
        if id(module) in names:
            counts[names[id(module)]] += depth == 0
            depth += 1

    def leave(module: nn.Module, *_: Any) -> None:
        nonlocal depth
        depth -= id(module) in names

    given, watched = sample.clone(), register_module_forward_hook(leave, always_call=True)
    with register_module_forward_pre_hook(enter), watched, torch.no_grad():
        program(*given.args, **given.kwargs)
    return counts.most_common(1)[0] if counts else ("", 0)


def depends_on_values(error: Exception) -> bool:
    """Python reads what a tensor holds, which the tracer does not know."""
    text = f"{type(error).__name__}: {error}"
    return _OF_VALUES in text or _OF_NUMPY in text


def in_plain_words(error: Exception) -> str:
    """The obstacle in the way, at which line of the user's source, and what change would let it."""
    text = f"{type(error).__name__}: {error}"
    reason, change = next(
        (explanation for sign, *explanation in _IN_PLAIN_WORDS if sign in text), (first_line(error).rstrip("."), "")
    )
    line = error_line(error)
    return f"{reason}{f', at {line}' if line else ''}{f'. {change}' if change else ''}"


def found_rank(node: fx.Node) -> str:
    """A graph has one number of dimensions for each tensor, and engines convert it with that."""
    frames = printed_frames(node.meta.get("stack_trace") or "")
    line = f", at {frames[-1].filename}:{frames[-1].lineno} (`{frames[-1].line}`)" if frames else ""
    return (
        f"how many elements are found decides the number of dimensions, or of results, of {node.target}{line}. Name "
        "the dimension (squeeze(1)), so that it is the same for one element as for many"
    )
