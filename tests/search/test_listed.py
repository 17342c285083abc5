"""The recipes of a price list: what this machine and this subject allow, and nothing twice."""

from __future__ import annotations

import pytest

from togi.core.choices import AccuracyMeasure, OperatorKind
from togi.core.records import Facts, Machine
from togi.core.settings import Settings
from togi.machine.describe import machine
from togi.search.listed import ListedRecipes, listed_recipes
from togi.search.space import Space
from togi.techniques import all_techniques, is_exact

pytest.importorskip("openvino")
pytest.importorskip("nncf")
pytest.importorskip("onnxruntime")
WITH_BF16 = ("avx2", "avx512_vnni", "avx512_bf16")


def listed(flags: tuple[str, ...] = WITH_BF16, **settings: object) -> ListedRecipes:
    here: Machine = machine("cpu").model_copy(update={"cpu_flags": flags, "onednn_limit": ""})
    facts = Facts(
        machine=here, module_class="Net", modules={"Conv2d": 4, "Linear": 1}, functions={"conv2d": 4, "linear": 1}
    )
    given = Settings(metric=AccuracyMeasure.AGREEMENT, max_drop=1.0, data="d.py:f", **settings)  # type: ignore[arg-type]
    return listed_recipes(facts, given, all_techniques())


def test_engines_in_float32_come_first_and_each_precision_is_on_the_engine_that_it_needs() -> None:
    prices = listed().prices
    exact = [is_exact(recipe) for recipe in prices]
    assert exact == sorted(exact, reverse=True)
    assert {"openvino", "onnxruntime"} <= {name for recipe in prices if is_exact(recipe) for name in recipe.techniques}
    for recipe in prices:
        for lowered, engine in (("int8_openvino", "openvino"), ("int8_onnxruntime", "onnxruntime")):
            assert lowered not in recipe.techniques or engine in recipe.techniques
        assert "no_grad" in recipe.techniques
    assert len(set(prices)) == len(prices)
    assert {"bf16_openvino", "int8_openvino", "int8_onnxruntime"} <= {t for r in prices for t in r.techniques}


def test_each_kind_is_quantized_alone_and_kept_next_to_the_same_recipe_of_all() -> None:
    found = listed()
    assert found.whole in found.prices
    assert set(found.kept) == set(found.alone) == set(OperatorKind)
    options = found.kept[OperatorKind.FIRST].find("int8_openvino")
    assert options is not None
    assert options.options == {"preset": "performance", "keep": "first"}
    both = found.joint[(OperatorKind.DEPTHWISE, OperatorKind.FIRST)]
    assert [r.find("int8_openvino").options["keep"] for r in both] == ["depthwise+first"] * 2  # type: ignore[union-attr]
    assert len(found.joint) == len(OperatorKind) * (len(OperatorKind) + 1) // 2


def test_a_study_can_hold_all_of_them() -> None:
    found = listed()
    here = machine("cpu").model_copy(update={"cpu_flags": WITH_BF16, "onednn_limit": ""})
    facts = Facts(machine=here, module_class="Net", modules={"Conv2d": 4}, functions={"conv2d": 4})
    space = Space.listing(found.all, facts, all_techniques())
    assert all(space.features(recipe) for recipe in found.all)
    assert set(space.recipes()) == found.all


def test_what_this_machine_lacks_is_left_out_with_the_reason() -> None:
    found = listed(("avx2",))
    assert not any("bf16" in choice.label for recipe in found.prices for choice in recipe.choices)
    assert all(len(recipes) == 1 for recipes in found.joint.values())
    assert any("bf16_openvino" in trial.recipe.techniques and trial.reason for trial in found.excluded)
    without = listed(without=("openvino",))
    assert (without.whole, without.kept, without.joint) == (None, {}, {})
