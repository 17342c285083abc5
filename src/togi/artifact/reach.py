"""Proves the files of an artifact beyond the samples: the chosen engine, and the fallback that stands in for it.

The fallback is another recipe, captured by ``torch.export``, so it is asked like the chosen one. It may be proven for
fewer values, which its link then states; where no bound keeps out what it answers wrongly, it is left out.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any, Protocol

from togi.artifact.links import EAGER
from togi.artifact.manifest import Link, Saved
from togi.core.quantities import first_line
from togi.measure.memory import is_out_of_memory
from togi.subject.domain import Domain
from togi.verify.beyond import Reach

_LIVE_SHARE = 0.75
"""Of the time for asking, where files are asked as well. They have what is left of it, and at least the rest."""

Call = Callable[..., Any]


class Ask(Protocol):
    """``reach_of`` of one study: asks a program for values beyond the samples."""

    def __call__(self, call: Call, *, limit_s: float) -> Reach: ...


def proven(
    written: Saved,
    live: Call | None,
    stored: Callable[[Link], Call | None],
    ask: Ask,
    limit_s: float,
    *,
    exported: bool,
) -> Saved:
    """What was written, with the values for which it answers as the original does.

    Args:
        live: the chosen engine's program as it was verified. None: its files alone are asked.
        stored: loads the files of a link and verifies them on the samples; raises what is wrong with them. None: they
            are the settings of the original alone.
        exported: the chosen engine's files hold the same export as its fallback's.
    """
    began = time.monotonic()
    reach = Reach(()) if live is None else ask(live, limit_s=_LIVE_SHARE * limit_s)
    asked = written.model_copy(update={"domains": reach.domains, "notes": (*written.notes, *reach.notes)})
    if reach.problems or written.links[-1].engine != EAGER:
        return asked.model_copy(update={"wrong": next(iter(reach.problems), "")})
    least_s = limit_s if live is None else (1 - _LIVE_SHARE) * limit_s
    files, wrong = _of_files(written.links[-1], stored, ask, max(least_s, limit_s - (time.monotonic() - began)))
    return _of_one_export(asked, files, wrong) if exported else _with_fallback(asked, files, wrong)


def _of_one_export(saved: Saved, files: Reach, wrong: str) -> Saved:
    notes = tuple(dict.fromkeys((*saved.notes, *files.notes)))
    return saved.model_copy(update={"domains": _both(saved.domains, files.domains), "notes": notes, "wrong": wrong})


def _with_fallback(saved: Saved, files: Reach, wrong: str) -> Saved:
    *before, fallback = saved.links
    if wrong:
        note = f"no fallback for machines that cannot run {before[0].engine}: {wrong}"
        return saved.model_copy(update={"links": tuple(before), "notes": (*saved.notes, note)})
    domains = _both(saved.domains, files.domains)
    fewer = fallback.model_copy(update={"domains": () if domains == saved.domains else domains})
    notes = [f"of the fallback {EAGER}: {note}" for note in files.notes if note not in saved.notes]
    return saved.model_copy(update={"links": (*before, fewer), "notes": (*saved.notes, *notes)})


def _of_files(link: Link, stored: Callable[[Link], Call | None], ask: Ask, limit_s: float) -> tuple[Reach, str]:
    """How far they are proven, and what is wrong with them."""
    try:
        call = stored(link)
    except Exception as error:  # foreign code: what was exported may not load, or may raise
        if is_out_of_memory(error):  # it stands next to the original and the program that it was made of
            return Reach((), notes=(f"no memory was left to ask the files of {link.engine}",)), ""
        wrong = f"what {link.engine} wrote does not answer the samples as the original does: {first_line(error)}"
        return Reach(()), wrong
    reach = Reach(()) if call is None else ask(call, limit_s=limit_s)
    return reach, next(iter(reach.problems), "")


def _both(one: tuple[Domain, ...], other: tuple[Domain, ...]) -> tuple[Domain, ...]:
    """The values that lie in both; empty: all."""
    return tuple(a & b for a, b in itertools.zip_longest(one, other, fillvalue=Domain()))
