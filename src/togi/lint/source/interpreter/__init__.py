"""Abstract interpretation of a scope: finds what each expression is without running it.

``statements`` goes through a scope, ``expressions`` and ``calls`` evaluate, ``tensors`` and ``modules`` know those, ``parameters`` the values with which a function starts; all of them work on one ``state``.
"""
