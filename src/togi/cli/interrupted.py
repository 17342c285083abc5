"""What is said after Ctrl-C."""

from __future__ import annotations

import shlex
import sys

from togi.core.errors import TogiError


class Interrupted(TogiError):
    """The user pressed Ctrl-C; the message says what was kept and how to go on."""

    exit_code = 130


def interrupted(kept: int, what: str = "trial") -> Interrupted:
    again = f"togi {shlex.join(sys.argv[1:])}"
    if kept == 0:
        return Interrupted(f"interrupted before the first {what} ended; nothing is lost. Start again with: {again}")
    return Interrupted(
        f"interrupted. {kept} finished {what}{'s are' if kept > 1 else ' is'} kept in the journal. "
        f"The same command goes on from there: {again}"
    )
