"""Studies: what ``togi tune`` does from the survey of a subject to its verdict. Runs in the parent: no torch, no model.

- ``run`` is the whole of it: an ``open_study`` is explored, then come its ``finals``, then its ``conclusion``.
- Exploring: ``runner`` asks the search for recipes, ``attempts`` makes a trial of each. A program that cannot be
  captured whole is tuned in ``parts``.
- The end: ``finals`` choose after the ``final_race`` of the fastest, and the ``proof`` of what was saved.
- What all of these use: the ``tuned_subject``, the ``time_budget``, the stopwatch (``measurement``), the
  ``warm_processes``, and the ``pace``. ``progress`` shows what happens, and ``failures`` explain why a study ended.

Next to a study: ``bench`` compares subjects and artifacts (``bench_pools``, ``common_inputs``, ``batch_sizes``; the
result is a ``comparison``, the gate ``slowdown``), ``verification`` proves an artifact again, and ``repro`` writes one
trial as a script.
"""
