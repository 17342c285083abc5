"""Records of earlier versions still load."""

from __future__ import annotations

from togi.core.records import Outcome, Recipe, Trial


def test_a_trial_with_the_former_name_of_its_fix_is_read() -> None:
    trial = Trial(recipe=Recipe(), outcome=Outcome.MISSING, fix="pip install 'togi[onnx]'")
    written = trial.to_json()
    assert '"mend"' not in written
    assert Trial.from_json(written) == trial
    assert Trial.from_json(written.replace('"fix"', '"mend"')) == trial
