"""What stands for a function shows what the function shows, whoever asks, and keeps what is its own."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest

from togi.subject.stand_in import FunctionStandIn


class Counting(FunctionStandIn):
    """Its own documentation, which nobody should see on an instance."""

    def __init__(self, function: Any) -> None:
        self.calls = 0
        self.function = function
        self.look_like(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.function(*args, **kwargs)


def plain(first: int, *, second: str = "a") -> str:
    """Adds them up."""
    return f"{first}{second}"


plain.calls = "a mark that has the name of an attribute"  # type: ignore[attr-defined]
plain.mark = "a mark of some library"  # type: ignore[attr-defined]


class Owner:
    def method(self, given: int, *more: int, scale: float = 1.0, **options: Any) -> int:
        """A method."""
        return given

    @staticmethod
    def static(given: int) -> int:
        return given

    @functools.wraps(method)
    def wrapped(self, *args: Any, **kwargs: Any) -> Any:
        return self.method(*args, **kwargs)


FUNCTIONS = {
    "function": plain,
    "method": Owner().method,
    "static method": Owner().static,
    "wrapped method": Owner().wrapped,
    "partial": functools.partial(plain, 3),
    "stand-in": Counting(plain),
    "written in C": len,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_asked_of_a_function_is_answered_as_the_function_does(name: str) -> None:
    function = FUNCTIONS[name]
    stand_in = Counting(function)
    assert inspect.signature(stand_in) == inspect.signature(function)
    missing = object()
    for attribute in "__name__ __qualname__ __doc__ __module__ __code__ __defaults__ __kwdefaults__".split():
        assert getattr(stand_in, attribute, missing) == getattr(function, attribute, missing), attribute
    assert inspect.unwrap(stand_in) == inspect.unwrap(function)


@pytest.mark.parametrize("name", ["function", "static method", "stand-in"])
def test_older_ways_to_ask_for_arguments_see_them_too(name: str) -> None:
    asked, shown = inspect.getfullargspec(FUNCTIONS[name]), inspect.getfullargspec(Counting(FUNCTIONS[name]))
    assert (shown.args, shown.kwonlyargs, shown.varkw) == (asked.args, asked.kwonlyargs, asked.varkw)


def test_a_bound_method_shows_all_but_its_instance() -> None:
    shown = inspect.getfullargspec(Counting(Owner().method))
    assert (shown.args, shown.varargs, shown.kwonlyargs, shown.varkw) == (["given"], "more", ["scale"], "options")


def test_marks_of_libraries_are_seen_and_own_attributes_win() -> None:
    stand_in = Counting(plain)
    assert stand_in.mark == "a mark of some library"  # type: ignore[attr-defined]
    assert stand_in.calls == 0
    assert stand_in(1) == "1a"
    assert stand_in.calls == 1


def test_nobody_is_led_past_it_and_no_protocol_is_claimed() -> None:
    stand_in = Counting(Owner().method)
    for name in ("__func__", "__self__", "__len__", "__deepcopy__", "nothing"):
        assert not hasattr(stand_in, name), name


def test_the_state_that_is_copied_holds_nothing_of_the_function() -> None:
    stand_in = Counting(plain)
    assert stand_in.own_state() == {"calls": 0, "function": plain}
