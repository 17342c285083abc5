# a compiled closure over the loop's variable
import torch


def scales(x):
    results = []
    for factor in (0.5, 1.0, 2.0):

        @torch.compile  # expect: recompilation-trap|compile-per-call+2
        def scaled(t):
            return torch.sin(t * factor)

        results.append(scaled(x))
    return results
