"""One recipe in one child process: start it, build, verify, measure, and survive whatever it does.

``call``, ``pool``, ``supervise`` and ``launch`` run in the parent and never import torch; ``server``, ``child``,
``locate`` and ``survey`` run in children. Both sides import ``protocol``; a server is started by its dotted name.
"""
