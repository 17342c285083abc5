"""The rule ``dataloader-without-workers``."""

from __future__ import annotations

from collections.abc import Iterable

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.edits import set_argument
from togi.lint.source.fixes import fix
from togi.lint.source.loaders import in_memory, loader_calls
from togi.lint.source.model import Source
from togi.lint.source.syntax import argument, is_constant

_POSITION = 5
_ADVICE = "num_workers=4 (a few less than the cores; start with 4 and measure)"


class DataloaderWithoutWorkers(SourceRule):
    """A DataLoader that loads in the training process.

    What it reports: ``torch.utils.data.DataLoader`` without ``num_workers``, or with 0.

    Why it costs: reading, decoding and augmenting a batch then happens between two steps, and the device waits for it.
    With workers it happens while the step before runs.

    When it stays silent: the samples lie in memory (``TensorDataset``, a list), ``num_workers`` is set from something,
    ``**kwargs`` may hold it, and files of tests (``test_*.py``).

    Example::

        loader = DataLoader(ImageFolder(root, transform), batch_size=64)

    Use instead::

        loader = DataLoader(ImageFolder(root, transform), batch_size=64, num_workers=4, persistent_workers=True)

    Fix safety: the fix is not applied without being asked. Where workers are spawned (Windows, macOS), a script needs
    its ``if __name__ == "__main__"``, and the dataset must be picklable.

    Source: https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading
    """

    id = "dataloader-without-workers"

    def check(self, source: Source) -> Iterable[Finding]:
        for call in loader_calls(source):
            workers = argument(call, "num_workers", _POSITION)
            left_open = workers is None
            if (left_open or is_constant(workers, 0)) and not in_memory(source, call):
                yield source.finding(
                    self.id,
                    call,
                    "this DataLoader loads each batch in the training process, between two steps",
                    f"{'add' if left_open else 'write'} {_ADVICE}",
                    evidence="no num_workers is given, and 0 is its default" if left_open else "num_workers is 0",
                    fix=fix(
                        "Load with four workers",
                        set_argument(source, call, "num_workers", _POSITION, "4"),
                        safe=False,
                    ),
                )
