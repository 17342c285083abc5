"""Make a training step or an inference pass fit a byte budget: ``togi fit``.

``plan`` and ``policies`` are the records of a plan, ``result`` what was found; no torch is needed to read them.
``planner`` is what both planners share: search with a lower and lower aim, measure, time in turns, report. Its parts
are ``measure`` (starts and peaks of a step), ``proof`` (against the unmodified step), ``turns`` (times, and how sure
they are), ``time_limit`` (what still fits into the limit) and ``forward`` (how a plan gets onto a live module).
``training`` decides what autograd saves, ``inference`` which module calls are cut.
"""
