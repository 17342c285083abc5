"""What a name alone tells, in a file that uses PyTorch: conventions that nearly all training code follows."""

from __future__ import annotations

import re

from togi.lint.source.value import UNKNOWN, Kind, Value

_MODELS = re.compile(
    r"^_?((\w+_)?(model|net|network|backbone|encoder|decoder|discriminator|generator|classifier|unet|vae|teacher|student|policy|actor|critic)"
    r"|netG|netD|net_g|net_d|ddp_model|model_ema|ema_model)$"
)
_LOSSES = re.compile(r"^_?((\w+_)?(criterion|loss_fn|loss_func|lossfn|loss_function)|criterion_\w+)$", re.IGNORECASE)
_OPTIMIZERS = re.compile(r"^_?((\w+_)?(optimizer|optim)|opt|optimizer\w*|opt_[gd])$", re.IGNORECASE)
_LOADERS = re.compile(
    r"^_?((\w+_)?(dataloader|data_loader|loader)|(train|val|valid|test|eval|trn|tst)_?(dl|iter)|loader_\w+)$",
    re.IGNORECASE,
)
_AMBIGUOUS = re.compile(r"(encoder|decoder|generator|classifier)$")
"""Names that other libraries' objects bear as well."""
_DEVICES = re.compile(r"^_?((\w+_)?device)$", re.IGNORECASE)
_NUMBERS = re.compile(
    r"^_?(num_\w+|n_\w+|\w+_size|\w+_dim|\w+_steps|step|epoch|global_step|batch_idx|batch_index|max_\w+_len\w*|eps)$"
)


def guessed(name: str) -> Value:
    """The value that ``name`` suggests, not certain; UNKNOWN where it suggests none."""
    if _LOSSES.match(name):
        return Value(Kind.MODULE, qualified="torch.nn.modules.loss", certain=False, note="is named like a loss")
    if _MODELS.match(name):
        return Value(Kind.MODULE, certain=False, note="is named like a model")
    if _OPTIMIZERS.match(name):
        return Value(Kind.OPTIMIZER, certain=False, note="is named like an optimizer")
    if _LOADERS.match(name):
        return Value(Kind.DATALOADER, certain=False, note="is named like a DataLoader")
    if _DEVICES.match(name):
        return Value(Kind.DEVICE, certain=False)
    if _NUMBERS.match(name):
        return Value(Kind.NUMBER, certain=False)
    return UNKNOWN


def guessed_result(name: str) -> Value:
    """The value that ``name`` suggests for what a call of something unknown returned, where names are clear enough."""
    value = guessed(name)
    told = value.kind in (Kind.DATALOADER, Kind.OPTIMIZER) or (
        value.kind is Kind.MODULE and not _AMBIGUOUS.search(name)
    )
    return value if told else UNKNOWN
