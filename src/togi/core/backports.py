"""Parts of the standard library that Python 3.10 lacks. Names of ``typing`` come from ``typing_extensions``."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    import tomllib
    from enum import StrEnum
else:
    from enum import Enum

    import tomli as tomllib

    class StrEnum(str, Enum):
        """Members are text, and print as their value."""

        def __str__(self) -> str:
            return str(self.value)


__all__ = ["StrEnum", "tomllib"]
