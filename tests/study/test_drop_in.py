"""``togi.optimize`` and ``togi.restore``: an object of the user's own is faster inside, and stays that object.

What is tuned sleeps, which a captured graph does not: its engine is faster on any machine, however busy. It also
computes for a millisecond, without which its speed-up would be too large to be measured well.
"""

from __future__ import annotations

import copy
import pickle
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import togi
from tests.small_modules import Counts
from togi.artifact.installed import installed_in
from togi.artifact.load import FallbackWarning, put_in_place
from togi.artifact.switch import Switch
from togi.core.errors import ArtifactError, OutputExistsError, SubjectError, TogiError, UnknownNameError
from togi.study.drop_in import IN_FOLDER, put_into, tuned_object
from togi.subject.inputs import Inputs
from togi.subject.program import ProgramModule

pytestmark = pytest.mark.usefixtures("brief_studies")


class Sleeper(nn.Module):
    """``(rows, 8) -> (rows, 8)``."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.02)
        for _ in range(50):
            x = torch.tanh(self.inner(x))
        return x


class Lengths:
    """Stands for a tokenizer: one row for each word."""

    def __call__(self, text: str) -> Tensor:
        return torch.tensor([[float(len(word) + position) for position in range(8)] for word in text.split()]) / 10


class TextPipeline:
    """What libraries call a pipeline: called with a text, it returns plain Python."""

    def __init__(self) -> None:
        self.tokenizer, self.model = Lengths(), sleeper()

    def __call__(self, text: str) -> list[dict[str, Any]]:
        with torch.no_grad():
            scores = self.model(self.tokenizer(text)).mean(dim=0)
        return [{"label": str(int(scores.argmax())), "score": score} for score in scores.tolist()]


def sleeper() -> Sleeper:
    torch.manual_seed(0)
    return Sleeper().eval()


X = torch.linspace(-1, 1, 24).reshape(3, 8)
FEWER = X[:2]
TEXT = "a blade is honed on a wet stone"


def switched(obj: Any) -> list[nn.Module]:
    return [part for part in obj.modules() if isinstance(vars(part).get("forward"), Switch)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("drop_in")
    patch = pytest.MonkeyPatch()
    patch.setenv("TOGI_HOME", str(folder / "home"))
    yield folder
    patch.undo()


def optimized(obj: Any, inputs: Any, **options: Any) -> Any:
    return togi.optimize(obj, inputs, only=["torchscript"], effort="quick", time_limit_s=400, **options)


@pytest.fixture(scope="module")
def module(home: Path) -> Sleeper:
    """A module, tuned whole for two sizes, next to the files of a saved model."""
    (home / "saved").mkdir()
    model = sleeper()
    assert optimized(model, [X, X[:2]], out=home / "saved") is model
    return model


@pytest.fixture(scope="module")
def pipeline(home: Path) -> TextPipeline:
    made = TextPipeline()
    assert optimized(made, TEXT, out=home / "pipeline.togi") is made
    return made


def served(obj: nn.Module) -> tuple[int, int]:
    (installed,) = installed_in(obj)
    ((engine, original),) = installed.counts.values()
    return engine, original


@pytest.mark.parametrize("around", [torch.no_grad, torch.enable_grad])
def test_a_module_answers_as_before_and_sooner(module: Sleeper, around: Callable[[], Any]) -> None:
    plain = sleeper()
    with around():
        module(X)  # the original serves the first call with gradients
    before = served(module)
    for rows in (X, X[:2]):
        with around():
            torch.testing.assert_close(module(rows), plain(rows))
            assert module(rows).requires_grad == plain(rows).requires_grad
    assert served(module) == (before[0] + 4, before[1])
    began = time.perf_counter()
    with torch.no_grad():
        for _ in range(5):
            module(X)
    assert time.perf_counter() - began < 5 * 0.02


def test_it_stays_the_object_that_it_was(module: Sleeper) -> None:
    plain = sleeper()
    assert type(module) is Sleeper
    assert list(module.state_dict()) == list(plain.state_dict())
    copied, unpickled = copy.deepcopy(module), pickle.loads(pickle.dumps(module))
    for other in (copied, unpickled):
        assert not installed_in(other)
        assert torch.equal(other(X), plain(X))
    module(X).sum().backward()
    plain(X).sum().backward()
    torch.testing.assert_close(module.inner.weight.grad, plain.inner.weight.grad)
    module.zero_grad()


def test_a_size_that_was_not_proven_meets_the_original(module: Sleeper) -> None:
    before = served(module)
    wide = X.double()
    with pytest.raises(RuntimeError), torch.no_grad():  # as the original does
        module(wide)
    assert served(module) == (before[0], before[1] + 1)


@pytest.mark.usefixtures("module")
def test_what_was_saved_next_to_a_model_goes_into_another_object_with_its_weights(home: Path) -> None:
    assert (home / "saved" / IN_FOLDER / "manifest.json").is_file()
    other = sleeper()
    assert togi.optimize(other, using=home / "saved") is other
    with torch.no_grad():
        torch.testing.assert_close(other(X), sleeper()(X))
    assert served(other) == (1, 0)
    assert togi.restore(other) is other
    assert not installed_in(other)
    assert "forward" not in vars(other)


@pytest.mark.usefixtures("module")
def test_an_artifact_of_other_weights_or_another_class_is_refused(home: Path) -> None:
    torch.manual_seed(1)
    for other in (Sleeper().eval(), nn.Sequential(sleeper()).eval()):
        with pytest.raises(ArtifactError, match=r"other weights or of another structure.*togi\.optimize\(obj, inputs"):
            togi.optimize(other, using=home / "saved")
        assert not installed_in(other)
    with pytest.raises(ArtifactError, match=r"was made of Sleeper, and this is TextPipeline: .*the method itself"):
        togi.optimize(TextPipeline(), using=home / "saved")


@pytest.mark.usefixtures("module")
def test_weights_that_change_afterwards_are_noticed(home: Path) -> None:
    other = togi.optimize(sleeper(), using=home / "saved")
    with torch.no_grad():
        other.inner.weight.mul_(2)
        expected = copy.deepcopy(other)(X)
        with pytest.warns(UserWarning, match="its weights were changed"):
            found = other(X)
        assert torch.equal(found, expected)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it is said once
            other(X)
    assert served(other) == (0, 2)


@pytest.mark.thorough
def test_an_object_that_is_called_with_texts_is_faster_for_texts_of_any_length(pipeline: TextPipeline) -> None:
    plain, before = TextPipeline(), served(pipeline.model)
    for text in (TEXT, "two words", " ".join([TEXT] * 4)):
        found, expected = pipeline(text), plain(text)
        assert [one["label"] for one in found] == [one["label"] for one in expected]
        assert [one["score"] for one in found] == pytest.approx([one["score"] for one in expected], abs=1e-6)
    assert served(pipeline.model) == (before[0] + 3, before[1])


@pytest.mark.thorough
def test_what_is_in_a_pipeline_is_taken_out_and_loaded_again(pipeline: TextPipeline, home: Path) -> None:
    assert togi.restore(pipeline) is pipeline
    assert not switched(pipeline.model)
    assert pipeline(TEXT) == TextPipeline()(TEXT)
    assert togi.optimize(pipeline, using=home / "pipeline.togi") is pipeline
    assert switched(pipeline.model) == [pipeline.model]


@pytest.mark.thorough
def test_a_saved_program_does_not_go_into_its_model_alone(pipeline: TextPipeline, home: Path) -> None:
    with pytest.raises(ArtifactError, match=r"was made of TextPipeline, and this is Sleeper: give togi\.optimize what"):
        togi.optimize(sleeper(), using=home / "pipeline.togi")
    assert type(pipeline) is TextPipeline


@pytest.mark.usefixtures("module")
def test_what_load_refuses_is_not_put_in(home: Path, tmp_path: Path) -> None:
    key = tmp_path / "team.pub"
    with pytest.raises(TogiError, match=r"team\.pub"):
        togi.optimize(sleeper(), using=home / "saved", trusted=key)
    other = sleeper()
    with pytest.warns(FallbackWarning, match="eager"):  # torchscript is a program
        togi.optimize(other, using=home / "saved", native=False)
    (installed,) = installed_in(other)
    assert [form.manifest.chain[-1].engine for form in installed.switches[0].forms] == ["eager"]


@pytest.mark.thorough
@pytest.mark.usefixtures("home")
def test_a_function_that_could_be_captured_whole_is_tuned_inside() -> None:
    model = sleeper()

    def doubled(x: Tensor) -> Tensor:
        return 2 * model(x)

    assert optimized(doubled, X) is doubled
    with torch.no_grad():
        torch.testing.assert_close(doubled(X), 2 * sleeper()(X))
    assert served(model) == (1, 0)
    togi.restore(doubled)
    assert not switched(model)


@pytest.mark.usefixtures("module")
def test_restore_finds_what_another_library_has_wrapped_since(home: Path) -> None:
    other = togi.optimize(sleeper(), using=home / "saved")
    inside = other.forward
    other.forward = lambda *args: inside(*args)  # type: ignore[method-assign]
    (installed,) = installed_in(other)
    togi.restore(other)
    assert not installed_in(other)
    with torch.no_grad():
        assert torch.equal(other(X), sleeper()(X))
    assert installed.counts == {"": (0, 0)}


@pytest.mark.usefixtures("module")
def test_restore_finds_what_a_module_holds_besides_its_own_parts(home: Path) -> None:
    """As ultralytics' models do: the network is in ``model.predictor.model``."""
    inside = togi.optimize(sleeper(), using=home / "saved")
    model = nn.Module()
    model.predictor = SimpleNamespace(model=inside)
    assert inside not in list(model.modules())
    togi.restore(model)
    assert not switched(inside)


@pytest.mark.thorough
def test_nothing_faster_leaves_the_object_as_it_is_and_warns(home: Path) -> None:
    model = nn.Linear(4, 4).eval()
    with pytest.warns(UserWarning, match=r"togi put nothing into the object\."):
        togi.optimize(model, torch.rand(1, 4), only=["flush_denormal"], time_limit_s=60, out=home / "none.togi")
    assert not installed_in(model)
    assert not (home / "none.togi").exists()


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda _: togi.optimize(sleeper()), SubjectError, r"needs inputs=.*using='NAME\.togi'"),
        (lambda _: togi.optimize("timm:resnet18", X), SubjectError, r"a live object.*togi\.tune takes locators"),
        (lambda _: togi.optimize(3, X), SubjectError, "the object is an int.*nn.Module"),
        (lambda _: togi.optimize(Sleeper, X), SubjectError, "nn.Module"),
        (lambda _: togi.optimize(len, X), SubjectError, "no torch module can be found"),
        (lambda _: togi.optimize(sleeper().train(), X), SubjectError, r"training mode.*call \.eval\(\) on it first"),
        (lambda _: togi.optimize(sleeper(), X, time_limit=5), UnknownNameError, "did you mean 'time_limit_s'"),
        (lambda home: togi.optimize(sleeper(), X, using=home), TogiError, "leave the other options out"),
        (lambda home: togi.optimize(sleeper(), using=home / "no.togi"), ArtifactError, "is not a folder"),
        (lambda home: togi.optimize(sleeper(), X, out=home / "fast"), ArtifactError, r"give fast\.togi"),
        (lambda _: togi.optimize(torch.jit.script(nn.Linear(8, 8).eval()), X), SubjectError, "TorchScript"),
        (lambda _: togi.restore(3), SubjectError, "what can be called"),
    ],
)
def test_what_cannot_be_done_says_what_to_type(
    call: Callable[[Path], Any], error: type[TogiError], says: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=says):
        call(tmp_path)


def test_what_is_optimized_is_not_optimized_again_and_a_file_is_not_replaced(module: Sleeper, home: Path) -> None:
    with pytest.raises(SubjectError, match=r"optimized already: call togi\.restore on it first"):
        togi.optimize(module, X)
    with pytest.raises(OutputExistsError):
        togi.optimize(sleeper(), X, out=home / "saved")


COLLECTION = [" ".join(["a"] * words) for words in range(1, 41)]


@pytest.mark.parametrize(
    ("inputs", "samples"),
    [
        (X, [((X,), {})]),
        ([X, FEWER], [((X,), {}), ((FEWER,), {})]),
        (TEXT, [((TEXT,), {}), (("a blade is honed",), {})]),
        ("word", [(("word",), {}), (("word word",), {})]),
        ([TEXT, "more"], [(([TEXT, "more"],), {}), ((["a blade is honed"],), {})]),
        (
            COLLECTION[::-1],
            [(([*texts],), {}) for texts in (COLLECTION[5:9], COLLECTION[20:22], COLLECTION[35:36], ["a a a"])],
        ),
        ((TEXT,), [((TEXT,), {})]),
        ([(TEXT,), ("other",)], [((TEXT,), {}), (("other",), {})]),
        ({"text": TEXT}, [((), {"text": TEXT})]),
        (Inputs((TEXT,), {}), [((TEXT,), {})]),
    ],
)
def test_inputs_may_be_texts(inputs: Any, samples: list[Any]) -> None:
    _, found = tuned_object(TextPipeline(), inputs)
    assert len(found) == len(samples)
    for one, (args, kwargs) in zip(found, samples, strict=True):
        assert all(a is b or a == b for a, b in zip(one.args, args, strict=True))
        assert dict(one.kwargs) == kwargs


def test_a_name_of_a_picture_is_not_shortened() -> None:
    pipeline = TextPipeline()
    pipeline.image_processor = object()  # type: ignore[attr-defined]
    assert [one.args for one in tuned_object(pipeline, "a picture.png")[1]] == [("a picture.png",)]


@pytest.mark.usefixtures("module")
def test_a_saved_module_does_not_go_into_one_with_other_settings(home: Path) -> None:
    other = sleeper()
    hook = other.inner.register_forward_hook(lambda _, __, output: output + 1)
    with pytest.raises(ArtifactError, match=r"of which the setting 'forward hooks' was another.*togi\.optimize"):
        togi.optimize(other, using=home / "saved")
    hook.remove()
    togi.optimize(other, using=home / "saved")
    assert switched(other) == [other]


@pytest.mark.usefixtures("module")
def test_what_was_tuned_does_not_go_into_a_module_whose_code_is_another(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method that was patched stays behind when a copy is tuned, and an edit comes after it."""
    other = sleeper()
    monkeypatch.setattr(Sleeper, "forward", lambda self, x: self.inner(x))
    with pytest.raises(ArtifactError, match="where its code, or a number that this names, is another"):
        put_into(other, home / "saved" / IN_FOLDER, [Inputs((X,))])
    with pytest.raises(ArtifactError, match="of which the code was another than here"):
        togi.optimize(other, using=home / "saved")
    assert switched(other) == []


class Remembers(Sleeper):
    """Leaves what it found on the way."""

    def forward(self, x: Tensor) -> Tensor:
        self.found = x + super().forward(x)
        return self.found * 2


class MakesOnce(nn.Module):
    table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(8.0)
        return x + self.table


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = sleeper()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + x


def hooked() -> Around:
    made = Around().eval()
    made.register_forward_hook(lambda _, __, answer: answer + 1)
    return made


@pytest.mark.parametrize(
    ("module", "keeps"),
    [(Sleeper(), False), (Remembers(), True), (MakesOnce(), False), (Counts(), True), (Counts(in_buffer=False), False)],
)
def test_a_module_whose_calls_leave_tensors_in_it_is_tuned_by_its_parts(module: nn.Module, keeps: bool) -> None:
    """What stands for the forward of a whole module leaves none."""
    found, _ = tuned_object(module.eval(), X)
    assert isinstance(found, ProgramModule) is keeps
    assert keeps or found is module
    assert not hasattr(module, "found"), "a copy was asked"


@pytest.mark.thorough
@pytest.mark.usefixtures("home")
def test_an_optimized_module_leaves_what_its_calls_leave() -> None:
    torch.manual_seed(0)
    model = Remembers().eval()
    plain = copy.deepcopy(model)
    optimized(model, X)
    (switch,) = (vars(part)["forward"] for part in switched(model))
    with torch.no_grad():
        for x in (X, X + 1, X * 2):
            torch.testing.assert_close(model(x), plain(x))
            torch.testing.assert_close(model.found, plain.found)
    assert switch.engine_calls >= 2


def test_a_module_with_hooks_of_its_own_is_tuned_by_its_parts() -> None:
    """They would be in what stands for its forward, and be called once more round it."""
    assert isinstance(tuned_object(hooked(), X)[0], ProgramModule)
    inside = sleeper()
    inside.inner.register_forward_hook(lambda *_: None)
    with pytest.warns(UserWarning, match="inner has forward hooks"):
        assert isinstance(tuned_object(inside, X)[0], ProgramModule)


@pytest.mark.usefixtures("module")
def test_what_was_tuned_whole_does_not_go_into_a_module_with_hooks_of_its_own(home: Path) -> None:
    with pytest.raises(ArtifactError, match="has forward hooks or a __call__ of its own"):
        put_in_place(home / "saved" / IN_FOLDER, hooked())


@pytest.mark.thorough
@pytest.mark.usefixtures("home")
def test_hooks_of_an_optimized_module_are_called_once() -> None:
    model, plain = hooked(), hooked()
    optimized(model, X)
    assert switched(model)
    with torch.no_grad():
        torch.testing.assert_close(model(X), plain(X))
