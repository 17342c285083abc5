"""The parts of a program, tuned one by one: what cannot be captured whole is made faster where it can be.

``recording`` finds the parts, ``part_runner`` runs the study of one, ``part_study`` keeps what came of it, ``in_place``
is the alternative for what cannot be captured. ``assembly`` puts tuned parts together, ``program_trials`` tries the
program with them, and ``tuner`` decides what is next.
"""

from togi.study.parts.recording import record_parts
from togi.study.parts.tuner import PartsTuner

__all__ = ["PartsTuner", "record_parts"]
