"""Permits: what a command does only where a person asks for it, each time, and never because of a subject's name.

A name may come from anywhere (a journal, an artifact, a file of settings), and must not decide what is downloaded or
which code is run. The command line has a flag for each permit; in Python the environment variable is set.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from togi.core.backports import StrEnum
from togi.core.errors import UnknownNameError, nearest

VARIABLE = "TOGI_PERMITS"
"""Names of permits with commas between them. Children of this process inherit it."""


class Permit(StrEnum):
    """Something that a command does only where it is asked for."""

    DOWNLOAD = "download"
    """What is missing is fetched from where its library says that it is published."""
    REMOTE_CODE = "trust-remote-code"
    """Code that lies next to a model's weights is run, if the installed libraries do not know the model."""
    PICKLE = "trust-pickle"
    """A pickled file is read, which runs whatever code is in it."""

    @property
    def flag(self) -> str:
        return f"--{self}"

    @property
    def how(self) -> str:
        """How a person gives it, for messages."""
        return f"{self.flag} (in Python: os.environ['{VARIABLE}'] = '{self}')"


def permitted(permit: Permit) -> bool:
    """Whether this process has it. Raises UnknownNameError where the variable holds a name that is not a permit's."""
    given = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    for name in given:
        if name not in list(Permit):
            raise UnknownNameError(f"{VARIABLE} holds '{name}'{nearest(name, Permit)}: it takes {', '.join(Permit)}")
    return permit in given


@contextmanager
def permitting(permits: Iterable[Permit]) -> Iterator[None]:
    """This process and those that it starts meanwhile have these permits, besides those that it has already."""
    before = os.environ.get(VARIABLE)
    names = [*filter(None, (before or "").split(",")), *permits]
    if names:
        os.environ[VARIABLE] = ",".join(dict.fromkeys(names))
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before
