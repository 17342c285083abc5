"""The engine ``eager``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from togi.core.records import Facts
from togi.techniques.base import IN_PLACE, Applies, Engine, Options, Refuses

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate, Program
    from togi.subject.signature import Signature


class Eager(Engine):
    """Run the module as it is, one PyTorch operator after the other.

    What it does: nothing to the calls; it gives what the earlier stages made (folded, converted to channels_last,
    cast) a file form, ``torch.export`` of the module with its weights, so that it can be saved and loaded without
    pickle. It is also what an artifact falls back to when its own engine cannot run.

    When it applies: always.

    When it refuses: never; saving is refused where ``torch.export`` cannot capture the module, but for settings alone:
    those of a program are saved without it, and put round the calls of its live modules.

    Claim: no speed-up of its own; ``togi explain eager --prove`` shows a ratio of one within noise.

    Source: https://docs.pytorch.org/docs/stable/export.html

    Cost and risk: none while it is live. A loaded graph has Python control flow fixed as it was on the samples.
    """

    id = "eager"
    provides = frozenset({"engine:eager"})
    files = ("model.pt2",)

    def applies(self, facts: Facts) -> Applies | Refuses:
        return Applies()

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        from togi.techniques.engine.programs.exported import ExportableProgram

        return candidate.with_(program=ExportableProgram(candidate))

    def repro(self, options: Options, threads: int | None) -> str | None:
        return "run = program.module()"

    def load(self, folder: Path, meta: dict[str, Any], signature: Signature, threads: int | None) -> Program:
        from togi.techniques.engine.programs.exported import FlatExportableProgram, load_module
        from togi.techniques.engine.programs.in_place import InPlaceProgram

        if meta.get(IN_PLACE):
            return InPlaceProgram(lambda forward: forward)
        return FlatExportableProgram(load_module(folder), signature)
