"""The technique ``persistent_rnn``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from togi.core.quantities import plural
from togi.core.records import Facts
from togi.techniques.base import OUTSIDE_TORCH, Applies, GraphRewrite, Options, Refuses, no_compiler

if TYPE_CHECKING:
    from togi.graph.edit import EditableGraph


class PersistentRnn(GraphRewrite):
    """Run each recurrent layer in one compiled kernel whose threads keep their weights in their own caches.

    What it does: an LSTM, a GRU or a plain recurrent layer becomes one call of a kernel for all steps. In a step
    the last state is multiplied with a matrix, and for few sequences that costs what it costs to read the matrix.
    So each thread has the same units at every step, and their rows of weights stay in its core's cache; the
    directions of a layer run side by side, and threads that share one meet once a step. Gates and states never
    leave the caches. The inputs are multiplied with their weights before, for all steps.

    When it applies: to recurrent layers in float32 on a CPU.

    When it refuses: no recurrent layer, or none with constant weights; projections and packed sequences; no C++
    compiler. Not with engines that compute without Python, or outside of torch with an operator of their own, nor
    in fewer bits.

    Claim: two layers of GRU, 256 units, 100 steps of one sequence, on 2 cores of an AMD EPYC: 5.8 times as fast. Single
    layers of LSTM 1.5 to 2.5 times for one sequence, level for sixteen; of GRU 3.7 to 9.6 times, 2.2 for sixteen.
    ``togi explain persistent_rnn --prove`` measures it here.

    Source: Diamos et al., Persistent RNNs: Stashing Recurrent Weights On-Chip, ICML 2016,
    https://proceedings.mlr.press/v48/diamos16.html, there for a GPU's registers.

    Cost and risk: exact up to rounding, with the same bits for every number of threads. Two seconds of compilation,
    once a machine; an artifact that is loaded where there is no compiler computes step by step in torch, with a
    warning: right and slow. Where other work holds a core, threads that meet wait for it.
    """

    id = "persistent_rnn"
    devices = frozenset({"cpu"})
    rank = 90
    conflicts = frozenset({OUTSIDE_TORCH, "engine:aot_inductor", "engine:torchscript", "precision"})
    nothing_to_do = "no recurrent layer of the graph is one in float32, with constant weights and no projections"

    def applies(self, facts: Facts) -> Applies | Refuses:
        if facts.device != "cpu":
            return Refuses("the kernel is written for a CPU; cuDNN has one of its own")
        if facts.functions and not _LAYERS & facts.functions.keys():
            return Refuses("it has no recurrent layer")
        return no_compiler(facts) or Applies()

    def expected_speedup(self, facts: Facts, options: Options) -> float:
        return 1.8 if "lstm" in facts.functions else 4.5  # oneDNN has an LSTM, which torch runs for one

    def edit(self, graph: EditableGraph, options: Options) -> str:
        from togi.graph.persistent_rnn import make_persistent

        layers = make_persistent(graph)
        return f"{plural(layers, 'recurrent layer')} in a kernel that keeps its weights" if layers else ""


_LAYERS = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
