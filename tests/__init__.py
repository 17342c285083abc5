"""The tests of togi: a folder for each room, a file for each module.

What several files need lies next to them in a module that is not called ``test_*``, or in a ``conftest``. It is
imported by its full name, also by benchmarks: ``from tests.artifact.small_artifacts import make``.
"""
