"""Every private torch API that togi relies on, behind public names; this package alone knows torch versions.

Each module names the private APIs behind it, the oldest torch they were tried with (2.9; the newest: 2.15), and what to
do when torch drops them. ``tests/torch_internals`` fails where private torch APIs are used anywhere else.
"""
