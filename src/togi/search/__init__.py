"""Which recipe to try next, when to stop, and which to choose. Pure Python over records: no torch, no process, no file.

Deliberately not here: running a trial (trial), the finalists' race (measure) and keeping what was learned (journal).
"""

from togi.search.pareto import Chosen, acceptable, choose, front
from togi.search.settings import Effort, SearchSettings
from togi.search.space import Space
from togi.search.strategy import Search

__all__ = ["Chosen", "Effort", "Search", "SearchSettings", "Space", "acceptable", "choose", "front"]
