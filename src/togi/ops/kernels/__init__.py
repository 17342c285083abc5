"""Implementations of the operators: each module offers ``match``, ``topk`` and ``matrix`` with the same signatures."""
