"""Callbacks for the trainers of other libraries, one file each: they make a training fit into memory, or run its steps
with a recipe that was tuned.

They share ``memory_budget``, which plans, applies and takes away, and ``tuned_step``, which does so with recipes.
Nothing here is imported before it is asked for.
"""
