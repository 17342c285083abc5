"""One recipe in one child process: start it, build, verify, measure, and survive whatever it does.

``launch`` and ``supervise`` run in the parent and never import torch; ``server`` and ``worker`` run in children.
"""
