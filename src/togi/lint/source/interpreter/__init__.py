"""Abstract interpretation of a scope: finds what each expression is without running it.

``statements`` goes through a scope, ``expressions`` and ``calls`` evaluate, ``torch_objects`` knows tensors and
modules, ``parameters`` the values with which a function starts; all of them work on one ``state``.
"""
