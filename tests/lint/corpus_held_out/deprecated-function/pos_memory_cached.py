# renamed to memory_reserved
import torch


def report(epoch: int) -> dict[str, float]:
    return {
        "epoch": epoch,
        "cached_mib": torch.cuda.memory_cached() / 2**20,  # expect: deprecated-function
        "peak_mib": torch.cuda.max_memory_cached() / 2**20,  # expect: deprecated-function
    }
