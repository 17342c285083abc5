"""One recipe in one child process: start it, build, verify, measure, and survive whatever it does.

``call``, ``pool``, ``supervise`` and ``launch`` run in the parent and never import torch. ``server``, ``locate``,
``child`` and what a child does (``survey``, ``trial``, ``answer``: each a ``job``) run in children. Both sides import
``protocol``; a server is started by its dotted name.
"""
