"""One real run of a subject, watched operation by operation; what the rules in ``lint/rules/trace`` read.

``errand.py`` is the way in. Only ``record.py`` may be imported by the parent process: the rest imports torch.
"""
