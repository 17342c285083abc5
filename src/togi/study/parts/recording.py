"""Recording of a program: which parts it has, and what the original calls them with."""

from __future__ import annotations

from togi.program.parts import CutRequest, Cuts
from togi.worker.call import ChildCall
from togi.worker.pool import WorkerPool
from togi.worker.protocol import Survey
from togi.worker.supervise import Limits

_TIMEOUT_S = 600.0

CUT = ChildCall(function="togi.program.cuts:find_cuts", request=CutRequest, answer=Cuts, purpose="recorded")


def record_parts(pool: WorkerPool) -> Cuts:
    """The parts of the pool's program with their calls, on which artifacts of parts are proven from then on.

    Raises TogiError when the program cannot be recorded.
    """
    config = pool.config
    request = CutRequest(
        folder=str(pool.folder),
        device=config.device,
        seed=config.seed,
        machine=Survey.read(pool.folder).facts.machine,
        callers=config.callers,
    )
    cuts = CUT.run(pool, request, Limits(timeout_s=_TIMEOUT_S))
    pool.prove_on(
        (part.entry(path).key, part.effects, pool.folder / file)
        for part in cuts.parts
        for path, file in part.proof.items()
    )
    return cuts
