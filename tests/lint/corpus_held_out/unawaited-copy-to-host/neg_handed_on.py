# whoever takes it waits
import torch


def offload(state):
    kept = {}
    for name, value in state.items():
        kept[name] = value.to("cpu", non_blocking=True)
    return kept
