"""``togi check``: pitfalls of performance and memory, found in source, in a module, and in a run.

A finding names a rule, a place, the evidence and the remedy. Source rules read the syntax tree and never execute what
they read; module rules look at a module and one forward pass; trace rules watch one real run.
"""
