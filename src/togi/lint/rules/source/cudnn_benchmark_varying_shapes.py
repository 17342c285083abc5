"""The rule ``cudnn-benchmark-varying-shapes``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.identifiers import file_mentions
from togi.lint.source.model import Source
from togi.lint.source.syntax import arguments_of, is_constant, last_name
from togi.lint.source.value import ValueKind

_SETTING = "torch.backends.cudnn.benchmark"
_RANDOM = ("random.", "numpy.random.", "torch.randint", "secrets.")
_RESIZES = frozenset("interpolate upsample resize imresize Resize RandomCrop CenterCrop adaptive_avg_pool2d".split())
_DRAWING_SIZES = frozenset("RandomShortestSize ScaleJitter RandomResize MultiScaleResize ResizeShortestEdge".split())
_FIXING_SIZES = frozenset("RandomCrop CenterCrop FixedSizeCrop RandomResizedCrop RandomCropOrPad".split())
_PADDING = {"torch.nn.utils.rnn.pad_sequence", "torch.nn.utils.rnn.pad_packed_sequence"}
_READS = {
    "PIL.Image.open",
    "cv2.imread",
    "torchvision.io.read_image",
    "torchvision.io.decode_image",
    "torchaudio.load",
    "soundfile.read",
    "librosa.load",
}
_SIZING = ("resize", "crop", "pad", "interpolate", "thumbnail", "processor", "extractor", "preset")
"""Parts of names whose mention makes it uncertain that files keep their sizes."""
_CONVOLVES = ("conv1d", "conv2d", "conv3d", "resnet", "unet", "cnn")
"""Parts of names that tell of convolutions."""


class CudnnBenchmarkVaryingShapes(SourceRule):
    """``cudnn.benchmark`` where the sizes of inputs vary.

    What it reports: ``torch.backends.cudnn.benchmark = True`` in a file that evidently feeds convolutions inputs of
    varying size. Evidence is a random size in ``interpolate`` or ``Resize``, transforms that draw a size, detection
    models of torchvision (whose batches take the size of their largest picture), batches padded to their longest
    sequence, files that are run through a model each in its own size.

    Why it costs: for each size that it has not seen, cuDNN tries every algorithm of every convolution before it goes
    on. That pays where sizes repeat, and costs in each step where they do not.

    When it stays silent: nothing in the file shows varying sizes; a crop to a fixed size follows; the setting is not
    the literal True.

    Example::

        torch.backends.cudnn.benchmark = True
        for x, y in loader:
            size = random.choice(range(320, 640, 8))
            x = F.interpolate(x, size=(size, size))

    Use instead::

        torch.backends.cudnn.benchmark = False

    or a few sizes only, so that each is searched once (``random.choice([320, 480, 640])``), or padding to such sizes.

    Source: https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cudnn.torch.backends.cudnn.benchmark
    """

    id = "cudnn-benchmark-varying-shapes"

    def check(self, source: Source) -> Iterable[Finding]:
        settings = [node for node in source.nodes(ast.Assign) if _switches_on(source, node)]
        evidence = next(_varying(source), "") if settings else ""
        for setting in settings if evidence else ():
            yield source.finding(
                self.id,
                setting,
                "cuDNN searches its algorithms anew for each size it has not seen, and sizes vary here",
                "set it to False, or draw from a few sizes only so that each is searched once",
                evidence=evidence,
            )


def _switches_on(source: Source, node: ast.Assign) -> bool:
    return is_constant(node.value, True) and any(source.qualified(target) == _SETTING for target in node.targets)


def _varying(source: Source) -> Iterator[str]:
    """What shows that sizes vary, in words."""
    yield from _random_sizes(source)
    yield from _random_transforms(source)
    yield from _padded_collate(source)
    yield from _pictures_as_they_are(source)
    for node in source.nodes(ast.Attribute, ast.Name):
        name = source.dotted(node)
        if name.startswith("torchvision.models.detection."):
            yield f"line {node.lineno}: torchvision's detection models make batches of their largest picture's size"
        elif name in _PADDING and file_mentions(source, _CONVOLVES):
            yield f"line {node.lineno}: batches are padded to their longest sequence"


def _random_sizes(source: Source) -> Iterator[str]:
    """Resizing to a size that was drawn in the same scope."""
    drawn: set[tuple[object, str]] = set()
    for assign in source.nodes(ast.Assign):
        if _draws(source, assign.value):
            drawn |= {(source.scope(assign), name) for name in _bound(assign.targets)}
    for call in source.nodes(ast.Call):
        if last_name(call.func) not in _RESIZES:
            continue
        scope, values = source.scope(call), arguments_of(call)
        for size in values[1:] if len(call.args) > 1 else values:
            read = {ast.unparse(name) for name in source.walk(size, ast.Name, ast.Attribute)}
            if any((scope, name) in drawn for name in read) or _draws(source, size):
                yield f"line {call.lineno} resizes to a random size: {ast.unparse(call)}"


def _bound(targets: Iterable[ast.expr]) -> Iterator[str]:
    """What an assignment binds, as it is written: ``opt.seed`` does not bind ``opt``."""
    for target in targets:
        yield from _bound(target.elts) if isinstance(target, ast.Tuple | ast.List) else [ast.unparse(target)]


def _draws(source: Source, node: ast.expr) -> bool:
    """Whether a number is drawn in an expression, or in a function of this file that it calls."""
    functions = [source.value(call.func).definition for call in source.walk(node, ast.Call)]
    results = [
        returned.value
        for function in functions
        if isinstance(function, ast.FunctionDef)
        for returned in source.walk(function, ast.Return)
        if returned.value is not None
    ]
    return any(_draws_here(source, part) for part in (node, *results))


def _draws_here(source: Source, node: ast.expr) -> bool:
    return any(source.dotted(call.func).startswith(_RANDOM) for call in source.walk(node, ast.Call))


def _random_transforms(source: Source) -> Iterator[str]:
    calls = {call: last_name(call.func) for call in source.nodes(ast.Call)}
    if _FIXING_SIZES.isdisjoint(calls.values()):
        for call, name in calls.items():
            if name in _DRAWING_SIZES:
                yield f"line {call.lineno}: {name} draws a size for each sample"


def _padded_collate(source: Source) -> Iterator[str]:
    collates = {last_name(keyword.value) for keyword in source.nodes(ast.keyword) if keyword.arg == "collate_fn"}
    for function in source.nodes(ast.FunctionDef):
        if "collate" in function.name or function.name in collates:
            called = [last_name(call.func) for call in source.walk(function, ast.Call)]
            pads = any(name.endswith(("pad", "zeros", "full", "empty")) for name in called)
            if pads and any(name.endswith("max") for name in called):
                yield f"line {function.lineno}: {function.name} pads a batch to its largest sample"


def _pictures_as_they_are(source: Source) -> Iterator[str]:
    """A loop that reads files and runs a model on each, where nothing in the file resizes, crops or pads."""
    for call in source.nodes(ast.Call):
        loops = source.loops(call) if source.dotted(call.func) in _READS else ()
        if loops and _runs_module(source, loops[0]) and not file_mentions(source, _SIZING):
            yield f"line {call.lineno}: files are read as they are, and each has its own size"


def _runs_module(source: Source, loop: ast.AST) -> bool:
    return any(source.value(call.func).kind is ValueKind.MODULE for call in source.walk(loop, ast.Call))
