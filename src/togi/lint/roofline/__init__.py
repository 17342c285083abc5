"""The least that a forward pass costs on a device: operations, bytes, and the time that the slower of the two takes.

The roofline model: an operation takes ``max(FLOPs / peak, bytes / bandwidth)``. Source: S. Williams, A. Waterman,
D. Patterson, "Roofline: an insightful visual performance model for multicore architectures", CACM 52 (2009). Figures of
a GPU are its data sheet's; those of this machine are measured.
"""
