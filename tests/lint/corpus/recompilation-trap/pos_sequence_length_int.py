# the length of each prompt is passed as a number, with dynamic=False
import torch


@torch.compile(dynamic=False)
def pad_and_sum(x: torch.Tensor, length: int) -> torch.Tensor:
    return torch.nn.functional.pad(x, (0, length)).cumsum(-1)


def run(prompts):
    results = []
    for i, prompt in enumerate(prompts):
        results.append(pad_and_sum(prompt, i))  # expect: recompilation-trap
    return results
