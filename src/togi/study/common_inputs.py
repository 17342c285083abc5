"""Checks that subjects are called with the same inputs: times of different work do not tell which is faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from togi.core.errors import SubjectError
from togi.subject.batch import Batch, Shape
from togi.worker.protocol import Survey

_Call = tuple[tuple[str, Shape], ...]
"""Of each tensor its dtype and its shape; names do not matter."""
_SHOWN_CALLS = 3


def check_common_inputs(surveys: Mapping[str, Survey], batches: Mapping[str, Batch]) -> None:
    """Compare the tensors that the subjects take in each of their samples: how many, dtypes and sizes.

    Args:
        batches: by subject, the dimensions that hold the batch, where calls are made of several batch sizes. They do
            not have to agree then, nor does the number of samples that differ in nothing else.

    Raises SubjectError for the first subject that takes others than the first one.
    """
    calls = {name: _calls(survey, batches.get(name)) for name, survey in surveys.items()}
    for name, other in list(calls.items())[1:]:
        first = next(iter(calls))
        if other != calls[first]:
            raise SubjectError(
                f"{first} takes {_described(calls[first])}, and {name} takes {_described(other)}: their work differs, "
                "so their times do not tell which of them is faster. Let both return the same inputs, or compare them "
                "as they are with --different-inputs (different_inputs=True)"
            )


def _calls(survey: Survey, batch: Batch | None) -> tuple[_Call, ...]:
    dtypes = [facts.dtype for facts in survey.signature.inputs_facts]
    calls = tuple(tuple(zip(dtypes, _unbatched(shapes, batch), strict=True)) for shapes in survey.calls)
    return calls if batch is None else tuple(dict.fromkeys(calls))


def _unbatched(shapes: Sequence[Shape], batch: Batch | None) -> list[Shape]:
    """None stands for the batch."""
    dims = () if batch is None else batch.dims
    return [tuple(None if (i, dim) in dims else n for dim, n in enumerate(shape)) for i, shape in enumerate(shapes)]


def _described(calls: Sequence[_Call]) -> str:
    more = f" and {len(calls) - _SHOWN_CALLS} more" if len(calls) > _SHOWN_CALLS else ""
    return f"{', '.join(map(_call, calls[:_SHOWN_CALLS]))}{more}"


def _call(call: _Call) -> str:
    sizes = [f"{dtype} {'x'.join('N' if n is None else str(n) for n in shape) or 'scalar'}" for dtype, shape in call]
    return f"({', '.join(sizes)})"
