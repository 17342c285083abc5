"""pyproject.toml and overrides: what is taken, what is refused and how it is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from togi.core.errors import TogiError, UnknownNameError
from togi.lint.settings import Overrides, SettingsError, SettingsFinder, overrides, read_table


def table(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pyproject.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_everything_that_can_be_set(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        """[tool.togi.check]
        select = ["source", "unsafe_load"]
        ignore = ["torchscript"]
        exclude = ["old/**"]
        hot = ["decode"]
        max-file-bytes = 10
        per-file-ignores = {"tests/*" = ["empty-cache-in-loop"]}
        """,
    )
    settings = read_table(path)
    assert settings is not None
    assert settings.select == ("source", "unsafe-load")
    assert (settings.ignore, settings.exclude, settings.hot) == (("torchscript",), ("old/**",), ("decode",))
    assert settings.per_file_ignores == {"tests/*": ("empty-cache-in-loop",)}
    assert (settings.max_file_bytes, settings.folder) == (10, tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("selekt = []", "did you mean 'select'"),
        ('select = "all"', "select: Input should be a valid list, got 'all'"),
        ("select = [1]", "select.0: Input should be a valid string, got 1"),
        ('select = ["torchskript"]', "select: there is no rule 'torchskript'; did you mean 'torchscript'"),
        ('per-file-ignores = {"a.py" = ["x-y-z"]}', "per-file-ignores.\"a.py\": there is no rule 'x-y-z'"),
        ("max-file-bytes = 0", "max-file-bytes: Input should be greater than 0"),
        ("hot = {}", "hot: Input should be a valid list"),
        ("hot = [", "is not valid TOML"),
        ('exclude = ["[z-a]"]', "exclude: '[z-a]' is not a pattern"),
        ('per-file-ignores = {"!" = []}', "per-file-ignores: '!' is not a pattern"),
    ],
)
def test_what_is_wrong_is_reported_with_file_and_key(text: str, said: str, tmp_path: Path) -> None:
    path = table(tmp_path, f"[tool.togi.check]\n{text}\n")
    with pytest.raises(TogiError) as error:
        read_table(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("text", ["tool = 3  # togi", "[tool]\ntogi = []", "[tool.togi]\ncheck = 1"])
def test_what_should_be_a_table(text: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"table|Input should be"):
        read_table(table(tmp_path, text))


def test_settings_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"# togi \xff")
    with pytest.raises(SettingsError, match="not UTF-8"):
        read_table(tmp_path / "pyproject.toml")


def test_the_nearest_file_with_the_table_counts(tmp_path: Path) -> None:
    table(tmp_path, '[tool.togi.check]\nignore = ["torchscript"]\n')
    table(tmp_path / "a" / "b", "[tool.ruff]\n# togi\n")
    table(tmp_path / "c", '[tool.togi.check]\nhot = ["step"]\n')
    finder = SettingsFinder(Overrides(ignore=("unsafe-load",)))
    assert finder.of(tmp_path / "a" / "b").ignore == ("torchscript", "unsafe-load")
    assert finder.of(tmp_path / "c").ignore == ("unsafe-load",)
    assert finder.of(tmp_path / "c").hot == ("step",)


def test_a_selection_of_the_call_replaces_that_of_the_file(tmp_path: Path) -> None:
    table(tmp_path, '[tool.togi.check]\nselect = ["source"]\n')
    assert SettingsFinder(overrides(["trace"])).of(tmp_path).select == ("trace",)
    assert SettingsFinder(overrides()).of(tmp_path).select == ("source",)


def test_unknown_names_of_the_call() -> None:
    with pytest.raises(UnknownNameError, match="--ignore: there is no rule 'sauce'; did you mean 'source'"):
        overrides(ignore=["sauce"])
