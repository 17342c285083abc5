"""For the tests of programs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def however_long() -> Iterator[None]:
    """These networks are small: on a busy machine any part of them may take less than its share of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("togi.program.uses.LEAST_SHARE", 1e-3)
        yield
