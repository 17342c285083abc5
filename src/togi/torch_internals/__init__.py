"""Every private torch API that togi relies on, behind public names; this package alone knows torch versions.

Each module names the private APIs behind it, the torch versions in which they were tried, and what to do when torch
drops them. ``tests/torch_internals`` calls each of them, so a torch that has changed one fails there first. It also
fails where a private torch API is used anywhere else.
"""
