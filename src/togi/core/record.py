"""The base of all records: frozen, and JSON between processes, in journals and in ``--json`` output.

Records say nothing of their looks when they are printed, or are the last line of a notebook's cell:
``togi.render.display.show_results`` registers functions for those that people meet; any other is shown as its fields.
"""

from __future__ import annotations

import functools
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from typing_extensions import Self

from togi.core.errors import TogiError

Scalar = bool | int | float | str | None


class Record(BaseModel):
    """Base of all records: immutable, no unknown fields, compared by value."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=True,
        ser_json_inf_nan="strings",
        defer_build=True,  # on first use: a command uses few of the records that it imports
    )

    def __str__(self) -> str:
        return as_text(self) or super().__str__()

    def _repr_html_(self) -> str | None:
        """For notebooks; None makes them show the fields."""
        return as_html(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str | None] | None:
        """For IPython: both forms, so that a notebook does not keep every field as text besides what it shows."""
        text = as_text(self)
        return {"text/plain": text, "text/html": self._repr_html_()} if text else None

    def to_json(self) -> str:
        """One line of JSON."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        return cls.model_validate_json(text)


class Request(Record):
    """A record built from user input. A bad value raises a TogiError that names the field, in one line.

    Raises:
        TogiError: of what a validator says, or that a value is of another type.
    """

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            first = error.errors()[0]
            cause = first.get("ctx", {}).get("error")
            if isinstance(cause, TogiError):
                raise cause from None
            name = ".".join(map(str, first["loc"]))
            problem = first["msg"].partition(",")[0]
            raise TogiError(f"{name}={first['input']!r} cannot be used: {problem[:1].lower()}{problem[1:]}") from None


@functools.singledispatch
def as_text(_record: Any) -> str | None:
    """Text for a terminal, or None where nothing is registered."""
    return None


@functools.singledispatch
def as_html(_record: Any) -> str | None:
    """HTML for a notebook, or None where nothing is registered."""
    return None
