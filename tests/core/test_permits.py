"""A permit is given by hand and never by a name; children inherit it."""

from __future__ import annotations

import os
import subprocess

import pytest

from togi.core.errors import UnknownNameError
from togi.core.interpreter import python
from togi.core.permits import VARIABLE, Permit, permitted, permitting


@pytest.fixture(autouse=True)
def none_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.mark.parametrize("permit", Permit)
def test_a_permit_holds_for_its_block_and_no_other(permit: Permit) -> None:
    with permitting([permit]):
        assert [each for each in Permit if permitted(each)] == [permit]
        child = python("from togi.core.permits import *; print(*filter(permitted, Permit))")
        assert subprocess.run(child, capture_output=True, text=True, check=True).stdout.strip() == permit
    assert VARIABLE not in os.environ


def test_what_the_user_permitted_before_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "download")
    with permitting([Permit.PICKLE]):
        assert permitted(Permit.DOWNLOAD)
        assert permitted(Permit.PICKLE)
    assert os.environ[VARIABLE] == "download"


def test_a_misspelt_permit_is_an_error_and_no_permit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "trust-pickel")
    with pytest.raises(UnknownNameError, match="did you mean 'trust-pickle'"):
        permitted(Permit.PICKLE)
