"""The engine ``parts``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from togi.core.errors import Refused
from togi.core.records import Facts
from togi.techniques.base import Applies, Engine, Options, Refuses

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate, Program
    from togi.subject.signature import Signature

_TECHNIQUES = re.compile(r"(?:^|\+)(\w+)")
_HOW = "a study puts it together from the parts of a program that it tuned"


@final
class Parts(Engine):
    """Run each part of a program on the engine that is fastest for it, and leave the rest in Python.

    What it does: a run of the program is recorded; the biggest modules that ``torch.export`` can capture are tuned,
    each as a subject of its own, on the calls that the program made; their engines then stand for the ``forward`` of
    those modules. What a call changes (a cache that it fills) is computed by the engine and written into the program's
    own objects. Calls of other forms or sizes than those that were proven run the original.

    When it applies: the program cannot be captured whole: ``generate``, a detector with its postprocessing, a pipeline,
    a function of several modules.

    When it refuses: the program can be captured whole, or no part takes a share of its time that matters.

    Claim: the program is faster by what its parts gain, weighted by their share of its time.

    Source: the cut of a graph at what a backend supports is common (PyTorch's graph breaks, ONNX Runtime's partitions);
    cutting at modules keeps the user's Python and needs no tracing of it.

    Cost and risk: weights of the parts exist twice unless the originals are freed (``keep_originals=False``). Greedy
    decoding turns two logits that are as good as equal into another token where an engine rounds differently.
    """

    id = "parts"
    provides = frozenset({"engine:parts"})

    def exact_with(self, options: Options) -> bool:
        """What is done to each part is its option, such as ``fold_batch_norm+openvino``."""
        from togi.techniques.registry import technique

        return all(technique(id).exact for work in options.values() for id in _TECHNIQUES.findall(str(work)))

    def applies(self, facts: Facts) -> Applies | Refuses:
        return Refuses(_HOW)

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        raise Refused(_HOW)

    def load(self, folder: Path, meta: dict[str, Any], signature: Signature, threads: int | None) -> Program:
        raise ImportError("parts are loaded into a program: togi.load(path).into(program)")
