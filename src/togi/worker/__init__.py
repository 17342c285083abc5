"""One recipe in one child process: start it, build, verify, measure, and survive whatever it does.

``call``, ``pool``, ``supervise``, ``launch`` and ``child_process`` run in the parent and never import torch.
``server``, ``locate``, ``child`` and what a child does (``survey``, ``trial``, ``answer``: each a ``job``) run in
children. A ``trial`` makes a ``contender`` and has it verified (``checking``) and measured (``measuring``). Both sides
import ``protocol``, ``messages`` and ``channel``; a server is started by its dotted name.
"""
