"""What this machine has, what is missing or outdated, and the command that mends it. No torch is imported."""

from togi.doctor.checks import Check, Level, examine

__all__ = ["Check", "Level", "examine"]
