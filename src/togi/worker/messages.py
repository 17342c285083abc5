"""The messages between parent, server and children: a record each, which receivers ``match`` by its class. No torch.

The parent asks a server for children (``ToServer``) and a trial for what it needs next (``ToTrial``). A child reports
where it is (``ChildEvent``) and answers (``ChildAnswer``). What a child does after it has started is its ``Job``.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from togi.artifact.manifest import Saved
from togi.core.backports import StrEnum
from togi.core.recipe import AnyRecipe
from togi.core.records import Decisions, Ending, ErrorReport, Footprint, LeafError, Record
from togi.measure.turn import Turn, Warmup
from togi.subject.batch import Batch
from togi.worker.channel import Vocabulary
from togi.worker.protocol import AskedAtOnce, PartRef, Raised, ServerConfig, Survey


class _JobFields(Record):
    log: str
    """File that takes what the child prints."""
    threads: int | None = None
    """For torch; None: those of the server's config."""
    part: PartRef | None = None
    """What it works on. None: the whole subject."""
    keeps_memory: bool = True
    """malloc keeps what is freed, as in all that a study compares (``measure/allocator``); False: as in a user's own
    process."""


class SurveySubject(_JobFields):
    """Write facts and signature of the subject into the run's folder. Answer: ``Surveyed``."""

    kind: Literal["survey"] = "survey"


class CaptureSubject(_JobFields):
    """Keep what ``torch.export`` makes of the subject, and serve those who want it where that can be.

    Answer: ``SubjectCaptured`` or ``SubjectNotCaptured``; where it cannot serve, ``IdleRewrites`` follow.
    """

    kind: Literal["capture"] = "capture"


class FindIdleRewrites(_JobFields):
    """Find the rewrites with nothing to do, in the child that captured the subject. Answer: ``IdleRewrites``."""

    kind: Literal["rewrites"] = "rewrites"


class MakeTruth(_JobFields):
    """Compute what trials are compared with, into the run's folder. Answer: ``TruthMade``."""

    kind: Literal["truth"] = "truth"
    rest: bool = False
    """What was left out at first: of a training step, as recipes that are equal to the bit need less; validation data
    that the original takes long to answer, as exact recipes need none."""


class CallFunction(_JobFields):
    """Call a function with the subject and a request. Answer: ``Returned`` or ``Raised``."""

    kind: Literal["call"] = "call"
    function: str
    """``module:name``."""
    request: str
    """The record that the function takes, ``encoded``: its annotation says which class it is."""


class Purpose(StrEnum):
    """Of a verification: it says which half of the validation data judges."""

    TRIAL = "trial"
    """What it finds decides what is chosen."""
    PROOF = "proof"
    """It confirms what was chosen, on data that did not choose."""


class _TrialFields(_JobFields):
    recipe: AnyRecipe
    check: Purpose | None = Purpose.TRIAL
    """Verify against the truth of the run's folder, and what for; None for ``bench``, which compares speed alone."""
    batch: Batch | None = None
    """What is timed are the samples with so many rows; None: as they are. What is verified are always these."""


class TryRecipe(_TrialFields):
    """Build it, verify it, and then do what the parent asks for (``ToTrial``). Answer: ``Ready``."""

    kind: Literal["trial"] = "trial"


class TryArtifact(_TrialFields):
    """Load an artifact, and go on as with a recipe."""

    kind: Literal["artifact"] = "artifact"
    folder: str
    identity: str = ""
    """Of the artifact's manifest, as the parent checked it (``Manifest.identity``); empty: it is the run's own."""
    native: bool = True
    """The artifact's engines may be programs (``Engine.native``)."""
    unproven: bool = False
    """Their answers may depend on instructions that this processor lacks: they are about to be verified."""
    accepted_on: str = ""
    """The identity of the validation data by which it was chosen and proven; all of any others prove it. Empty: it is
    the run's own, or nobody knows."""
    proven_on: tuple[PartRef, ...] = ()
    """Of an artifact of parts: the calls that the original makes of each."""


AnyTrial: TypeAlias = TryRecipe | TryArtifact
Job: TypeAlias = Annotated[
    SurveySubject | CaptureSubject | FindIdleRewrites | MakeTruth | CallFunction | AnyTrial, Field(discriminator="kind")
]


# --- to a server, with the socket of the child


class Fork(Record):
    """Fork a child for this job. Answer: ``Started``."""

    job: Job


class Become(Record):
    """Do this job yourself, and end with it: of servers that cannot fork."""

    job: Job


class Quit(Record):
    """End, with all that you started."""


ToServer: TypeAlias = Fork | Become | Quit


# --- from a server


class Loaded(Record):
    """The subject is loaded. The server's first message."""

    fork_safe: bool


class Started(Record):
    pid: int
    shared_bytes: int
    """What the child has of its server, which both hold once."""


class Exited(Record):
    pid: int
    status: int
    """Exit code, or minus the signal's number."""


FromLoadingServer: TypeAlias = Loaded | Raised
FromServer: TypeAlias = Started | Exited


# --- to a trial that is ready


class Warm(Record):
    """Call until the times stop falling. Answer: ``Warmup``."""

    limit_s: float | None = None
    """For the passes after the first call; None: as long as ``measure.warm`` does by itself."""


class TakeTurn(Record):
    """Answer: ``Turn``."""

    passes: int


class MeasureFootprint(Record):
    """Answer: ``Footprint``."""


class MeasurePhases(Record):
    """How long a step is in each of its phases. Answer: ``Phases``."""


class AskAtOnce(Record):
    """Several callers ask for what is right for one. Answer: ``AskedAtOnce``."""

    callers: int


class Rest(Record):
    """Give back what the allocator of the device keeps for the next call. Answer: ``Rested``."""


class Save(Record):
    """Write the artifact's files. Answer: ``Saved``."""

    folder: str
    ask_s: float
    """About how long to ask for values that no sample shows."""


ToTrial: TypeAlias = Warm | TakeTurn | MeasureFootprint | MeasurePhases | AskAtOnce | Rest | Save


# --- from a child: where it is


class Entered(Record):
    """It goes on to another phase."""

    phase: str
    limit_s: float | None = None
    """So long may pass until it sends something, in place of what was allowed for all of it."""


class Built(Record):
    build_s: float
    notes: tuple[str, ...]


class Verified(Record):
    report: ErrorReport
    notes: tuple[str, ...]


class Found(Record):
    """The answer of a function, if it does not come to return a better one."""

    answer: str
    """``encoded``."""


ChildEvent: TypeAlias = Entered | Built | Verified | Found | Ending


# --- from a child: what was asked for


class Surveyed(Record):
    survey: Survey
    fingerprint: str


class SubjectCaptured(Record):
    conditions: tuple[str, ...]
    """Of the sizes for which it was captured (``Signature.conditions``)."""
    forks: bool
    """The child goes on as a server."""


class SubjectNotCaptured(Record):
    reason: str


class IdleRewrites(Record):
    reasons: dict[str, str]
    """By choice, why it has nothing to do in the captured subject."""


class TruthMade(Record):
    notes: tuple[str, ...]
    complete: bool = True
    """Else it proves only recipes that need no rest."""
    rest_s: float = 0.0
    """About how long the rest takes; nothing where nobody knows."""
    metric_problem: str = ""
    """Why the subject's metric cannot judge anything."""


class Returned(Record):
    answer: str
    """The record that a function returned, ``encoded``."""


class Ready(Record):
    """A trial is built, and verified where that was asked for."""


class Phases(Record):
    phases_ms: dict[str, float]
    """Of one training step, by phase (``measure.phases``)."""


class Rested(Record):
    pass


ChildAnswer: TypeAlias = (
    Surveyed
    | SubjectCaptured
    | SubjectNotCaptured
    | IdleRewrites
    | TruthMade
    | Returned
    | Raised
    | Ready
    | Warmup
    | Turn
    | Footprint
    | Phases
    | AskedAtOnce
    | Rested
    | Saved
)
FromChild: TypeAlias = ChildEvent | ChildAnswer

CONFIG: Vocabulary[ServerConfig] = Vocabulary(ServerConfig)
TO_SERVER: Vocabulary[ToServer] = Vocabulary(ToServer)
FROM_LOADING_SERVER: Vocabulary[FromLoadingServer] = Vocabulary(FromLoadingServer)
FROM_SERVER: Vocabulary[FromServer] = Vocabulary(FromServer)
TO_TRIAL: Vocabulary[ToTrial] = Vocabulary(ToTrial)
FROM_CHILD: Vocabulary[FromChild] = Vocabulary(FromChild)


def build_records() -> None:
    """Build what pydantic builds at the first use of a record: in a server, before each child would do so again."""
    for kind in (*TO_TRIAL.kinds, *FROM_CHILD.kinds, ErrorReport, LeafError, Decisions):
        kind.model_rebuild()
