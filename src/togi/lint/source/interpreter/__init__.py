"""Abstract interpretation of a scope: finds what each expression is without running it.

``statements`` goes through a scope. ``expressions`` and ``calls`` evaluate, with what ``torch_functions``, ``tensors``
and ``modules`` know. ``parameters`` has the values with which a function starts. All of them work on one ``state``.
"""
