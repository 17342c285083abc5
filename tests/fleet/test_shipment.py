from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from togi.core.errors import FleetError, SubjectError
from togi.fleet import shipment as module
from togi.fleet.shipment import shipment


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("def subject(): ...\n", encoding="utf-8")


def test_a_file_comes_with_its_folder_but_not_with_what_can_be_made_again(tmp_path: Path) -> None:
    write(tmp_path, "model.py", "layers/block.py", "weights.bin", ".git/config", "__pycache__/model.pyc")
    write(tmp_path, "env/pyvenv.cfg", "env/lib.py", "fleet/request.json", "prices.toml")
    shipped = shipment(f"{tmp_path}/model.py:subject", without=(tmp_path / "fleet", tmp_path / "prices.toml"))
    assert shipped.locator == "model.py:subject"
    assert sorted(shipped.files) == ["layers/block.py", "model.py", "weights.bin"]
    with zipfile.ZipFile(io.BytesIO(shipped.pack())) as archive:
        assert archive.read("layers/block.py") == b"def subject(): ...\n"


def test_a_file_of_a_package_comes_with_what_is_next_to_the_package(tmp_path: Path) -> None:
    write(tmp_path, "shop/__init__.py", "shop/nets/__init__.py", "shop/nets/model.py", "settings.py")
    shipped = shipment(f"{tmp_path}/shop/nets/model.py:subject", without=())
    assert shipped.locator == "shop/nets/model.py:subject"
    assert "settings.py" in shipped.files


def test_a_package_of_the_working_folder_is_shipped_and_an_installed_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "shop/__init__.py", "shop/model.py")
    monkeypatch.chdir(tmp_path)
    assert sorted(shipment("shop.model:subject", without=()).files) == ["shop/__init__.py", "shop/model.py"]
    installed = shipment("togi.claims.formulas.models:branches", without=())
    assert (installed.locator, installed.files) == ("togi.claims.formulas.models:branches", {})


def test_files_and_folders_that_a_name_points_to_go_under_their_own_names(tmp_path: Path) -> None:
    write(tmp_path, "a/model.ts", "w.safetensors", "bert/config.json", "fast.togi/manifest.json")
    (tmp_path / "newest.togi").symlink_to("fast.togi")
    named = {
        f"{tmp_path}/a/model.ts?inputs=1x3,2:int64": ("model.ts?inputs=1x3,2:int64", ["model.ts"]),
        f"torchvision:resnet18?weights={tmp_path}/w.safetensors": (
            "torchvision:resnet18?weights=w.safetensors",
            ["w.safetensors"],
        ),
        f"transformers:{tmp_path}/bert?length=8": ("transformers:bert?length=8", ["bert/config.json"]),
        f"{tmp_path}/fast.togi": ("fast.togi", ["fast.togi/manifest.json"]),
        f"{tmp_path}/newest.togi": ("newest.togi", ["newest.togi/manifest.json"]),
    }
    for subject, (locator, files) in named.items():
        shipped = shipment(subject, without=())
        assert (shipped.locator, sorted(shipped.files)) == (locator, files)


def test_what_is_too_much_is_reported_with_what_takes_the_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "model.py")
    (tmp_path / "big.bin").write_bytes(b"0" * 3000)
    monkeypatch.setattr(module, "LARGEST_BYTES", 2000)
    with pytest.raises(FleetError, match=r"cannot be shipped: .*big\.bin takes 2\.93 KiB"):
        shipment(f"{tmp_path}/model.py:subject", without=())
    monkeypatch.setattr(module, "MOST_FILES", 1)
    with pytest.raises(FleetError, match="more than 1 files"):
        shipment(f"{tmp_path}/model.py:subject", without=())


def test_a_subject_that_is_not_there_is_said_before_anything_is_shipped(tmp_path: Path) -> None:
    with pytest.raises(SubjectError, match="there is no file"):
        shipment(f"{tmp_path}/model.py:subject", without=())


def test_a_link_that_leads_out_is_not_shipped(tmp_path: Path) -> None:
    write(tmp_path, "m/model.py", "m/own.py", "secret")
    (tmp_path / "m" / "inside.py").symlink_to("own.py")
    assert "inside.py" in shipment(f"{tmp_path}/m/model.py:subject", without=()).files
    (tmp_path / "m" / "data.bin").symlink_to("../secret")
    with pytest.raises(FleetError, match=r"data.bin leads to .*secret, out of the folder"):
        shipment(f"{tmp_path}/m/model.py:subject", without=())
