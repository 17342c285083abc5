"""``togi fleet``: the same study on many kinds of machines, and what a call costs on each."""
