"""Plans for one inference pass under a byte budget: which modules are called with slices, and why that is right.

``sites`` runs the pass once on fake tensors and writes down every module call. ``divisible`` shows, with real values,
along which dimensions the slices of a call are independent (``footprint.guard.independence``). ``simulate`` finds the
peak of a pass under a plan without running it, and what was running then. ``search`` looks for plans within the budget,
``make`` measures the best of them, ``proof`` compares their outputs with the unmodified module's. ``chunked`` puts a
plan on a live module.
"""
