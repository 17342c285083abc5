"""Most of togi runs a model, which needs torch. ``check``, ``explain``, ``report`` and ``doctor`` do not, so it is an
extra. Code that needs it asks here before it begins, so that people read one line and not a traceback."""

from __future__ import annotations

import platform
import re
import sys

from togi.core.errors import TogiError
from togi.core.packages import installed

COMMAND = "pip install 'togi[torch]'"
OLDEST_PYTHON, OLDEST_TORCH = "3.11", "2.9"
PACKAGES = ("torch", "numpy", "safetensors", "cloudpickle")
"""What the extra brings."""


class MissingTorchError(TogiError, ImportError):
    """Something needs torch, which is not installed here, or is too old."""


def need_torch(what: str) -> None:
    """Returns where the extra ``torch`` is installed.

    Raises MissingTorchError, which says that ``what`` needs it and which command brings it.
    """
    if sys.version_info < (3, 11):  # OLDEST_PYTHON
        raise MissingTorchError(
            f"{what} needs torch, which togi uses on Python {OLDEST_PYTHON} and newer, and this is Python "
            f"{platform.python_version()}. In an environment with a newer one: {COMMAND}"
        )
    import importlib.util  # here, since every command imports this module

    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        named = missing[:1] if missing[0] == "torch" else missing
        are = "is" if len(named) == 1 else "are"
        raise MissingTorchError(f"{what} needs {' and '.join(named)}, which {are} not installed here: {COMMAND}")
    if (version := _older_torch()) is not None:
        raise MissingTorchError(f"{what} needs torch {OLDEST_TORCH} or newer, and {version} is installed: {COMMAND}")


def _older_torch() -> str | None:
    """The version of a torch that is too old."""
    version = installed("torch")  # None: built in a folder of its own
    return version if version and _first_two(version) < _first_two(OLDEST_TORCH) else None


def _first_two(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:2]]
