"""The parts of ``python -m benchmarks.gpu``: one a module, whose ``rows(device)`` yields what it finds.

A row says pass, fail or skip, the figure that was found, and the bound that it was held to. A part asks togi's own
modules, the same that a study asks, on tensors of the device.
"""
