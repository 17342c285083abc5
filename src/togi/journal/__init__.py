"""The journal: one SQLite file that holds every trial of every study, and survives whatever ends the program.

Deliberately not here: what to try next (search) and how a study is shown (report).
"""

from togi.journal.rescue import Rescued, rescue
from togi.journal.store import Journal, StudyEntry, study_key
from togi.journal.study_log import Conditions, StudyLog

__all__ = ["Conditions", "Journal", "Rescued", "StudyEntry", "StudyLog", "rescue", "study_key"]
