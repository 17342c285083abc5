"""What keeps tests, and the processes that they start, from other machines."""

from __future__ import annotations

from pathlib import Path

OFFLINE = str(Path(__file__).parent)
"""For the ``PYTHONPATH`` of a process: ``conftest.py`` puts it there, and so does a test that sets another one."""
