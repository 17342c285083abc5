"""Looks at a module: one forward pass seen operation by operation, and the captured graph where there is one.

Rules read what is gathered here (``Seen``); predicting times is left to ``check.roofline``.
"""
