"""The rule ``dataloader-without-persistent-workers``."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.call_sites import may_switch_on
from togi.lint.source.edits import set_argument
from togi.lint.source.fixes import fix
from togi.lint.source.loaders import loader_calls, made_by, passes
from togi.lint.source.model import Source
from togi.lint.source.syntax import argument

_POSITION = 14


class DataloaderWithoutPersistentWorkers(SourceRule):
    """A DataLoader that starts its workers anew in each epoch.

    What it reports: ``DataLoader`` with workers and without ``persistent_workers``, made once and iterated over again
    in each pass of a loop.

    Why it costs: at the end of each epoch the workers end, and at the start of the next they are started, import what
    they need, open the dataset again and fill their queues, while the device waits.

    When it stays silent: the loader is made inside that loop or used once, the number of workers may be 0
    (``persistent_workers=True`` raises then), ``**kwargs`` may hold it, and files of tests.

    Example::

        loader = DataLoader(dataset, num_workers=4)
        for epoch in range(epochs):
            for batch in loader:
                step(batch)

    Use instead::

        loader = DataLoader(dataset, num_workers=4, persistent_workers=True)

    Fix safety: the fix is not applied without being asked. Workers that live on keep their copy of the dataset, so what
    the main process changes in it between epochs no longer reaches them.

    Source: https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader
    """

    id = "dataloader-without-persistent-workers"

    def check(self, source: Source) -> Iterable[Finding]:
        ending = (call for call in loader_calls(source) if not may_switch_on(call, "persistent_workers", _POSITION))
        calls = [call for call in ending if _has_workers(source, call)]
        for call, line in (_passed_again(source, calls) if calls else {}).items():
            yield source.finding(
                self.id,
                call,
                "the workers of this DataLoader end and start anew in each pass of the loop over epochs",
                "add persistent_workers=True",
                evidence=f"line {line} goes through it again in each pass of a loop",
                fix=fix(
                    "Keep the workers",
                    set_argument(source, call, "persistent_workers", _POSITION, "True"),
                    safe=False,
                ),
            )


def _has_workers(source: Source, call: ast.Call) -> bool:
    workers = argument(call, "num_workers", 5)
    if workers is None:
        return False
    if isinstance(workers, ast.Call):
        return source.qualified(workers.func) in ("os.cpu_count", "multiprocessing.cpu_count")
    count = workers.value if isinstance(workers, ast.Constant) else source.value(workers).constant
    return isinstance(count, int) and count > 0


def _passed_again(source: Source, calls: list[ast.Call]) -> dict[ast.Call, int]:
    """Of loaders that each pass of a loop goes through, made outside of it: the line where it does."""
    lines: dict[ast.Call, int] = {}
    for loader, place in passes(source):
        loops = source.loops(place)
        for call in made_by(source, loader) if loops else ():
            if call in calls and isinstance(call, ast.Call) and loops[-1] not in source.ancestors(call):
                lines.setdefault(call, place.lineno)  # type: ignore[attr-defined]
    return lines
