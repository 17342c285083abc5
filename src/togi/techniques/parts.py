"""The parts of a program as a remedy: its page, which ``togi explain parts`` shows. ``togi.study.parts`` does it."""

from __future__ import annotations

from togi.core.recipe import PARTS, Stage
from togi.techniques.base import Remedy


class Parts(Remedy):
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

    id = PARTS
    stage = Stage.ENGINE
