"""Plans for one inference pass: which modules are called with slices, and why that is right.

``simulate`` runs the pass on fake tensors: every module call, the peak under a plan, and what was running then.
``divisions`` shows, with real values, along which dimensions the slices of a call are independent. ``search`` looks for
plans within an aim, ``planner`` measures and proves the best of them. ``chunked`` calls a live module in slices.
"""
