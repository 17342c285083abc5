"""The exceptions togi raises.

Every message says what happened (with the values), why it matters and what to do next. The library raises these; only
the command line catches them and turns them into an exit code. Errors of foreign code (a model, a backend) are never
raised through here: they become the outcome of a trial.
"""

from __future__ import annotations

from collections.abc import Iterable

from togi.core.printable import printable


class TogiError(Exception):
    """The base of everything togi raises on purpose. ``exit_code`` is what the command line exits with."""

    exit_code = 2
    child_traceback = ""
    """Where a child process raised it; ``togi --debug`` prints it."""

    def __str__(self) -> str:
        """Messages quote names and texts of others; also where Python itself prints them, they steer no terminal."""
        return printable(super().__str__())


class SubjectError(TogiError):
    """The subject cannot be found, built, or run on the inputs given with it."""


class UnknownNameError(TogiError):
    """A technique, command option or subject name that does not exist."""


class JournalError(TogiError):
    """A journal that is damaged, of another schema version, or that cannot be written."""


class ArtifactError(TogiError):
    """An artifact that is incomplete, changed, unsafe to load, that no engine of its chain can run here, or that has
    no form that was asked for."""


class TrialServerError(TogiError):
    """The process that starts trials could not be started, or died."""


class OutputExistsError(TogiError):
    """The output is there already and ``force`` was not given."""


class QuantityError(TogiError, ValueError):
    """A size, a duration or a share that is not one, or that is out of range."""


class BudgetError(QuantityError):
    """A number of bytes that is not one, or that cannot hold what the call has to return."""


class FitError(TogiError):
    """A plan that cannot be made, applied or trusted. It is raised before a wrong gradient is used."""


class FleetError(TogiError):
    """Machines, their prices or a subject's files with which a fleet of studies cannot start."""


class UndecidedError(AssertionError):
    """An assertion on speeds that the figures do not decide: neither kept nor broken. Also where what to compare with
    is not there, or comes from another machine."""


class Refused(Exception):
    """Raised by ``Technique.apply`` when only building could show that it does not apply. Message: the reason."""


class NotSaveable(Exception):
    """Raised by ``Program.save`` when this program cannot be stored without pickle. Message: the reason."""


def error_class(names: Iterable[str]) -> type[TogiError]:
    """The first of these names that is a class of togi's errors in this process; else ``TogiError``.

    An error's class may live in a module that only a child process imports: its bases follow it in ``names``.
    """
    unvisited, by_name = [TogiError], {}
    while unvisited:
        kind = unvisited.pop()
        by_name[kind.__name__] = kind
        unvisited += kind.__subclasses__()
    return next((by_name[name] for name in names if name in by_name), TogiError)


def nearest(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'resnet50'?"`` when a known name is near ``name``, else an empty string."""
    import difflib  # --help needs none

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""
