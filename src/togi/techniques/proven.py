"""Every part of togi that depends on the device, techniques first, with the devices that it was proven on."""

from __future__ import annotations

from togi.core.proven import DEVICES, Mark, marked_parts
from togi.techniques.base import Technique
from togi.techniques.registry import all_techniques


def technique_mark(technique: Technique) -> Mark:
    days = {device: technique.proven.on(device) for device in DEVICES if device in technique.devices}
    return Mark(part=technique.id, days=days)


def all_marks() -> tuple[Mark, ...]:
    """One mark a technique (third-party ones too), then one each for the other parts. Imports no torch."""
    return (*(technique_mark(technique) for technique in all_techniques().values()), *marked_parts())
