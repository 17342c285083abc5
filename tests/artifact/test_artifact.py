"""An artifact is written, loads without pickle, falls back, and refuses everything that is not as it was proven."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import togi
from tests.artifact.artifact_maker import ArtifactMaker
from tests.artifact.exports import exporting_elsewhere
from tests.artifact.forks import in_a_fork, needs_fork
from tests.artifact.small_artifacts import RECIPES, Net, make
from togi.artifact import load as loading
from togi.artifact.export import export
from togi.artifact.load import FallbackWarning, load
from togi.artifact.manifest import MANIFEST, PartEntry, document_hash, part_folder, read_manifest
from togi.artifact.save import check_writable, publish, write_manifest
from togi.core.errors import ArtifactError, OutputExistsError, TogiError, UnknownNameError
from togi.core.recipe import PartKey
from togi.core.records import Outcome
from togi.subject.effects import Effects
from togi.subject.inputs import Subject
from togi.subject.structure import Structure
from togi.techniques import Engine, all_techniques, recipe
from togi.techniques.engine.onnxruntime import OnnxRuntime
from togi.techniques.engine.programs import openvino
from togi.torch_internals import openmp
from togi.torch_internals.tensors import FakeTensorMode

PIECES = {"pieces": 3, "at_once": True}
OLD = Path(__file__).parent / "data" / "no_grad.togi"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifact") / "net.togi"
    make(folder, recipe(onnxruntime={"spinning": True}, no_grad={}))
    return folder


@pytest.fixture
def artifact(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "net.togi"))


def test_it_is_called_like_the_original_and_answers_like_it(artifact: Path) -> None:
    optimized = load(artifact)
    x, scale = torch.randn(3, 8), torch.rand(3, 4)
    by_name, by_position = optimized(x=x, scale=scale), optimized(x, scale)
    assert list(by_name) == ["y", "norm"]
    assert optimized.engine == "onnxruntime"
    torch.testing.assert_close(by_name["y"], by_position["y"])
    torch.testing.assert_close(by_name["norm"], (by_name["y"] / scale).square().sum(-1), rtol=1e-4, atol=1e-5)


class Ranks(nn.Module):
    """Returns what torch returns."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.linear(x)
        return {"best": y.max(1), "all": [y.topk(3), y.shape]}


@pytest.mark.parametrize(
    "engine", [pytest.param(name, marks=[pytest.mark.thorough] * (name != "eager")) for name in RECIPES]
)
def test_what_torch_returned_in_the_original_has_its_names_in_the_artifact(engine: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = Ranks().eval(), torch.randn(3, 8)
    ArtifactMaker.of(Subject(module, [x]), "Ranks").make(tmp_path / "ranks.togi", RECIPES[engine])
    found, expected = load(tmp_path / "ranks.togi")(x), module(x)
    torch.testing.assert_close(found["best"].values, expected["best"].values)
    assert torch.equal(found["all"][0].indices, expected["all"][0].indices)
    assert found["all"][1].numel() == 18
    assert repr(Structure.of(found)) == repr(Structure.of(expected))


@pytest.mark.thorough
@pytest.mark.parametrize("engine", RECIPES)
def test_under_autocast_it_computes_as_it_was_proven(engine: str, artifact_of: Callable[[str], Path]) -> None:
    optimized, x, scale = load(artifact_of(engine)), torch.randn(3, 8), torch.rand(3, 4)
    expected = optimized(x, scale)
    with torch.autocast("cpu", torch.bfloat16):
        found = optimized(x, scale)
    assert [(name, value.dtype) for name, value in found.items()] == [(name, torch.float32) for name in expected]
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_the_precision_of_products_holds_from_files_too(tmp_path: Path) -> None:
    """No file holds it."""
    precisions = set()

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            precisions.add(torch.get_float32_matmul_precision())
            return function(*args, **(kwargs or {}))

    make(tmp_path / "net.togi", recipe(tf32={}, no_grad={}))
    optimized, x, scale = load(tmp_path / "net.togi"), torch.randn(3, 8), torch.rand(3, 4)
    with Watching():
        optimized(x, scale)
    assert precisions == {"high"}
    assert torch.get_float32_matmul_precision() == "highest"


def test_malloc_keeps_memory_as_where_it_was_proven_unless_told_otherwise(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(loading, "keep_freed_memory", lambda: told.append("keep"))
    load(artifact, keep_memory=False)
    assert told == []
    load(artifact)
    assert told == ["keep"]


class CountingThreads(TorchDispatchMode):
    """Torch's threads in each matrix product: what looks at the inputs before is not the model's."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if "mm" in str(function):
            self.seen.add(torch.get_num_threads())
        return function(*args, **(kwargs or {}))


@pytest.fixture
def eight_threads() -> Iterator[None]:
    """As where torch counts the machine's cores, of which a container may use fewer."""
    before = torch.get_num_threads()
    torch.set_num_threads(8)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("eight_threads")
@pytest.mark.parametrize(("cores", "named", "used"), [(2, None, 2), (8, None, 8), (64, None, 8), (2, "8", 8)])
@pytest.mark.parametrize("engine", ["eager", "onnxruntime"])
def test_an_artifact_takes_no_more_threads_than_the_quota_has_cores(
    engine: str,
    cores: int,
    named: str | None,
    used: int,
    artifact_of: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "usable_cores", lambda: cores)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if named is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", named)
    optimized = load(artifact_of(engine))
    assert torch.get_num_threads() == 8, "loading leaves the process as it is"
    cut = [warning for warning in optimized.warnings if "threads were cut" in warning]
    assert cut == ([f"8 threads were cut to {used}: {cut[0].partition(': ')[2]}"] if used == 2 else [])
    with CountingThreads() as counting:
        optimized(torch.randn(3, 8), torch.rand(3, 4))
    assert torch.get_num_threads() == 8
    if engine == "eager":
        assert counting.seen == {used}
        torch.set_num_threads(1)
        with CountingThreads() as counting:
            optimized(torch.randn(3, 8), torch.rand(3, 4))
        assert counting.seen == {1}, "its caller, a worker of a DataLoader say, may use no more"
    else:
        program = loading.load_link(
            artifact_of(engine),
            optimized.manifest.signature,
            optimized.manifest.facts,
            optimized.manifest.chain[0],
            True,
        ).program
        assert program.session.get_session_options().intra_op_num_threads == used  # type: ignore[union-attr]


@pytest.mark.usefixtures("eight_threads")
def test_workers_that_flush_are_as_many_as_an_artifact_was_cut_to(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "usable_cores", lambda: 2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    told: list[int] = []
    monkeypatch.setattr(openmp, "share_floating_point_mode", told.append)
    manifest = read_manifest(artifact)
    eager = next(link for link in manifest.chain if link.engine == "eager")
    flushes = eager.model_copy(update={"runtime": recipe(flush_denormal={}).choices})
    loaded = loading.load_link(artifact, manifest.signature, manifest.facts, flushes, True)
    loaded.runnable()(torch.randn(3, 8), torch.rand(3, 4))
    assert told == [2, 2]
    torch.set_num_threads(1)
    loaded.runnable()(torch.randn(3, 8), torch.rand(3, 4))
    assert told == [2, 2], "one flushes by itself"


@pytest.mark.parametrize(("proven", "fits"), [(4, 2), (2, None), (1, None)])
def test_threads_that_were_proven_elsewhere_are_cut_to_the_cores_here(
    proven: int, fits: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "usable_cores", lambda: 2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert loading.threads_that_fit(proven, "cpu") == fits
    assert loading.threads_that_fit(proven, "cuda") is None


def test_other_sizes_dtypes_and_forms_are_refused_with_the_form_that_is_accepted(artifact: Path) -> None:
    optimized = load(artifact)
    with pytest.raises(ValueError, match=r"x has shape \(5, 8\), but was tuned and proven for \(3, 8\)"):
        optimized(torch.randn(5, 8), torch.rand(3, 4))
    with pytest.raises(TypeError, match=r"float64"):
        optimized(torch.randn(3, 8, dtype=torch.float64), torch.rand(3, 4))
    with pytest.raises(TypeError, match=r"\(x, scale\)|\(scale, x\)"):
        optimized(torch.randn(3, 8))


def test_a_batch_in_pieces_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    """Engine and fallback are those of a piece; calls are those of the whole."""
    in_three = recipe(torchscript={"how": "trace", "freeze": True, "optimize": True}, split_batch=PIECES, no_grad={})
    manifest = make(tmp_path / "net.togi", in_three)
    assert [link.engine for link in manifest.chain] == ["torchscript", "eager"]
    x, scale = torch.randn(3, 8), torch.rand(3, 4)
    found = load(tmp_path / "net.togi")(x, scale)
    assert found["y"].shape == (3, 4)
    torch.testing.assert_close(found["norm"], (found["y"] / scale).square().sum(-1), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"has shape \(1, .\), but was tuned and proven for \(3, .\)"):
        load(tmp_path / "net.togi")(torch.randn(1, 8), torch.rand(1, 4))
    with pytest.raises(ArtifactError, match=r"in pieces.*--without split_batch"):
        export(tmp_path / "net.togi", "pt2", tmp_path / "out")


def test_where_the_engine_cannot_run_the_fallback_does_and_says_so(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, scale = torch.randn(3, 8), torch.rand(3, 4)
    expected = load(artifact)(x, scale)

    def broken(*_: object) -> None:
        raise RuntimeError("illegal instruction set")

    monkeypatch.setattr(OnnxRuntime, "load", broken)
    with pytest.warns(FallbackWarning, match="illegal instruction set.*using eager instead"):
        optimized = load(artifact)
    assert optimized.engine == "eager"
    torch.testing.assert_close(optimized(x, scale)["y"], expected["y"], rtol=1e-4, atol=1e-5)


def test_an_empty_chain_is_an_error_that_lists_why(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("nothing works")

    monkeypatch.setattr(loading, "load_link", broken)
    with pytest.raises(ArtifactError, match=r"onnxruntime cannot run here.*eager cannot run here"):
        load(artifact)


@pytest.mark.parametrize("name", ["toaster", "gpu", "CPU", "cuda:", "cuda:x", "", "mps"])
def test_a_device_that_there_is_not_is_refused_by_name(artifact: Path, name: str) -> None:
    with pytest.raises(UnknownNameError, match=f"no device '{name}'.*cpu, cuda or cuda:N"):
        load(artifact, device=name)


def test_of_several_devices_it_runs_on_the_current_one(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = read_manifest(artifact)
    tuned = manifest.model_copy(update={"facts": manifest.facts.model_copy(update={"device": "cuda"})})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    for given in (None, "cuda", "cuda:1"):
        loading._check_device(tuned, given)
    with pytest.raises(ArtifactError, match=r"cuda:1, and not on cuda:0: call torch.cuda.set_device\(0\) first"):
        loading._check_device(tuned, "cuda:0")


@pytest.mark.thorough
def test_parts_without_their_program_are_not_compared(artifact: Path, tmp_path: Path) -> None:
    old = read_manifest(artifact)
    about = {name: getattr(old, name) for name in ("subject", "recipe", "signature", "facts", "proof", "environment")}
    shutil.copytree(artifact, part_folder(tmp_path / "parts.togi", 0))
    part = PartEntry(key=PartKey(path="body"), module="Body", effects=Effects(), weights="")
    write_manifest(tmp_path / "parts.togi", **about, parts=(part,))
    whole, parts = togi.bench(str(artifact), str(tmp_path / "parts.togi"), time_limit_s=5).contestants
    assert whole.outcome is Outcome.OK
    assert parts.outcome is not Outcome.OK
    assert "which calls them: name the program first" in parts.reason


def test_a_device_that_it_was_not_tuned_for(artifact: Path) -> None:
    with pytest.raises(ArtifactError, match="tuned for cpu, not for cuda: tune again with --device cuda"):
        load(artifact, device="cuda")
    assert load(artifact, device="cpu").engine == load(artifact).engine


def test_a_loaded_artifact_is_for_inference_only(artifact: Path) -> None:
    optimized = load(artifact)
    assert optimized.eval() is optimized
    with pytest.raises(RuntimeError, match="inference only"):
        optimized.train()


def test_that_no_gradients_reach_its_inputs_is_said_once(artifact: Path) -> None:
    optimized, x, scale = load(artifact), torch.rand(3, 8, requires_grad=True), torch.rand(3, 4)
    with torch.no_grad():
        optimized(x, scale)
    with pytest.warns(UserWarning, match="inference only, so none will reach them"):
        optimized(x, scale)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimized(x, scale)


def some_file(artifact: Path) -> Path:
    return next(p for p in sorted(artifact.rglob("*")) if p.is_file() and p.name != MANIFEST)


def edit(artifact: Path, change: dict[str, object]) -> None:
    """As somebody does who knows what the manifest is checked for."""
    path = artifact / MANIFEST
    document = json.loads(path.read_text(encoding="utf-8")) | change
    path.write_text(json.dumps(document | {"sha256": document_hash(document)}), encoding="utf-8")


def test_a_file_with_a_changed_byte_is_refused(artifact: Path) -> None:
    path = some_file(artifact)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="has changed since it was proven"):
        load(artifact)


def test_a_changed_value_of_the_manifest(artifact: Path) -> None:
    path = artifact / MANIFEST
    path.write_text(path.read_text(encoding="utf-8").replace('"subject": "Net"', '"subject": "Nut"'), encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"manifest\.json has changed since it was written"):
        load(artifact)


@pytest.mark.parametrize("device", ["../../x", "cpu:", "meta", ""])
def test_a_device_that_is_none_is_refused(artifact: Path, device: str) -> None:
    facts = json.loads((artifact / MANIFEST).read_text(encoding="utf-8"))["facts"]
    edit(artifact, {"facts": facts | {"device": device}})
    with pytest.raises(ArtifactError, match="as the device, which is none"):
        load(artifact)


def test_without_native_code_the_chain_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if ONNX Runtime's files were machine code, since building a native library takes long."""
    folder = tmp_path / "net.togi"
    make(folder, recipe(onnxruntime={"spinning": True}, no_grad={}))
    monkeypatch.setattr(OnnxRuntime, "native", True)
    assert load(folder).engine == "onnxruntime"
    with pytest.warns(FallbackWarning, match="a program, which native=False leaves out.*using eager"):
        assert load(folder, native=False).engine == "eager"
    edit(folder, {"chain": json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["chain"][:1]})
    with pytest.raises(ArtifactError, match="native=False"):
        load(folder, native=False)


def test_engines_whose_files_are_programs_are_known() -> None:
    native = {name for name, each in all_techniques().items() if isinstance(each, Engine) and each.native}
    assert native == {"aot_inductor", "torchscript", "ncnn"}


def test_a_file_that_was_cut_is_refused(artifact: Path) -> None:
    path = some_file(artifact)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ArtifactError, match="it was cut or changed"):
        load(artifact)


def test_an_artifact_that_lacks_a_file_is_refused(artifact: Path) -> None:
    some_file(artifact).unlink()
    with pytest.raises(ArtifactError, match=r"lacks .* copy the whole folder again"):
        load(artifact)


def test_a_file_that_was_added_later_is_refused(artifact: Path) -> None:
    (artifact / "extra.bin").write_bytes(b"x")
    with pytest.raises(ArtifactError, match=r"holds extra\.bin, which its manifest does not list"):
        load(artifact)


@pytest.mark.parametrize("name", ["../outside.bin", "/etc/passwd", "a/../../b.bin", "a\\b.bin"])
def test_a_path_that_leaves_the_folder(artifact: Path, name: str) -> None:
    edit(artifact, {"files": [{"path": name, "bytes": 1, "sha256": "0" * 64}]})
    with pytest.raises(ArtifactError, match="leaves the artifact's folder"):
        load(artifact)


def test_a_symbolic_link_in_an_artifact_is_refused(artifact: Path, tmp_path: Path) -> None:
    path = some_file(artifact)
    outside = tmp_path / "outside"
    path.rename(outside)
    path.symlink_to(outside)
    with pytest.raises(ArtifactError, match="plain files only"):
        load(artifact)


class Boom:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch pwned",)


@pytest.mark.parametrize("name", ["weights.pkl", "weights.bin"])
def test_a_pickle_slipped_in_with_a_right_hash(artifact: Path, name: str) -> None:
    import hashlib

    data = pickle.dumps(Boom())
    (artifact / name).write_bytes(data)
    manifest = json.loads((artifact / MANIFEST).read_text(encoding="utf-8"))
    entry = {"path": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    edit(artifact, {"files": [*manifest["files"], entry]})
    with pytest.raises(ArtifactError, match="pickle"):
        load(artifact)
    assert not Path("pwned").exists()


def test_a_manifest_of_a_gigabyte_is_not_read(artifact: Path) -> None:
    with (artifact / MANIFEST).open("r+b") as file:
        file.truncate(1 << 30)
    with pytest.raises(ArtifactError, match="was not read"):
        load(artifact)


@pytest.mark.parametrize("change", [{"schema_version": 99}, {"unknown": 1}, {"chain": "no"}])
def test_a_manifest_of_another_kind(artifact: Path, change: dict[str, object]) -> None:
    edit(artifact, change)
    with pytest.raises(ArtifactError, match=r"schema|manifest"):
        load(artifact)


def test_an_unknown_engine_is_refused(artifact: Path) -> None:
    manifest = json.loads((artifact / MANIFEST).read_text(encoding="utf-8"))
    edit(artifact, {"chain": [manifest["chain"][0] | {"engine": "no_grad"}]})
    with pytest.raises(ArtifactError, match="names no_grad as an engine"):
        load(artifact)


@pytest.mark.parametrize("parts", [3, [{"path": "a"}], [{"key": {"path": "a"}, "module": "A", "folder": ".."}]])
def test_parts_that_are_none(artifact: Path, parts: object) -> None:
    edit(artifact, {"parts": parts})
    with pytest.raises(ArtifactError, match="is not a manifest of schema"):
        load(artifact)


def test_an_artifact_of_another_schema_is_refused_in_one_line(artifact: Path) -> None:
    edit(artifact, {"schema_version": 1})
    with pytest.raises(ArtifactError, match=r"has schema 1, this togi reads 2: tune again with this one$"):
        load(artifact)


def test_a_folder_that_is_not_an_artifact_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="not a folder"):
        load(tmp_path / "none.togi")
    with pytest.raises(ArtifactError, match=r"holds no manifest\.json"):
        load(tmp_path)


def test_publishing_is_whole_or_not_at_all(artifact: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "copy.togi"
    with pytest.raises(ArtifactError, match="does not exist: create it"):
        publish(artifact, out)
    out.parent.mkdir()
    publish(artifact, out)
    assert load(out).engine == "onnxruntime"
    with pytest.raises(OutputExistsError, match="--force"):
        publish(artifact, out)
    publish(artifact, out, force=True)
    assert [p.name for p in out.parent.iterdir()] == ["copy.togi"]


def test_several_publish_to_one_place(artifact: Path, tmp_path: Path) -> None:
    out = tmp_path / "folder" / "copy.togi"
    (out.parent / ".copy.togi.partial").mkdir(parents=True)  # of a process that was killed
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: publish(artifact, out, force=True), range(12))) == [out] * 12
    assert load(out).engine == "onnxruntime"
    assert [p.name for p in out.parent.iterdir()] == ["copy.togi"]


def test_what_is_not_an_artifact_is_never_replaced(tmp_path: Path) -> None:
    precious = tmp_path / "photos.togi"
    precious.mkdir()
    (precious / "photo.jpg").write_bytes(b"x")
    with pytest.raises(OutputExistsError, match="not replaced"):
        check_writable(precious, force=True)


def test_an_output_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ArtifactError, match="does not exist"):
        check_writable(tmp_path / "file" / "out.togi", force=False)


def test_an_output_without_the_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"give model\.pt\.togi"):
        check_writable(tmp_path / "model.pt", force=False)


@pytest.mark.parametrize("order", [[[0]], [7], [-1], [True], ["0"], [], 3, None])
def test_outputs_that_the_model_does_not_have_are_refused(order: object) -> None:
    signature = read_manifest(OLD).signature
    with pytest.raises(ArtifactError, match="of which output is which"):
        openvino._checked_order(order, 1, signature)
    assert openvino._checked_order([0], 1, signature) == [0]


def test_a_written_artifact_loads_and_answers_the_same() -> None:
    """A change of the records that refuses it needs another schema version."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        found = load(OLD)
    torch.manual_seed(0)
    first, second = nn.Linear(4, 3), nn.Linear(3, 2)
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    torch.testing.assert_close(found(x=x)["y"], second(first(x).relu()), check_stride=False)
    assert found.recipe.label == "no_grad"
    assert found.proof.eligible


def test_no_warning_where_all_is_well(artifact: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        assert load(artifact).warnings == ()


RECORDS: dict[str, Callable[[nn.Module], object]] = {
    "trace": lambda model: torch.jit.trace(model, (torch.rand(3, 8), torch.rand(3, 4))),
    "export": lambda model: torch.export.export(model, (torch.rand(3, 8), torch.rand(3, 4)), strict=False),
    "fake tensors": lambda model: under_fakes(model),
}


def under_fakes(model: nn.Module) -> object:
    with FakeTensorMode():
        return model(torch.rand(3, 8), torch.rand(3, 4))


@pytest.mark.parametrize("how", RECORDS)
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning", "ignore:.*torch.jit.*:DeprecationWarning")
def test_what_records_its_calls_is_refused(how: str, artifact: Path) -> None:
    """The answer of an engine that is not torch's would be recorded as a constant."""
    optimized = load(artifact)
    with pytest.raises(TogiError, match="would become a constant: give the original model"):
        RECORDS[how](optimized)
    optimized(torch.rand(3, 8), torch.rand(3, 4))


def test_it_answers_while_another_thread_exports(artifact: Path) -> None:
    optimized, x, scale = load(artifact), torch.rand(3, 8), torch.rand(3, 4)
    expected = optimized(x, scale)["y"]
    with exporting_elsewhere():
        torch.testing.assert_close(optimized(x, scale)["y"], expected)


def test_what_transforms_its_calls_is_refused(artifact: Path) -> None:
    """A derivative would be lost in the engine, without a word."""
    optimized, x, scale = load(artifact), torch.rand(3, 8), torch.rand(3, 4)
    with forward_ad.dual_level(), pytest.raises(TogiError, match="the derivative would be lost in its engine"):
        optimized(forward_ad.make_dual(x, torch.ones_like(x)), scale)
    with pytest.raises(TogiError, match=r"called under torch.func \(vmap"):
        torch.vmap(optimized)(torch.stack([x, x]), torch.stack([scale, scale]))
    optimized(x, scale)


def test_what_is_compiled_round_it_runs_it_as_it_is(artifact: Path) -> None:
    optimized, x, scale = load(artifact), torch.rand(3, 8), torch.rand(3, 4)
    compiled = torch.compile(lambda x, scale: optimized(x, scale)["y"] + 1, backend="eager")
    for given in (x, x + 1):
        torch.testing.assert_close(compiled(given, scale), optimized(given, scale)["y"] + 1)


@needs_fork
def test_a_forked_process_hears_that_the_engines_threads_did_not_come_along(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    make(tmp_path / "net.togi", recipe(openvino={}, no_grad={}, split_batch=PIECES))
    optimized, x, scale = load(tmp_path / "net.togi"), torch.rand(3, 8), torch.rand(3, 4)
    optimized(x, scale)

    def says_so() -> bool:
        with pytest.raises(TogiError, match=r"threads of its engine \(openvino\).*Load it in the process"):
            optimized(x, scale)
        return True

    assert in_a_fork(says_so)
    optimized(x, scale)


def test_a_part_falls_back_on_the_original_which_its_program_has(tmp_path: Path) -> None:
    """It takes no second copy of the weights, and nothing that would have to be proven."""
    samples = [{"x": torch.randn(3, 8), "scale": torch.full((3, 4), 2.0)}]
    whole = ArtifactMaker.of(Subject(Net(), samples), "Net")
    part = replace(whole, facts=whole.facts.model_copy(update={"part": True}))
    for maker, files in ((whole, True), (part, False)):
        folder = tmp_path / f"{files}.togi"
        manifest = maker.make(folder, recipe(onnxruntime={"spinning": True}, no_grad={}))
        assert [link.engine for link in manifest.chain] == ["onnxruntime", "eager"]
        assert (folder / "eager").exists() is files
        assert load(folder).engine == "onnxruntime"
