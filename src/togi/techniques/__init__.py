"""Every known remedy, one file each, found by walking the stage folders and the ``togi.techniques`` entry points.

Deliberately not here: whether a recipe is good (verify, measure) and which to try next (search).
"""

from togi.core.errors import NotSaveable, Refused
from togi.techniques.base import Applies, Engine, Package, Refuses, Remedy, Technique
from togi.techniques.registry import all_remedies, all_techniques, compatible, is_exact, recipe, technique

__all__ = [
    "Applies",
    "Engine",
    "NotSaveable",
    "Package",
    "Refused",
    "Refuses",
    "Remedy",
    "Technique",
    "all_remedies",
    "all_techniques",
    "compatible",
    "is_exact",
    "recipe",
    "technique",
]
