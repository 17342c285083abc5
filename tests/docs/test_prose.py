"""``docs/prose.py``, which ``make lint`` runs, finds planted faults and leaves correct English alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "prose.py"


def checked(path: Path, text: str) -> tuple[int, list[str]]:
    path.write_text(text, encoding="utf-8")
    command = [sys.executable, str(SCRIPT), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert not done.stderr
    return done.returncode, [line.removeprefix(f"{path}:") for line in done.stdout.splitlines()]


LONG = "One sentence " + "that goes on and on " * 10 + "does not end soon."
WORDY = (
    "This sentence holds twenty-one words, which is more than a page may hold on average if all of them are like it. "
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# A page\n\nThis is no sentence.\n", ['3: "is no sentence"']),
        ("A kernel runs\nbeside it.\n", ['1: "beside"']),
        ("- A point.\n- Journals of before are read.\n", ['2: "of before"']),
        ("| field | |\n|---|---|\n| `a` | what is said |\n", ['3: "is said"']),
        (f"Short.\n\n{LONG}\n", ["3: a sentence of 56 words (45 at most)"]),
        (f"| a | {LONG} |\n", ["1: a sentence of 56 words (45 at most)"]),
        (WORDY * 9, ["1: 22.0 words a sentence on average (20 at most)"]),
    ],
    ids=["no", "over a line", "item", "cell", "long", "long cell", "mean"],
)
def test_a_planted_fault_in_a_page_is_found(text: str, found: list[str], tmp_path: Path) -> None:
    code, lines = checked(tmp_path / "page.md", text)
    assert code == 1
    assert len(lines) == len(found)
    assert all(line.startswith(start) for line, start in zip(lines, found, strict=True))


def test_correct_english_and_code_are_left_alone(tmp_path: Path) -> None:
    page = f"""# It is no heading that is checked

There is no GPU, and it is no longer slow. It is said to help. `this is no sentence`

```
beside {LONG}
```
"""
    assert checked(tmp_path / "page.md", page) == (0, [])


def test_planted_faults_in_docstrings_and_messages_are_found(tmp_path: Path) -> None:
    code, lines = checked(
        tmp_path / "module.py",
        f'''"""What stands beside."""

def check(path, beside):
    """{LONG}

    Args:
        path: it is told.
    """
    print(beside)  # beside a comment
    raise ValueError(f"{{path}} is no number: " f"{{'beside'}}")
''',
    )
    assert code == 1
    assert sorted(lines) == sorted(
        [
            '1: "beside": write "next to", "besides" or "with"',
            f'4: a sentence of 56 words (45 at most): "{" ".join(LONG.split()[:6])} ..."',
            '4: "is told": name who reports, warns or raises',
            '10: "is no number": write "not a", or a verb',
        ]
    )
