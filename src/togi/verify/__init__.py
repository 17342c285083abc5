"""Proves a candidate against the original: the truth, the error measures, the verdict.

``derived_inputs.variants`` makes the inputs, ``reference.make_truth`` the truth (once per study), ``verdict.verify``
the verdict on one candidate. Whether an approximate candidate is acceptable is for the caller to say.
"""
