"""``togi.no_hidden_hooks``: a block in which nobody may install saved-tensor hooks.

This is what ``torch.autograd.graph.disable_saved_tensors_hooks`` is for: to forbid checkpointing, offloading and
compression of what autograd saves, where they would be wrong or costly. It saves no memory by itself.

Source: torch docs, torch.autograd.graph.disable_saved_tensors_hooks.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from torch.autograd.graph import disable_saved_tensors_hooks

from togi.core.errors import TogiError
from togi.core.user_code import frames_of

_INSTALLERS = {
    "/torch/utils/checkpoint.py": "torch.utils.checkpoint",
    "/torch/autograd/graph.py": "torch.autograd.graph",
}


class HiddenHooksError(TogiError):
    """Saved-tensor hooks were installed, or were there already, where the code forbids them."""


@contextmanager
def no_hidden_hooks(reason: str) -> Iterator[None]:
    """Forbid saved-tensor hooks in a block (``with``) or a function (as a decorator).

    Args:
        reason: why, for whoever runs into it.

    Raises:
        HiddenHooksError: somebody installs hooks, with the line that does; or hooks are active on entry.
    """
    message = f"togi.no_hidden_hooks: {reason}"
    try:
        with disable_saved_tensors_hooks(message):
            yield
    except RuntimeError as error:
        if str(error).partition("\n")[0] != message:
            raise
        raise HiddenHooksError(
            f"saved-tensor hooks are forbidden here ({reason}), and {_who(error)}. Such hooks change what autograd "
            "keeps for backward (checkpointing, offloading, compression): take them out of this block, or leave the "
            "block without no_hidden_hooks."
        ) from error


def _who(error: BaseException) -> str:
    frames, users = traceback.extract_tb(error.__traceback__), frames_of(error)
    if not users:
        return "some were active already when the block was entered"
    by = next((name for frame in frames for path, name in _INSTALLERS.items() if frame.filename.endswith(path)), "")
    return f"{users[-1].filename}:{users[-1].lineno} in {users[-1].name} installs some" + (f" ({by})" if by else "")
