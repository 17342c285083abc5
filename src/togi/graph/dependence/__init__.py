"""Row dependence: proves on ATen operators that the rows of a batch are computed apart from each other.

A call is recorded on fake tensors, once with the whole batch and once with a piece of it. Both recordings must hold
the same operators with the same arguments. For each value the analysis then knows one of three things: it is the same
in both, the piece holds a selection of the whole's rows along one dimension, or nothing. An operator without a rule is
taken to mix rows. So the proof holds for all values, and what it does not understand it refuses.

``recording`` makes the lists of operators, ``pairing`` makes one list of two, ``rules`` say what each operator does to
rows, ``analysis`` walks the list, and ``proof`` asks.
"""
