# for a version to come, or one that has gone
import torch
from packaging.version import Version

if Version(torch.__version__) < Version("1.8"):
    spectrum = torch.rfft
else:
    spectrum = torch.fft.rfft


def power(x):
    return spectrum(x).abs() ** 2
