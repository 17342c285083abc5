"""Parts of the standard library that Python 3.10 lacks. Names of ``typing`` come from ``typing_extensions``."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

if sys.version_info >= (3, 11):
    from enum import StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):
        """Members are text, and print as their value."""

        def __str__(self) -> str:
            return str(self.value)


__all__ = ["StrEnum", "tomllib"]


def __getattr__(name: str) -> Any:
    if name == "tomllib":  # only where it is used: every command would wait for it
        return importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
