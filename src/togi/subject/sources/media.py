"""Texts, pictures and sound made up from a seed, for subjects that read these and not tensors."""

from __future__ import annotations

from typing import Any

TEXTS = (
    "A knife must be sharpened patiently on a wet stone, first with a coarse grain and then with finer and finer ones.",
    "Measure twice, cut once.",
    "Before you change anything, find out where the time really goes.",
    "The weather forecast for the mountains says that showers will arrive during the night and last until the evening.",
    "The cat sleeps.",
    "Which engine is fastest for this model?",
)
"""Of several lengths."""


def picture(height: int, width: int, seed: int) -> Any:
    """A picture of PIL: smooth areas with edges and a little noise, as photographs have."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (6, 6, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
    noisy = smooth + generator.integers(-8, 9, smooth.shape, dtype=np.int16)
    noisy[height // 4 : height // 2, width // 4 : width // 2] = generator.integers(0, 256, 3)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def sound(rate: int, seconds: float, seed: int) -> Any:
    """A tone that rises, with noise: samples between -1 and 1 in an array of NumPy."""
    import numpy as np

    times = np.arange(int(rate * seconds)) / rate
    tone = 0.5 * np.sin(2 * np.pi * (220 + 110 * times) * times)
    return (tone + 0.02 * np.random.default_rng(seed).standard_normal(times.size)).astype(np.float32)
