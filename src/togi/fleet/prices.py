"""``prices.toml``: what an hour of each kind of machine costs. ::

currency = "USD"

[per_hour]
small = 0.0425
large = 0.17
"""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints, ValidationError

from togi.core.backports import tomllib
from togi.core.errors import FleetError
from togi.core.plain_files import read_plain
from togi.core.record import Record

_KIND = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"
"""What Ray takes as the value of a label; it is the name of a folder, too."""


class Prices(Record):
    """The kinds of machines to study, with the price of each in one currency."""

    currency: Annotated[str, StringConstraints(pattern=r"^[\w$€£¥]{1,8}$")]
    per_hour: Annotated[
        dict[
            Annotated[str, StringConstraints(pattern=_KIND, max_length=63)],
            Annotated[float, Field(strict=True, ge=0, le=1e9, allow_inf_nan=False)],
        ],
        Field(min_length=1),
    ]


def read_prices(path: Path) -> Prices:
    """Raises FleetError with the file and the key, or the line of what is not TOML."""
    try:
        return Prices.model_validate(tomllib.loads(read_plain(path, 1_000_000).decode()))
    except (OSError, UnicodeDecodeError) as error:
        raise FleetError(f"the prices cannot be read: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        value = "" if first["type"] == "missing" else f" = {reprlib.repr(first['input'])}"
        raise FleetError(
            f'{path}: {".".join(map(str, first["loc"]))}{value}: {first["msg"]}. Needed are currency = "USD" (or '
            "another) and a table [per_hour] with the price of each kind of machine, such as small = 0.0425"
        ) from None
    except (ValueError, RecursionError) as error:
        raise FleetError(f"{path} is not TOML: {error}") from None
