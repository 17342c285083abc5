"""ONNX Runtime on a CUDA device, shown without one: bound memory is the CPU's, and the session is a recorded one."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from tests.techniques.engine.engine_subjects import candidate_of, made
from togi.core.caches import cache_folder
from togi.core.callers import Callers
from togi.core.errors import Refused
from togi.subject.inputs import Inputs
from togi.techniques import Applies, Refuses, technique
from togi.techniques.conformance import check_no_graph_kept
from togi.techniques.engine.programs.onnxruntime import OnnxRuntimeProgram, open_session
from togi.techniques.engine.programs.onnxruntime_binding import ReplayedSession, empty

CUDA, TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"
OPTIONS = {"spinning": False, "tf32": True}


class Session:
    """Opens with the providers it is given, or (``works`` False) falls back to the CPU as the real one does."""

    works = True
    opened: list[Any] = []

    def __init__(self, path: str, settings: Any, providers: list[Any]) -> None:
        type(self).opened = providers

    def get_providers(self) -> list[str]:
        return [CUDA, "CPUExecutionProvider"] if self.works else ["CPUExecutionProvider"]


@pytest.fixture
def preloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    done: list[str] = []
    monkeypatch.setenv("TOGI_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA])
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: done.append("preloaded"), raising=False)
    return done


@pytest.mark.parametrize("tf32", [True, False])
def test_the_provider_rounds_as_plain_eager_does(preloaded: list[str], tf32: bool) -> None:
    open_session(Path("model.onnx"), "cuda", {"spinning": False, "tf32": tf32}, 1)
    assert Session.opened == [(CUDA, {"use_tf32": "1" if tf32 else "0"})]
    assert preloaded == ["preloaded"]


def test_a_session_that_fell_back_to_the_cpu_is_refused(preloaded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "works", False)
    with pytest.raises(RuntimeError, match="could not load its CUDAExecutionProvider and fell back"):
        open_session(Path("model.onnx"), "cuda", OPTIONS, 1)
    open_session(Path("model.onnx"), "cpu", OPTIONS, 1)
    assert preloaded == ["preloaded"], "once: nothing of CUDA is loaded for the CPU"


@pytest.mark.usefixtures("preloaded")
def test_a_package_without_the_provider_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(RuntimeError, match="pip install onnxruntime-gpu"):
        open_session(Path("model.onnx"), "cuda", OPTIONS, 1)


@pytest.mark.parametrize("options", [{"spinning": False}, {"spinning": False, "provider": "tensorrt"}])
def test_a_package_without_the_provider_is_refused_before_the_export(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    written: list[object] = []
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr("togi.techniques.engine.programs.onnxruntime.write_model", lambda *a: written.append(a))
    start = made("convolutions")
    on_cuda = start.with_(signature=start.signature.model_copy(update={"device": "cuda"}))
    with pytest.raises(Refused, match=r"has no (CUDA|Tensorrt)ExecutionProvider: pip install onnxruntime-gpu"):
        technique("onnxruntime").apply(on_cuda, options)
    assert written == []


@pytest.mark.parametrize(
    ("installed", "refused"),
    [
        ({"onnxruntime": "1.30.0"}, True),
        ({"onnxruntime-gpu": "1.30.0"}, False),
        ({"onnxruntime": "1.30.0", "onnxruntime-gpu": "1.30.0"}, False),
        ({}, False),  # missing, which is asked elsewhere
    ],
)
def test_the_build_for_cpus_is_refused_on_a_gpu_by_its_name(installed: dict[str, str], refused: bool) -> None:
    facts = made("convolutions").facts
    here = facts.machine.model_copy(update={"versions": installed})
    engine = technique("onnxruntime")
    answer = engine.applies(facts.model_copy(update={"machine": here, "device": "cuda"}))
    assert isinstance(answer, Refuses if refused else Applies)
    assert not refused or "pip install onnxruntime-gpu" in str(answer)
    assert engine.applies(facts.model_copy(update={"machine": here})) == Applies(), "on a CPU it is what is needed"


def test_what_eager_does_with_float32_is_kept_in_the_artifact() -> None:
    for tf32 in ((), ("convolution",)):
        candidate = made("convolutions", tf32=tf32)
        program = technique("onnxruntime").apply(candidate, {"spinning": False}).program
        assert isinstance(program, OnnxRuntimeProgram)
        assert program.meta()["options"] == {"spinning": False, "tf32": bool(tf32)}


class Two(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.transpose(0, 1) + 1, y.sum(0) > 2


@pytest.mark.parametrize("allocated_by", ["torch", "the session"])
def test_bound_outputs_are_fresh_and_right(monkeypatch: pytest.MonkeyPatch, allocated_by: str) -> None:
    x, y = torch.arange(6.0).reshape(2, 3), torch.ones(4, 5)
    candidate = technique("onnxruntime").apply(candidate_of(Two(), (x, y)), {"spinning": False})
    program = candidate.program
    assert isinstance(program, OnnxRuntimeProgram)
    if allocated_by == "the session":
        monkeypatch.setattr("togi.techniques.engine.programs.onnxruntime.empty", lambda *_: None)
    waited: list[bool] = []
    stream = SimpleNamespace(synchronize=lambda: waited.append(True))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    first = program._run_bound([x, y])
    second = program._run_bound([x.T.contiguous().T * 2, y * 0])
    torch.testing.assert_close(first[0], x.T + 1)
    torch.testing.assert_close(second[0], x.T * 2 + 1)
    assert first[1].all()
    assert not second[1].any()
    assert first[1].dtype is torch.bool
    per_call = {"torch": 1, "the session": 2}[allocated_by]
    assert len(waited) == 2 * per_call, "the session reads on a stream of its own; what it made is copied on torch's"


class Lent:
    """A value in the session's memory, which goes back to the session with the last reference to it."""

    def __init__(self, tensor: Tensor, told: list[str]) -> None:
        self.tensor, self.told = tensor, told
        self.__dlpack__, self.__dlpack_device__ = tensor.__dlpack__, tensor.__dlpack_device__

    def __del__(self) -> None:
        self.told.append("given back")


class Recorded:
    """A session and its binding, which tell what is asked of them and return what they were given."""

    def __init__(self, told: list[str]) -> None:
        self.told = told
        self.io_binding = lambda: self
        self.get_inputs = lambda: [SimpleNamespace(name="input_0")]
        self.get_outputs = lambda: [SimpleNamespace(name="output_0")]

    def bind_input(self, name: str, device: str, *_: Any) -> None:
        self.told.append(f"bind {name}")

    bind_output = bind_input

    def run_with_iobinding(self, binding: Recorded) -> None:
        self.told.append("run")
        binding.get_outputs = lambda: [Lent(torch.ones(2, 3), self.told)]


@pytest.mark.parametrize(
    ("allocated_by", "after"), [("torch", ["given back"]), ("the session", ["wait", "given back"])]
)
def test_memory_of_the_session_goes_back_once_it_is_copied(
    monkeypatch: pytest.MonkeyPatch, allocated_by: str, after: list[str]
) -> None:
    """The copy runs on torch's stream, and other callers' runs, which may be given the memory, on the session's."""
    told: list[str] = []
    program = OnnxRuntimeProgram(Recorded(told), candidate_of(nn.Identity(), torch.ones(2, 3)).signature, {})
    if allocated_by == "the session":
        monkeypatch.setattr("togi.techniques.engine.programs.onnxruntime.empty", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=lambda: told.append("wait")))
    program._run_bound([torch.ones(2, 3)])
    assert told == ["wait", "bind input_0", "bind output_0", "run", *after]


def test_a_session_of_an_older_release_hands_over_on_the_host() -> None:
    value = SimpleNamespace(numpy=lambda: torch.arange(3.0).numpy())
    program = object.__new__(OnnxRuntimeProgram)
    program.signature = candidate_of(nn.Identity(), torch.ones(3)).signature
    assert program._handed_over(value, program.signature.outputs_facts[0]).tolist() == [0, 1, 2]


def test_sizes_that_vary_are_not_allocated_beforehand() -> None:
    facts = candidate_of(nn.Identity(), torch.ones(2, 3)).signature.outputs_facts[0]
    allocated = empty(facts, "cpu")
    assert allocated is not None
    assert allocated.shape == (2, 3)
    assert empty(facts.model_copy(update={"shape": (None, 3)}), "cpu") is None


def on_tensorrt() -> dict[str, Any]:
    return {"spinning": False, "provider": "tensorrt"}


def test_tensorrts_provider_stands_before_cudas(preloaded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [TENSORRT, CUDA])
    monkeypatch.setattr(Session, "get_providers", lambda _: [TENSORRT, CUDA, "CPUExecutionProvider"])
    open_session(Path("model.onnx"), "cuda", {**on_tensorrt(), "tf32": True}, 1)
    assert [name for name, _ in Session.opened] == [TENSORRT, CUDA]
    assert preloaded == ["preloaded"]


@pytest.mark.usefixtures("preloaded")
@pytest.mark.parametrize("how", [None, "cast"])
def test_tensorrt_computes_in_float16_where_the_recipe_does(monkeypatch: pytest.MonkeyPatch, how: str | None) -> None:
    """Of a model that names float16 it refuses to build anything without the flag (NVIDIA/TensorRT issue 3277)."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [TENSORRT, CUDA])
    monkeypatch.setattr(Session, "get_providers", lambda _: [TENSORRT, CUDA, "CPUExecutionProvider"])
    monkeypatch.setattr(Session, "get_inputs", lambda _: [], raising=False)
    monkeypatch.setattr(Session, "get_outputs", lambda _: [], raising=False)
    candidate = made("convolutions", tf32=("convolution",))
    candidate = candidate.with_(signature=candidate.signature.model_copy(update={"device": "cuda"}))
    if how is not None:
        candidate = technique("fp16").apply(candidate, {"how": how})
    program = technique("onnxruntime").apply(candidate, on_tensorrt()).program
    half = how is not None
    name, settings = Session.opened[0]
    assert (name, settings["trt_fp16_enable"]) == (TENSORRT, str(int(half)))
    assert Path(settings["trt_engine_cache_path"]).is_relative_to(cache_folder())
    assert isinstance(program, OnnxRuntimeProgram)
    assert program.meta()["options"]["fp16"] is half, "a loaded artifact is built as it was"


@pytest.mark.usefixtures("preloaded")
@pytest.mark.parametrize("available", [[CUDA], [TENSORRT, CUDA]])
def test_tensorrts_provider_is_refused_with_the_reason_where_it_cannot_work(
    monkeypatch: pytest.MonkeyPatch, available: list[str]
) -> None:
    """The package has none, or has it without TensorRT's libraries: then the session is one of CUDA's."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: available)
    candidate = made("convolutions", device="cuda", tf32=("convolution",))
    candidate = candidate.with_(signature=candidate.signature.model_copy(update={"device": "cuda"}))
    lacking = "could not load its Tensorrt" if TENSORRT in available else "has no TensorrtExecutionProvider"
    with pytest.raises(Refused, match=lacking):
        technique("onnxruntime").apply(candidate, on_tensorrt())


def test_tensorrts_provider_is_offered_where_eager_rounds_as_it_does() -> None:
    facts = made("convolutions").facts.model_copy(update={"device": "cuda", "tf32": ("convolution",)})
    first, *_, last = technique("onnxruntime").options(facts)
    assert (first, last) == ({"spinning": False}, on_tensorrt())
    exact = facts.model_copy(update={"tf32": ()})
    assert not any("provider" in options for options in technique("onnxruntime").options(exact))


class Replaying:
    """A real session on the CPU that does as one with a CUDA graph: whatever is bound later, it reads and writes where
    its first run did, and it serves one thread."""

    def __init__(self, session: Any) -> None:
        self.session, self.captured, self.running = session, None, threading.Lock()  # type: Any, Any, Any
        self.get_inputs, self.get_outputs, self.io_binding = session.get_inputs, session.get_outputs, session.io_binding

    def run_with_iobinding(self, binding: Any) -> None:
        assert self.running.acquire(blocking=False), "two threads at once"
        self.captured = self.captured or binding
        self.session.run_with_iobinding(self.captured)
        self.running.release()


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> ReplayedSession:
    candidate = technique("onnxruntime").apply(candidate_of(Two(), (torch.ones(2, 3), torch.ones(4, 5))), OPTIONS)
    program = candidate.program
    assert isinstance(program, OnnxRuntimeProgram)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=lambda: None))
    options = {**OPTIONS, "cuda_graph": True}
    captured = OnnxRuntimeProgram(Replaying(program.session), program.signature, options)._replayed
    assert captured is not None
    return captured


def test_a_captured_session_is_given_its_own_inputs_and_gives_fresh_outputs(replayed: ReplayedSession) -> None:
    x, y = torch.arange(6.0).reshape(2, 3), torch.ones(4, 5)
    with torch.inference_mode():
        first = replayed([x, y])
    second = replayed([x.T.contiguous().T * 2, y * 0])
    torch.testing.assert_close(first[0], x.T + 1)
    torch.testing.assert_close(second[0], x.T * 2 + 1)
    assert first[1].all()
    assert not second[1].any()


def test_a_captured_session_keeps_no_graph_of_its_caller(replayed: ReplayedSession) -> None:
    check_no_graph_kept("it", lambda *tensors: replayed(tensors), Inputs((torch.ones(2, 3), torch.ones(4, 5))))


def test_callers_of_a_captured_session_wait_for_each_other(replayed: ReplayedSession) -> None:
    found: dict[int, Tensor] = {}
    given = [[torch.full((2, 3), float(i)), torch.ones(4, 5)] for i in range(64)]
    Callers(4).answer(lambda i: found.update({i: replayed(given[i])[0]}), len(given))
    for i, output in found.items():
        assert torch.equal(output, torch.full((3, 2), i + 1.0))


@pytest.mark.usefixtures("preloaded")
def test_the_provider_is_told_what_the_recipe_names() -> None:
    open_session(Path("model.onnx"), "cuda", {**OPTIONS, "cuda_graph": True, "nhwc": True}, 1)
    assert Session.opened == [(CUDA, {"use_tf32": "1", "enable_cuda_graph": "1", "prefer_nhwc": "1"})]


@pytest.mark.parametrize(
    ("facts", "offered"),
    [
        ({"functions": {"linear": 1}}, [{}, {"cuda_graph": True}]),
        ({"functions": {"conv2d": 1}}, [{}, {"cuda_graph": True}, {"cuda_graph": True, "nhwc": True}]),
        ({"functions": {"conv2d": 1}, "callers": 4}, [{}, {"nhwc": True}]),
    ],
)
def test_a_graph_is_offered_where_sizes_are_fixed_and_one_calls(facts: dict[str, Any], offered: list[Any]) -> None:
    on_cuda = made("convolutions").facts.model_copy(update={"device": "cuda", **facts})
    assert technique("onnxruntime").options(on_cuda) == [{"spinning": False, **options} for options in offered]
    varying = made("encoder_dynamic").facts.model_copy(update={"device": "cuda", **facts})
    assert not any("cuda_graph" in options for options in technique("onnxruntime").options(varying))


@pytest.mark.usefixtures("preloaded")
def test_what_cannot_be_captured_is_refused_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fail(Exception):
        """As its errors are: of no common base."""

    def fail(*_: Any, **__: Any) -> None:
        raise Fail("This session cannot use the graph capture feature as requested by the user")

    monkeypatch.setattr(onnxruntime, "InferenceSession", fail)
    start = made("convolutions")
    start = start.with_(signature=start.signature.model_copy(update={"device": "cuda"}))
    with pytest.raises(Refused, match="cannot use the graph capture feature"):
        technique("onnxruntime").apply(start, {"spinning": False, "cuda_graph": True})
    with pytest.raises(Fail):
        technique("onnxruntime").apply(start, {"spinning": False})
    varying = made("encoder_dynamic")
    varying = varying.with_(signature=varying.signature.model_copy(update={"device": "cuda"}))
    with pytest.raises(Refused, match="sizes vary here"):
        technique("onnxruntime").apply(varying, {"spinning": False, "cuda_graph": True})
