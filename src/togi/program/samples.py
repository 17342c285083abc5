"""The recorded calls of one form on which a module is tuned: few, of one structure, and as different in size as can be.

Apart from capturing, which takes long to import: ``togi run`` asks this of each module that it tunes.
"""

from __future__ import annotations

from collections.abc import Sequence

from togi.subject.inputs import Inputs
from togi.subject.sample_facts import arguments_in_common

_SAMPLES = 4


def of_one_structure(calls: Sequence[Inputs]) -> list[Inputs]:
    """Those whose numbers are constants, or counts of what lies next to them, together with the first's."""
    alike = list(calls[:1])
    for call in calls[1:]:
        if arguments_in_common([*alike, call]) is not None:
            alike.append(call)
    return alike


def spread(calls: Sequence[Inputs]) -> list[Inputs]:
    """A few of them, the first and the last among them."""
    if len(calls) <= _SAMPLES:
        return list(calls)
    step = (len(calls) - 1) / (_SAMPLES - 1)
    return [calls[round(i * step)] for i in range(_SAMPLES)]
