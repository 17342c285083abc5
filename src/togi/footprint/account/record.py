"""The account of a run's memory, as a record."""

from __future__ import annotations

from togi.core.backports import StrEnum
from togi.core.records import SCHEMA_VERSION, Record


class Category(StrEnum):
    """The purpose of a block of memory."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    INPUT = "input"
    GRADIENT = "gradient"
    OPTIMIZER = "optimizer state"
    ACTIVATION = "activation"
    """Made in the forward pass and alive when backward begins: autograd, or a name, keeps it."""
    OUTPUT = "output"
    TEMPORARY = "temporary"
    WORKSPACE = "workspace"
    """Taken by a kernel for itself, or by autograd's engine, and never seen as a tensor."""


BEFORE_THE_RUN = (Category.PARAMETER, Category.BUFFER, Category.INPUT, Category.OPTIMIZER)
"""What is there when a step begins."""


class Holding(Record):
    """Memory at the peak with one owner: equal category, module, line and operation are one holding."""

    bytes: int
    blocks: int
    category: Category
    module: str = ""
    line: str = ""
    op: str = ""
    phase: str = ""


class KeptStorage(Record):
    """One storage that autograd keeps for backward, counted once however many operations keep it."""

    bytes: int
    kept_by: tuple[str, ...]
    """The autograd nodes, with the name under which each keeps it: ``GeluBackward0.self``."""
    category: Category
    module: str = ""
    line: str = ""
    op: str = ""


class HeldName(Record):
    """A local name that keeps memory alive after its last use."""

    name: str
    line: str
    """Where the frame that holds it stood at the peak."""
    bytes: int
    saved_bytes: int
    """How much lower the peak would be if the names of this line were deleted after their last use: replayed, not
    guessed."""


class PeakMoment(Record):
    """When the peak was reached."""

    op: str
    module: str = ""
    line: str = ""
    phase: str = ""
    share_of_run: float = 0.0


class CategoryTimeline(Record):
    """Bytes alive over the run, by category, thinned out where nothing is lost to the eye."""

    ms: tuple[float, ...]
    bytes: dict[Category, tuple[int, ...]]
    """One series for each category that ever held something; together they are the whole."""


class Account(Record):
    """An account of the memory of one run. All bytes are those of torch's allocator unless said otherwise."""

    schema_version: int = SCHEMA_VERSION
    subject: str = ""
    device: str = "cpu"
    train: bool = False
    peak_bytes: int
    """Everything alive at the peak, what was there before the run (``baseline_bytes``) included."""
    baseline_bytes: int
    """Parameters, buffers, inputs, optimizer state and whatever else was known before the run."""
    peak: PeakMoment
    holdings: tuple[Holding, ...]
    """Owners at the peak, the largest first. Their bytes sum to ``peak_bytes``."""
    kept: tuple[KeptStorage, ...] = ()
    held_names: tuple[HeldName, ...] = ()
    minimum_bytes: int = 0
    """Parameters, buffers, inputs, outputs, and gradients and optimizer state where there are any."""
    timeline: CategoryTimeline
    plain_ms: float = 0.0
    watched_ms: float = 0.0
    notes: tuple[str, ...] = ()

    def by_category(self) -> dict[Category, int]:
        """Bytes at the peak; sums to ``peak_bytes``."""
        sums: dict[Category, int] = {}
        for holding in self.holdings:
            sums[holding.category] = sums.get(holding.category, 0) + holding.bytes
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    @property
    def factor_x(self) -> float:
        """The peak in multiples of the least that it could be."""
        return self.peak_bytes / self.minimum_bytes if self.minimum_bytes else 0.0
