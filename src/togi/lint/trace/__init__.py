"""Trace rules: one real run of a subject, watched operation by operation.

Only ``record.py`` may be imported by the parent process: the rest imports torch.
"""
