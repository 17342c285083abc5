import importlib
import importlib.util
from pathlib import Path

import pytest
import torch

from togi.worker.survey import survey

FILE = Path(__file__).parents[2] / "examples" / "sentences.py"


@pytest.fixture(scope="module")
def sentences():
    spec = importlib.util.spec_from_file_location("togi_test_sentences", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sentences_of_one_meaning_are_neighbours(sentences):
    found = sentences.neighbours(sentences.model())
    assert [index for index, _ in found] == [1, 0, 3, 2, 5, 4, 7, 6]


def test_the_form_is_the_packages_own(sentences):
    """The same vectors as sentence-transformers computes from the same files."""
    import sentence_transformers as package

    theirs = package.SentenceTransformer(sentences._folder(), device="cpu").encode(list(sentences.SENTENCES[:2]))
    with torch.no_grad():
        ours = torch.cat([sentences.model()(**s) for s in sentences.samples()[:2]])
    torch.testing.assert_close(ours, torch.from_numpy(theirs), atol=1e-5, rtol=1e-4)


def test_the_number_of_tokens_is_dynamic(sentences):
    facts = survey(sentences.subject()).facts
    assert [(t.name, t.shape) for t in facts.inputs] == [("attention_mask", (1, None)), ("input_ids", (1, None))]
    assert len({s["input_ids"].shape[1] for s in sentences.samples()}) >= 5
    assert facts.exportable, facts.export_error


def test_main_compares_with_an_artifact(sentences, capsys, monkeypatch):
    monkeypatch.setattr(sentences.togi, "load", lambda _path: sentences.model(), raising=False)
    assert sentences.main("sentences.togi") == 0
    assert "Every nearest sentence is the same." in capsys.readouterr().out
    monkeypatch.setattr(sentences.togi, "load", lambda _path: lambda **_: torch.ones(1, 4), raising=False)
    assert sentences.main("sentences.togi") == 1
