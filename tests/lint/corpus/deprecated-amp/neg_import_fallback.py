# the old name only where the new one is missing
try:
    from torch.amp import GradScaler
except ImportError:
    from torch.cuda.amp import GradScaler


def make_scaler(enabled: bool):
    return GradScaler(enabled=enabled)
