"""Running a function of tensors without its large intermediates: what ``togi.lean`` does.

The package is named after the method, as the public name ``togi.lean`` is the function itself: a large intermediate is
*streamed*, that is, computed tile by tile and consumed at once by the reduction (or the result) that it is for.

``capture`` turns the function into a graph of ATen operations with symbolic sizes. ``slicing`` knows, per operation,
which slices of its operands a slice of its result needs: that a dimension is safe is proved there, operation by
operation. ``combining`` knows how reductions are put together from parts. ``schedule`` cuts the graph into loops over
tiles and small work around them, ``loop`` runs one, ``differentiate`` runs it backwards by recomputing, ``footprint``
predicts bytes, ``peak`` measures them, ``tile`` chooses how large a tile is, by a ``race`` of sizes, ``compiled`` does
so for compiled code, ``proof`` compares the result with the plain function's, and ``lean`` is the face.
Nothing of the tuner is needed. Importing this package imports no torch.
"""
