"""Recorded calls in files: tensors as safetensors, their structure as JSON. Nothing is pickled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from togi.core.errors import SubjectError
from togi.core.records import Record
from togi.subject.inputs import Inputs
from togi.subject.structure import Structure


class _StoredCall(Record):
    args: Structure
    kwargs: Structure


class _StoredCalls(Record):
    calls: tuple[_StoredCall, ...]


def write_inputs(path: Path, given: Sequence[Inputs]) -> None:
    """``path.json`` and ``path.safetensors``. Raises SubjectError where a call holds what has no tensor form."""
    from safetensors.torch import save_file

    calls = tuple(
        _StoredCall(args=Structure.of(tuple(call_inputs.args)), kwargs=Structure.of(dict(call_inputs.kwargs)))
        for call_inputs in given
    )
    for call in calls:
        opaque = [leaf.type for part in (call.args, call.kwargs) for leaf in part.leaves() if leaf.kind == "opaque"]
        if opaque:
            raise SubjectError(f"a call is given a {opaque[0]}, which has no tensor form")
    tensors = {
        f"{number}.{index}": tensor.detach().clone().contiguous()
        for number, call_inputs in enumerate(given)
        for index, tensor in enumerate(call_inputs.tensors())
    }
    save_file(tensors, str(path.with_suffix(".safetensors")))
    path.with_suffix(".json").write_text(_StoredCalls(calls=calls).to_json(), encoding="utf-8")


def read_inputs(path: Path) -> list[Inputs]:
    """Read what ``write_inputs`` wrote."""
    from safetensors.torch import load_file

    tensors = load_file(str(path.with_suffix(".safetensors")))
    calls = []
    for number, call in enumerate(_StoredCalls.from_json(path.with_suffix(".json").read_text(encoding="utf-8")).calls):
        count = sum(1 for name in tensors if name.startswith(f"{number}."))
        remaining = iter([tensors[f"{number}.{index}"] for index in range(count)])
        calls.append(Inputs(call.args.build(remaining), call.kwargs.build(remaining)))
    return calls
