# the name in text only
"""Notes: torch.autograd.graph.disable_saved_tensors_hooks does not reduce memory."""

ADVICE = "do not call disable_saved_tensors_hooks() to save memory"


def advise():
    return ADVICE
