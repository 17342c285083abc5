"""Decides which recipe to try next, and when to stop. Pure Python over records: no torch, no process, no file.

Deliberately not here: running a trial (worker), the choice (decide), the finalists' race (measure) and keeping what was
learned (journal).
"""

from togi.search.experience import Experience
from togi.search.space import Space
from togi.search.strategy import Search

__all__ = ["Experience", "Search", "Space"]
