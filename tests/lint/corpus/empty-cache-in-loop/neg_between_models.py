# a benchmark frees one model before it builds the next
import torch

from bench import build, measure


def compare(names):
    rows = []
    for name in names:
        model = build(name)
        rows.append((name, measure(model)))
        del model
        torch.cuda.empty_cache()
    return rows
