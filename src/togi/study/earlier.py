"""What the journal's other studies teach a study that begins."""

from __future__ import annotations

from togi.core.records import Facts
from togi.core.settings import Settings
from togi.journal import Journal, StudyLog
from togi.search import Experience
from togi.search.experience import relevance
from togi.techniques import all_techniques


def learned_before(journal: Journal, log: StudyLog, facts: Facts, settings: Settings) -> Experience:
    """Not from the study of ``log``, whose trials are known. Nothing is raised for studies that cannot be read."""
    earlier = journal.earlier(lambda study: relevance(study, facts, settings) > 0, but=log.id)
    return Experience(
        earlier.studies,
        facts,
        settings,
        all_techniques(),
        left_out=earlier.left_out,
        unreadable=earlier.unreadable,
    )
