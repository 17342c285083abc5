"""Running a function of tensors without its large intermediates: what ``togi.lean`` does.

The package is named after the method, as the public name ``togi.lean`` is the function itself: a large intermediate is
*streamed*, that is, computed tile by tile and consumed at once by the reduction (or the result) that it is for.

``capture`` turns the function into a graph of ATen operations with symbolic sizes (``sizes``), ``simplify`` shrinks it.
``slicing`` knows, per operation, which slices of its operands a slice of its result needs (``slicing_rules``,
``picking_rules``): that a dimension is safe is proved there, operation by operation. ``combining`` knows how reductions
are put together from parts. ``schedule`` cuts the graph into ``loops`` over tiles and small work around them,
``program`` runs them, ``differentiate`` runs a loop backwards by recomputing. ``peak`` predicts and measures bytes,
``needs`` measures what operations on large inputs take for themselves, ``tile`` chooses the size of tiles (``timing``),
``compiled`` compiles their work, ``proof`` compares the result with the plain function's. ``plan`` decides all that for
one function, and ``lean`` is the face. Nothing of the tuner is needed. Importing this package imports no torch.
"""
