"""Edits: whole fixes, no overlaps, line ends and everything else kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from togi.lint.finding import Edit, Fix
from togi.lint.fix import apply_fixes


def edit(line: int, column: int, end_column: int, text: str, end_line: int | None = None) -> Edit:
    return Edit(line=line, column=column, end_line=end_line or line, end_column=end_column, text=text)


def fix(*edits: Edit) -> Fix:
    return Fix(title="t", edits=edits)


def test_columns_are_characters() -> None:
    assert apply_fixes("é = '\U0001f600'; x", [fix(edit(1, 10, 11, "y"))]) == ("é = '\U0001f600'; y", 1)


def test_inserted_lines_get_the_line_ends_of_the_file() -> None:
    assert apply_fixes("a\r\nb\r\n", [fix(edit(2, 1, 1, "x\ny\n"))]) == ("a\r\nx\r\ny\r\nb\r\n", 1)
    assert apply_fixes("a\rb\r", [fix(edit(1, 2, 1, "", end_line=2))]) == ("ab\r", 1)


def test_overlapping_fixes_take_turns() -> None:
    first, second = fix(edit(1, 1, 4, "x")), fix(edit(1, 3, 6, "y"))
    assert apply_fixes("abcdef", [second, first]) == ("xdef", 1)
    assert apply_fixes("abcdef", [fix(edit(1, 2, 2, "x")), fix(edit(1, 2, 2, "y"))])[1] == 1


def test_a_fix_is_applied_whole_or_not_at_all() -> None:
    pair = fix(edit(1, 1, 2, "X"), edit(1, 5, 6, "Y"))
    assert apply_fixes("abcdef", [fix(edit(1, 1, 3, "-")), pair])[0] in ("XbcdYf", "-cdef")
    assert apply_fixes("abcdef", [fix(edit(1, 1, 2, "X"), edit(9, 1, 2, "Y"))]) == ("abcdef", 0)
    assert apply_fixes("abcdef", [fix(edit(1, 1, 4, "X"), edit(1, 2, 3, "Y"))]) == ("abcdef", 0)
    assert apply_fixes("abcdef", [fix()]) == ("abcdef", 0)


def test_neighbouring_edits_of_one_fix() -> None:
    assert apply_fixes("f(a)", [fix(edit(1, 1, 2, "g"), edit(1, 2, 2, "[0]"))]) == ("g[0](a)", 1)


def test_places_that_are_not_in_the_text() -> None:
    for wrong in (edit(0, 1, 1, "x"), edit(1, 1, 9, "x"), edit(1, 3, 1, "x"), edit(1, 0, 1, "x")):
        assert apply_fixes("abc\n", [fix(wrong)]) == ("abc\n", 0)


@given(
    st.lists(st.text(alphabet="abé\U0001f600", max_size=6), min_size=1, max_size=5),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(0, 3)), max_size=6),
)
def test_what_no_fix_touches_stays(lines: list[str], end: str, spans: list[tuple[int, int, int]]) -> None:
    text = end.join(lines)
    fixes = [fix(edit(line, column, column + length, "#")) for line, column, length in spans]
    new, count = apply_fixes(text, fixes)
    assert new.count("#") == count
    assert new.count(end) == text.count(end)
    removed = len(text) + count - len(new)
    assert 0 <= removed <= sum(length for _, _, length in spans)
