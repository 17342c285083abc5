"""The names of the devices that a subject may run on."""

from __future__ import annotations

import re

from togi.core.errors import UnknownNameError, nearest

_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


def is_device(name: object) -> bool:
    """Whether it is ``cpu``, ``cuda`` or ``cuda:N`` (or a ``torch.device`` that is)."""
    return _DEVICE.fullmatch(str(name)) is not None


def parse_device(name: object, _option: str = "") -> str:
    """The name of a device, given so or as a ``torch.device``. Whether it is here is seen where it is used.

    Raises:
        UnknownNameError: it is not a device that togi can use.
    """
    if not is_device(name):
        near = nearest(str(name), ["cpu", "cuda", "cuda:0"])
        raise UnknownNameError(f"there is no device '{name}'{near or ':'} give cpu, cuda or cuda:N")
    return str(name)
