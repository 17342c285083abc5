"""Settings of a check: ``[tool.togi.check]`` of the nearest pyproject.toml, and what the call adds.

As in ruff, each file obeys the nearest pyproject.toml above it that has the table; tables are not merged. ``select`` of
the call replaces that of the file, ``ignore`` and ``exclude`` of the call are added to it.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from togi.core.backports import tomllib
from togi.core.errors import TogiError, nearest
from togi.core.plain_files import NotPlainError, read_plain
from togi.lint.patterns import check_pattern
from togi.lint.rule import check_names

LARGEST_TABLE = 1_000_000
"""Bytes of a pyproject.toml: longer ones are refused."""
MAX_FILE_BYTES = 2_000_000
"""Generated files beyond this are refused with a message: a person does not write 50,000 lines in one file."""


class SettingsError(TogiError):
    """A pyproject.toml that cannot be used; the message names the file and the key."""


class CheckTable(BaseModel):
    """``[tool.togi.check]`` as it is written."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    select: list[str] | None = None
    ignore: list[str] = Field(default_factory=list)
    per_file_ignores: dict[str, list[str]] = Field(default_factory=dict, alias="per-file-ignores")
    exclude: list[str] = Field(default_factory=list)
    hot: list[str] = Field(default_factory=list)
    max_file_bytes: Annotated[int, Field(gt=0, le=2**30)] = Field(MAX_FILE_BYTES, alias="max-file-bytes")


@dataclass(frozen=True, kw_only=True)
class CheckSettings:
    """The settings of one file. Names of rules are canonical."""

    select: tuple[str, ...] | None = None
    """None: every rule that is on by default."""
    ignore: tuple[str, ...] = ()
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    exclude: tuple[str, ...] = ()
    hot: tuple[str, ...] = ()
    """Names of functions that run often: ``step`` or ``Trainer.step``, with ``*``."""
    max_file_bytes: int = MAX_FILE_BYTES
    folder: Path = field(default_factory=Path.cwd)
    """Where it was written: patterns are relative to it."""
    project: Path | None = None
    """The nearest folder above the file in which settings were written, or which is a repository."""


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """Additions of the call to every file's settings; ``exclude`` is relative to the working folder."""

    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


def overrides(
    select: Sequence[str] | None = None, ignore: Sequence[str] = (), exclude: Sequence[str] = ()
) -> Overrides:
    """Checked. Raises UnknownNameError with the nearest name of a rule, SettingsError for a bad pattern."""
    _check_patterns("--exclude", exclude)
    return Overrides(
        select=check_names("--select", select) if select else None,
        ignore=check_names("--ignore", ignore),
        exclude=tuple(exclude),
    )


class SettingsFinder:
    """The settings of each folder, read once. Folders are absolute."""

    def __init__(self, overrides: Overrides) -> None:
        self._overrides = overrides
        self._by_folder: dict[Path, CheckSettings] = {}

    def of(self, folder: Path) -> CheckSettings:
        """Raises SettingsError or UnknownNameError for a pyproject.toml that cannot be used."""
        if folder not in self._by_folder:
            read = read_table(folder / "pyproject.toml")
            if read is not None:
                self._by_folder[folder] = self._merged(read)
            elif folder.parent == folder:
                self._by_folder[folder] = self._merged(CheckSettings())
            else:
                above = self.of(folder.parent)
                self._by_folder[folder] = replace(above, project=folder) if os.path.exists(folder / ".git") else above
        return self._by_folder[folder]

    def _merged(self, read: CheckSettings) -> CheckSettings:
        select = self._overrides.select if self._overrides.select is not None else read.select
        return replace(read, select=select, ignore=(*read.ignore, *self._overrides.ignore))


def read_table(path: Path) -> CheckSettings | None:
    """The settings in a pyproject.toml; None where there is no such file, or no such table in it."""
    try:
        data = read_plain(path, LARGEST_TABLE + 1)
    except NotPlainError:
        if path.is_dir():
            return None
        raise SettingsError(f"{path} is a pipe or a device, so no settings can be read from it: remove it") from None
    except OSError:
        return None
    if len(data) > LARGEST_TABLE:
        raise SettingsError(f"{path} is larger than {LARGEST_TABLE:,} bytes, so a person did not write it: shorten it")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}), so it is not TOML") from None
    if "togi" not in text:
        return None
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # of tables too deep, of integers with thousands of digits
        raise SettingsError(f"{path} is not valid TOML: {error}. Correct it, then run the same command again") from None
    table = _table(path, document)
    return None if table is None else _settings(path, table)


def _table(path: Path, document: dict[str, Any]) -> Any:
    here: Any = document
    for depth, key in enumerate(("tool", "togi", "check"), start=1):
        if not isinstance(here, dict):
            name = ".".join(("tool", "togi", "check")[: depth - 1])
            raise SettingsError(f"{path}: [{name}] must be a table, not {reprlib.repr(here)}")
        if key not in here:
            return None
        here = here[key]
    return here


def _settings(path: Path, table: Any) -> CheckSettings:
    try:
        read = CheckTable.model_validate(table)
    except ValidationError as error:
        raise SettingsError(_explain(path, error)) from None
    ignores = {p: check_names(f'{path}: per-file-ignores."{p}"', names) for p, names in read.per_file_ignores.items()}
    _check_patterns(f"{path}: exclude", read.exclude)
    _check_patterns(f"{path}: per-file-ignores", ignores)
    return CheckSettings(
        select=None if read.select is None else check_names(f"{path}: select", read.select),
        ignore=check_names(f"{path}: ignore", read.ignore),
        per_file_ignores=ignores,
        exclude=tuple(read.exclude),
        hot=tuple(read.hot),
        max_file_bytes=read.max_file_bytes,
        folder=path.parent,
        project=path.parent,
    )


def _explain(path: Path, error: ValidationError) -> str:
    keys = [info.alias or name for name, info in CheckTable.model_fields.items()]
    lines = []
    for fault in error.errors():
        key = ".".join(map(str, fault["loc"])) or "the table"
        if fault["type"] == "extra_forbidden":
            lines.append(f"there is no key '{key}'{nearest(key, keys)} It takes {', '.join(keys)}")
        else:
            lines.append(f"{key}: {fault['msg']}, got {reprlib.repr(fault['input'])}")
    return f"{path}: [tool.togi.check]: " + "; ".join(lines)


def _check_patterns(where: str, patterns: Sequence[str] | Mapping[str, Any]) -> None:
    for pattern in patterns:
        try:
            check_pattern(pattern)
        except ValueError as error:
            raise SettingsError(f"{where}: '{pattern}' is not a pattern ({error}): write as in .gitignore") from None
