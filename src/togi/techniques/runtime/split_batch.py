"""The technique ``split_batch``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from togi.core.callers import MOST_THREADS, Callers
from togi.core.errors import Refused
from togi.core.records import Facts, Stage, TensorFacts
from togi.techniques.base import Applies, Options, Refuses, Technique
from togi.techniques.runtime.threads import with_threads

if TYPE_CHECKING:
    from torch import Tensor

    from togi.graph.candidate import Candidate
    from togi.subject.inputs import Inputs
    from togi.subject.signature import Signature

LEAST_ROWS = 2
"""Of a piece, where the size of the batch varies: exporters treat a size of 1 as a case of its own."""


class SplitBatch(Technique):
    """Answer a batch in pieces.

    What it does: cuts every call along the first dimension into ``pieces`` of (nearly) the same number of rows and puts
    their outputs together. With ``at_once`` each piece is answered by a thread of its own, which has its share of the
    threads of a call: two images on a core each, in place of one after the other on both. Without, one piece is
    answered after the other: smaller activations may stay in the processor's caches. Where the size of the batch is
    fixed, the engine is built for a piece.

    When it applies: on a CPU, where some input and every output have the same first dimension of two or more. Inputs
    with another one (a mask for all rows) are given to each piece whole.

    When it refuses: a call has one row, or outputs have no row for each of the input; the model draws random numbers or
    changes a buffer in each call; it is Python code round several modules. It refuses every model whose rows are not
    shown to be computed apart from each other, and names the operator and the line. Examples are batch statistics, a
    maximum over all rows, a number of rows in a formula, a branch by values, an operator that togi does not know.

    Claim: ``at_once`` uses cores that an operator leaves idle, such as singular values and eigenvalues, which PyTorch
    computes for one matrix of a batch after the other: 1.7 to 1.9 x on 2 cores of an Intel Xeon. Where operators take
    microseconds it loses, since Python runs one thread at a time. ``togi explain split_batch --prove`` measures it
    here.

    Source: https://docs.openvino.ai/2025/openvino-workflow/running-inference/optimize-inference/optimizing-throughput.html
    (streams in place of batches)

    Cost and risk: that no row depends on another is proven on the model's operators, for all values, and verified on
    the samples besides. The proof runs the model two or three times on tensors without values, which takes up to 10 s.
    Outputs are copied once more. With ``at_once`` a process keeps a pool of threads.
    """

    id = "split_batch"
    stage = Stage.RUNTIME
    devices = frozenset({"cpu"})
    provides = frozenset({"threads"})
    conflicts = frozenset({"threads"})

    def applies(self, facts: Facts) -> Applies | Refuses:
        if facts.program:
            return Refuses("it is Python code round modules, which may do anything with a batch")
        if facts.random or facts.buffers_change:
            return Refuses("a call draws random numbers or changes a buffer, so several calls are not one")
        if facts.callers > 1:
            return Refuses("several callers at once keep the cores busy, with pieces of a batch or without")
        if not _batched(facts.inputs, facts.outputs):
            return Refuses(
                "no batch of two or more rows goes through it: the first dimensions of its outputs differ, are 1, or "
                "are that of no input"
            )
        return Applies()

    def options(self, facts: Facts) -> Sequence[Options]:
        rows = _rows(facts.outputs)
        at_once = [count for count in range(2, facts.machine.threads + 1) if _divides(count, rows)][-1:]
        in_turn = [count for count in (2, 4) if _divides(count, rows)]
        offered: list[Options] = [{"pieces": count, "at_once": True} for count in at_once]
        offered += [{"pieces": count, "at_once": False} for count in in_turn]
        return offered or [{"pieces": rows or 2, "at_once": False}]

    def expected_speedup(self, facts: Facts, options: Options) -> float:
        small = facts.latency_ms is not None and facts.latency_ms < 5
        return 1.05 if small and options.get("at_once") else 0.95

    def configure(self, candidate: Candidate, options: Options) -> Candidate:
        count, at_once = _chosen(options)
        whole = candidate.signature
        if whole.opaque:
            raise Refused(f"pieces cannot be put together: {whole.opaque}")
        batched = _batched(whole.inputs_facts, whole.outputs_facts)
        rows = _rows(whole.outputs_facts)
        if not batched or (rows is not None and not _divides(count, rows)):
            raise Refused(f"a batch of {rows} rows cannot be cut into {count} pieces of the same size")
        _must_be_apart(candidate, batched, count)
        callers = Callers(count) if at_once else None
        if at_once:
            threads = candidate.threads or candidate.facts.machine.threads
            candidate = candidate.with_(threads=min(max(1, threads // count), MOST_THREADS), at_once=count)
        if rows is not None:
            candidate = _of_pieces(candidate, batched, rows // count)
        return candidate.with_(around=lambda call: _pieces(call, whole, batched, count, callers))

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        if not options.get("at_once"):
            return candidate
        assert candidate.threads is not None  # by configure
        return with_threads(candidate, candidate.threads)


def _rows(outputs: Sequence[TensorFacts]) -> int | None:
    """First dimension of the outputs; None where it varies."""
    return outputs[0].shape[0] if outputs and outputs[0].shape else 1


def _batched(inputs: Sequence[TensorFacts], outputs: Sequence[TensorFacts]) -> tuple[int, ...]:
    """Inputs that are cut: those with as many rows as every output. None, where there are no two rows to cut."""
    rows = _rows(outputs)
    if (rows is not None and rows < 2) or any(facts.shape[:1] != (rows,) for facts in outputs):
        return ()
    return tuple(i for i, facts in enumerate(inputs) if facts.shape[:1] == (rows,))


def _divides(count: int, rows: int | None) -> bool:
    return count > 1 and (rows is None or rows % count == 0)


def _chosen(options: Options) -> tuple[int, bool]:
    count, at_once = options.get("pieces"), options.get("at_once")
    if type(count) is not int or not 2 <= count <= MOST_THREADS or type(at_once) is not bool:
        raise Refused(
            f"pieces must be a number of two or more, up to {MOST_THREADS}, not {count!r}, and at_once True or False"
        )
    return count, at_once


def _must_be_apart(candidate: Candidate, batched: Sequence[int], count: int) -> None:
    """Shown on the operators of the module; of what was loaded it has been. Raises Refused."""
    from togi.graph.dependence.candidates import why_rows_depend

    rows = _rows(candidate.signature.outputs_facts)
    pieces = None if rows is None else rows // count
    if candidate.samples and (reason := why_rows_depend(candidate, batched, pieces)):
        raise Refused(f"the rows of a batch are not shown to be computed apart from each other: {reason}")


def _of_pieces(candidate: Candidate, batched: Sequence[int], rows: int) -> Candidate:
    """Give it signature and samples of a piece: what the engine is built for."""
    whole = candidate.signature

    def first_piece(sample: Inputs) -> Inputs:
        tensors = whole.flatten_inputs(sample.args, sample.kwargs)
        args, kwargs = whole.build_inputs([t[:rows] if i in batched else t for i, t in enumerate(tensors)])
        return type(sample)(args, kwargs)

    def cut(facts: TensorFacts) -> TensorFacts:
        return facts.model_copy(update={"shape": (rows, *facts.shape[1:])})

    inputs = tuple(cut(facts) if i in batched else facts for i, facts in enumerate(whole.inputs_facts))
    outputs = tuple(map(cut, whole.outputs_facts))
    return candidate.with_(
        signature=whole.model_copy(update={"inputs_facts": inputs, "outputs_facts": outputs}),
        samples=tuple(map(first_piece, candidate.samples)),
        calibration=tuple(map(first_piece, candidate.calibration)),
    )


def _pieces(
    call: Callable[..., Any], whole: Signature, batched: Sequence[int], count: int, callers: Callers | None
) -> Callable[..., Any]:
    """A call of the whole, made of calls of its pieces."""

    def split(*args: Any, **kwargs: Any) -> Any:
        import torch

        tensors = whole.checked(args, kwargs)
        rows = tensors[batched[0]].shape[0]
        parts = count if whole.outputs_facts[0].shape[0] is not None else min(count, rows // LEAST_ROWS)
        if parts < 2:
            return call(*args, **kwargs)
        ends = [rows * part // parts for part in range(parts + 1)]
        outputs: list[list[Tensor]] = [[] for _ in range(parts)]

        def answer(part: int) -> None:
            rows_of = slice(ends[part], ends[part + 1])
            cut = [tensor[rows_of] if i in batched else tensor for i, tensor in enumerate(tensors)]
            piece_args, piece_kwargs = whole.build_inputs(cut)
            outputs[part] = whole.flatten_outputs(call(*piece_args, **piece_kwargs))

        if callers is not None:
            callers.answer(answer, parts)
        else:
            for part in range(parts):
                answer(part)
        return whole.build_outputs([torch.cat(leaf) for leaf in zip(*outputs, strict=True)])

    return split
