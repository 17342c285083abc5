import subprocess
import sys

import pytest

from togi.core.errors import SubjectError, UnknownNameError
from togi.subject.locator import check_locator, parse


@pytest.mark.parametrize(
    ("text", "form", "target", "factory"),
    [
        ("a/b.py:make", "file", "a/b.py", "make"),
        ("b.py:make", "file", "b.py", "make"),
        ("pkg.sub:make", "package", "pkg.sub", "make"),
        ("timm:resnet50.a1_in1k", "timm", "resnet50.a1_in1k", ""),
        ("torchvision:resnet50?batch=2&size=64", "torchvision", "resnet50", ""),
        ("transformers:./folder", "transformers", "./folder", ""),
        ("m.pt2", "exported", "m.pt2", ""),
        ("m.ts?inputs=1x3", "torchscript", "m.ts", ""),
        ("M.PTH", "torchscript", "M.PTH", ""),
        ("photos.togi", "artifact", "photos.togi", ""),
    ],
)
def test_the_form_of_a_subject_is_recognised(text, form, target, factory):
    locator = parse(text)
    assert (locator.form, locator.target, locator.factory) == (form, target, factory)


def test_options_follow_the_question_mark():
    locator = parse("timm:resnet50?batch=8&size=160")
    assert (locator.integer("batch"), locator.integer("size"), locator.integer("classes")) == (8, 160, None)


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", ""])
def test_an_option_that_is_not_a_positive_integer(value):
    with pytest.raises(SubjectError, match="not a positive integer"):
        parse(f"timm:resnet50?batch={value}").integer("batch")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("timm:resnet50?bach=8", "did you mean 'batch'"),
        ("a.py:make?batch=8", "It takes mode"),
        ("a.pt2?batch=8", "put the choice into the factory"),
    ],
)
def test_an_unknown_option_is_refused(text, expected):
    with pytest.raises(UnknownNameError, match=expected):
        parse(text)


def test_checking_a_name_imports_no_torch(tmp_path):
    (tmp_path / "m.py").write_text("import torch\ndef make(): ...\n", encoding="utf-8")
    code = (
        "import sys; from togi.subject.locator import check_locator\n"
        f"[check_locator(s) for s in ('{tmp_path}/m.py:make', 'timm:resnet50', 'torchvision:resnet18',"
        " 'transformers:bert', 'torch.nn:Linear')]\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_bound_in_blocks_by_imports_and_assignments_are_found(tmp_path):
    path = tmp_path / "m.py"
    path.write_text(
        "from somewhere import imported as renamed\n"
        "try:\n    import x\nexcept ImportError:\n    def in_handler(): ...\n"
        "if True:\n    assigned = lambda: None\n"
        "typed: object = None\n",
        encoding="utf-8",
    )
    for name in ("renamed", "in_handler", "assigned", "typed"):
        check_locator(f"{path}:{name}")
    with pytest.raises(UnknownNameError, match="did you mean 'assigned'"):
        check_locator(f"{path}:asigned")


@pytest.mark.parametrize("text", ["from os import *\n", "def __getattr__(name): ...\n"])
def test_a_file_whose_names_cannot_be_known_passes(tmp_path, text):
    path = tmp_path / "m.py"
    path.write_text(text, encoding="utf-8")
    check_locator(f"{path}:anything")


def test_a_package_is_found_next_to_the_current_folder_and_not_imported(tmp_path, monkeypatch):
    folder = tmp_path / "pkg" / "sub"
    folder.mkdir(parents=True)
    for init in (tmp_path / "pkg" / "__init__.py", folder / "__init__.py"):
        init.write_text("raise RuntimeError('imported')\n", encoding="utf-8")
    (folder / "models.py").write_text("def make(): ...\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    check_locator("pkg.sub.models:make")
    with pytest.raises(UnknownNameError, match="did you mean 'make'"):
        check_locator("pkg.sub.models:mak")
    with pytest.raises(SubjectError, match=r"no module 'pkg\.sub\.model'; did you mean 'models'"):
        check_locator("pkg.sub.model:make")
    with pytest.raises(SubjectError, match="is a module, not a package"):
        check_locator("pkg.sub.models.deeper:make")
