"""A script under ``togi run`` sees what it sees under Python: name, arguments, folders, streams, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.script.run_scripts import run_python, run_togi, written
from togi.core.errors import OutputExistsError

ALIKE = {
    "main module": """
        import sys, __main__
        print(__name__, __file__, __spec__, __doc__, __package__, sys.argv, sys.path, __main__.__file__ == __file__)
        assert __main__.__dict__ is globals()
        """,
    "a module next to it": """
        import neighbour
        print(neighbour.VALUE)
        """,
    "arguments": """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--debug", action="store_true")
        parser.add_argument("--report")
        parser.add_argument("rest", nargs="*")
        print(parser.parse_args())
        """,
    "wrong arguments": """
        import argparse
        argparse.ArgumentParser().parse_args()
        """,
    "standard input": """
        import sys
        print(sys.stdin.readline(), len(sys.stdin.read()))
        """,
    "exit with a number": "raise SystemExit(3)",
    "exit with a text": "import sys; print('before'); sys.exit('no such picture')",
    "exit without anything": "import sys; sys.exit()",
    "exit at once": """
        import os
        print("leaving", flush=True)
        os._exit(4)
        """,
    "an exception": """
        def inner(x):
            return 1 / x
        def outer(x):
            try:
                return inner(x)
            except ZeroDivisionError as error:
                raise ValueError("wrong") from error
        print("before")
        outer(0)
        """,
    "a hook for exceptions": """
        import sys
        sys.excepthook = lambda kind, error, trace: print("seen", kind.__name__, trace.tb_lineno, trace.tb_next)
        raise KeyError("x")
        """,
    "a syntax error": "def f(:\n    pass\n",
    "a fork": """
        import os, sys
        child = os.fork()
        if child == 0:
            print("child", __name__, flush=True)
            sys.exit(5)
        _, status = os.waitpid(child, 0)
        print("parent", os.waitstatus_to_exitcode(status))
        """,
    "processes that are forked": """
        import multiprocessing
        def double(x):
            return 2 * x
        if __name__ == "__main__":
            with multiprocessing.get_context("fork").Pool(2) as pool:
                print(pool.map(double, range(3)))
        """,
    "processes that are spawned": """
        import multiprocessing, sys
        print("top", __name__, flush=True)
        def double(x):
            return 2 * x, sys.argv
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, range(3)))
        """,
    "threads that outlive it": """
        import threading, time
        def late():
            time.sleep(0.2)
            print("late", flush=True)
        threading.Thread(target=late).start()
        print("end", flush=True)
        """,
    "an executor that is not shut down": """
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(2)
        print(list(pool.map(abs, [-1, 2])))
        """,
    "its own objects pickled": """
        import pickle
        class Point:
            def __init__(self, x):
                self.x = x
        print(pickle.loads(pickle.dumps(Point(3))).x)
        """,
    "what it does when Python ends": """
        import atexit
        atexit.register(print, "goodbye")
        print("end")
        """,
    "another folder and closed streams": """
        import os, sys, tempfile
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
        print("end", flush=True)
        sys.stdout.close()
        """,
}


@pytest.mark.parametrize("case", ALIKE)
def test_a_script_runs_as_under_python(case: str, tmp_path: Path) -> None:
    written(tmp_path, "VALUE = 7", "neighbour.py")
    script = written(tmp_path, ALIKE[case])
    arguments = ["--debug", "--report", "x", "y", "--", "--again"] if case == "arguments" else ["a", "b c"]
    own = run_python(script, *arguments, stdin="one\ntwo\n")
    under_togi = run_togi(script, *arguments, stdin="one\ntwo\n")
    assert (under_togi.returncode, under_togi.stdout) == (own.returncode, own.stdout), under_togi.stderr
    assert under_togi.stderr.startswith(own.stderr)
    assert "called no torch module" in under_togi.stderr
    assert sorted(path.name for path in tmp_path.glob("*.togi")) == []


def test_an_endless_recursion_ends(tmp_path: Path) -> None:
    ended = run_togi(written(tmp_path, "def inner(x):\n    return inner(x + 1)\ninner(0)\n"))
    assert ended.returncode == 1
    assert "RecursionError" in ended.stderr
    assert "main_module.py" not in ended.stderr


def test_each_end_is_reported_once(tmp_path: Path) -> None:
    """Also in a script whose forked copy comes to the same end."""
    script = written(tmp_path, "import os\nos.fork()\n")
    assert run_togi(script).stderr.count("called no torch module") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing.py"], "there is no file nothing.py: give a Python file"),
        (["scirpt.py"], "there is no file scirpt.py; did you mean 'script.py'? give a Python file"),
        (["cells.ipynb"], "type %load_ext togi"),
        (["script.py:main"], "togi tune script.py:main"),
        (["."], "is a folder"),
        (["--with", "nothing.togi", "script.py"], "there is no folder"),
        (["--with", "x", "--again", "script.py"], "give one of them"),
        (["--report", "--again", "script.py"], "give one of them"),
        (["--out", "other", "script.py"], "was not written by 'togi run'"),
        (["--out", "site", "script.py"], "it holds no index.json of togi"),
        (["--again", "--out", "site", "script.py"], "it holds no index.json of togi"),
        (["--again", "--out", "mixed", "script.py"], "it holds thesis.txt, which togi did not put there"),
        (["--with", "other", "script.py"], "cannot be read"),
        (["--with", "damaged", "script.py"], "is damaged or from another version"),
        (["--with", "site", "script.py"], "give the folder that 'togi run SCRIPT' wrote"),
        (["--out", "earlier", "script.py"], "'togi run --again SCRIPT' writes it anew"),
        (["--out", "missing/folder", "script.py"], "does not exist"),
        (["--time-limit", "5q", "script.py"], "no unit of time 'q'"),
    ],
)
def test_wrong_usage_is_refused_before_the_script_runs(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from togi.cli.app import run

    written(tmp_path, "open('ran', 'w').close()")
    (tmp_path / "other").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "index.json").write_text("{}", encoding="utf-8")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.json").write_text('{"title": "A site", "modules": []}', encoding="utf-8")
    for name in ("earlier", "mixed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.json").write_text(json.dumps(INDEX_OF_ANOTHER_VERSION), encoding="utf-8")
    (tmp_path / "mixed" / "thesis.txt").touch()
    (tmp_path / "cells.ipynb").touch()
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    assert run(["run", *arguments]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert ("site" in arguments) <= ("--again SCRIPT" not in shown)
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before
    assert not (tmp_path / "ran").exists()


INDEX_OF_ANOTHER_VERSION = {"schema_version": 0, "togi_version": "0", "created": "", "script": "s.py", "modules": [{}]}


def test_a_folder_of_another_version_is_replaced(tmp_path: Path) -> None:
    from togi.script.records import check_replaceable

    (tmp_path / "index.json").write_text(json.dumps(INDEX_OF_ANOTHER_VERSION), encoding="utf-8")
    artifact = tmp_path / "0-Net.togi"
    artifact.mkdir()
    manifest = {"schema_version": 0, "togi_version": "0", "created": "", "recipe": {}}
    (artifact / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    check_replaceable(tmp_path)
    (artifact / "manifest.json").write_text('{"name": "a web app"}', encoding="utf-8")
    with pytest.raises(OutputExistsError, match=r"it holds 0-Net\.togi"):
        check_replaceable(tmp_path)


def test_a_folder_without_rights_is_refused_before_the_script_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tempfile

    from togi.cli.app import run

    def refused(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    written(tmp_path, "open('ran', 'w').close()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    assert run(["run", "script.py"]) == 2
    shown = capsys.readouterr().err
    assert "cannot be written (Permission denied)" in shown
    assert "--out" in shown
    assert not (tmp_path / "ran").exists()


def test_a_folder_of_somebody_else_is_used_only_when_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from togi.cli.app import run

    written(tmp_path, "open('ran', 'w').close()")
    folder = tmp_path / "script.py.togi"
    folder.mkdir()
    (folder / "index.json").write_text(json.dumps(INDEX_OF_ANOTHER_VERSION), encoding="utf-8")
    folder.chmod(0o777)
    monkeypatch.chdir(tmp_path)
    assert run(["run", "script.py"]) == 2
    shown = capsys.readouterr().err
    assert "can be written by others" in shown
    assert "--with" in shown
    assert not (tmp_path / "ran").exists()
