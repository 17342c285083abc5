"""The rule ``deprecated-quantization``."""

from __future__ import annotations

from collections.abc import Iterable

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.compatibility import guarded
from togi.lint.source.model import Source
from togi.lint.source.references import called, uses

_DYNAMIC = "torchao.quantization.quantize_(model, Int8DynamicActivationInt8WeightConfig())"
_EAGER = "torchao.quantization.quantize_(model, config), or prepare_pt2e and convert_pt2e of torchao.quantization.pt2e"
_EXPORTED = "prepare_pt2e and convert_pt2e of torchao.quantization.pt2e.quantize_pt2e on a model from torch.export"
_TRAINING = "torchao.quantization.quantize_(model, QATConfig(...)) of torchao.quantization.qat"
_FLOWS = {
    "quantize_dynamic": _DYNAMIC,
    "quantize": _EAGER,
    "prepare": _EAGER,
    "convert": _EAGER,
    "prepare_qat": _TRAINING,
    "quantize_qat": _TRAINING,
    "prepare_fx": _EXPORTED,
    "prepare_qat_fx": _EXPORTED,
    "convert_fx": _EXPORTED,
    "prepare_pt2e": _EXPORTED,
    "prepare_qat_pt2e": _EXPORTED,
    "convert_pt2e": _EXPORTED,
    "QuantStub": _EAGER,
    "QuantWrapper": _EAGER,
    "add_quant_dequant": _EAGER,
}
"""What replaces the steps of a quantization."""
_CONFIGURATIONS = {
    "get_default_qconfig": _EAGER,
    "get_default_qat_qconfig": _TRAINING,
    "get_default_qconfig_mapping": _EXPORTED,
    "get_default_qat_qconfig_mapping": _EXPORTED,
}
_ACCOMPANIES = {**dict.fromkeys(_CONFIGURATIONS, frozenset(_FLOWS)), "DeQuantStub": frozenset(["QuantStub"])}
"""Names that go with others of the same flow, which are reported in their place."""
_SUCCESSORS = {**_FLOWS, **_CONFIGURATIONS, "DeQuantStub": _EAGER}
_MODULES = ("", ".quantize", ".quantize_fx", ".quantize_pt2e", ".stubs", ".qconfig", ".qconfig_mapping")
_NAMES = {
    f"torch.{package}quantization{module}.{name}": name
    for package in ("", "ao.")
    for module in _MODULES
    for name in _SUCCESSORS
}


class DeprecatedQuantization(SourceRule):
    """Quantization through ``torch.quantization`` or ``torch.ao.quantization``.

    What it reports: what prepares, converts or quantizes a model there: ``quantize_dynamic``, ``prepare``, ``convert``,
    ``prepare_fx``, ``convert_fx``, ``prepare_pt2e``, ``QuantStub``, the default configurations, and their kin.

    Why it costs: they are deprecated, and warn that they will be removed. Their int8 kernels run on the CPU
    alone. torchao has int8, int4 and float8 on the GPU too, and works with ``torch.compile`` and ``torch.export``.

    When it stays silent: torchao, what only goes with another call of the same flow in the file (``DeQuantStub``, a
    default configuration), and code under a test of the version or of an import.

    Example::

        model = torch.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)

    Use instead::

        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

        quantize_(model, Int8DynamicActivationInt8WeightConfig())

    On a CPU, OpenVINO's post-training quantization is another way; ``togi tune`` tries it where it is installed.

    Source: https://github.com/pytorch/ao/issues/2259
    """

    id = "deprecated-quantization"

    def check(self, source: Source) -> Iterable[Finding]:
        places = list(uses(source, _NAMES))
        used = {_NAMES[name] for _, name in places}
        for node, name in places:
            if not _ACCOMPANIES.get(_NAMES[name], frozenset()).isdisjoint(used):
                continue
            if called(source, node) and not guarded(source, node):
                yield source.finding(
                    self.id,
                    node,
                    f"{name} is deprecated and will be removed; it quantizes for kernels of the CPU alone",
                    f"write {_SUCCESSORS[_NAMES[name]]}",
                )
