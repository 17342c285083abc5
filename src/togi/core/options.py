"""Options: each is described once, where a dataclass declares the field that holds it.

The command line, the command that repeats a study and the tables of docs/ are made from these descriptions. Nothing
heavy is imported here: ``--help`` reads them too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import Enum
from typing import Any

_UNITS = ("_s", "_bytes")


@dataclasses.dataclass(frozen=True)
class Option:
    """The annotation of a field's type with which people can give its value."""

    metavar: str
    parse: Callable[[Any, str], Any]
    """Takes what people give and the option's name, for the message of the TogiError that a bad value raises."""
    help: str
    _: dataclasses.KW_ONLY
    name: str = ""
    """In Python; the field's, unless it is given."""
    lasting: bool = True
    """A study goes on with earlier trials only if this is the same: it changes what a trial shows."""
    per_call: bool = True
    """It makes sense where single calls are raced, as in a fleet."""
    field: str = ""
    """With its unit. This and the default are the dataclass's."""
    default: Any = None

    @property
    def flag(self) -> str:
        """``--time-limit`` of ``time_limit_s``."""
        bare = self.field
        for unit in _UNITS:
            bare = bare.removesuffix(unit)
        return f"--{bare.replace('_', '-')}"

    @property
    def repeated(self) -> bool:
        """Whether it may be given several times."""
        return isinstance(self.default, tuple)

    def value(self, given: Any) -> Any:
        """``given`` as a value of the field. Raises TogiError."""
        return self.default if given is None and self.default in (None, ()) else self.parse(given, self.name)

    def arguments(self, value: Any) -> list[str]:
        """The part of a command line that gives ``value``; nothing for the default."""
        if isinstance(self.default, bool):
            return [self.flag] if value else []
        values = value if self.repeated else () if value == self.default else (value,)
        return [part for one_value in values for part in (self.flag, _text(one_value))]


def options_of(record: Any) -> tuple[Option, ...]:
    """The options among the fields of a dataclass, in their order."""
    return tuple(
        dataclasses.replace(option, field=field.name, name=option.name or field.name, default=field.default)
        for field in dataclasses.fields(record)
        for option in getattr(field.type, "__metadata__", ())
    )


def _text(value: Any) -> str:
    """As a command line takes it: every digit of a number, and no exponent, since durations have none."""
    if isinstance(value, Enum):
        return str(value.value)
    if not isinstance(value, float):
        return str(value)
    from decimal import Decimal

    return f"{Decimal(repr(value)):f}".removesuffix(".0")
