"""Callbacks that make a training fit into memory, for the trainers of other libraries: one file each.

``memory_budget`` is what they share: it plans, applies and takes away. Nothing here is imported before it is asked for.
"""
