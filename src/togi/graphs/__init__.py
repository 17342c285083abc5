"""CUDA graphs for calls of many sizes, within a memory budget: what ``togi.graphs.capture`` does. See docs/graphs.md.

``buckets`` chooses the sizes to capture from a histogram. ``recording`` captures one graph; the engine ``cuda_graph``
uses it too. ``pool`` holds the graphs of one or several functions in one budget and evicts; behind its small interface
stands the device, or a recorder that replays by calling. ``form`` knows which dimensions are the size, ``calls`` what
graphs can serve and return, ``captures`` which graphs of one function are held, ``proof`` that padding is harmless,
``held`` where the weights are; ``runs`` is what is captured, ``gradient`` the way back through it, ``lease`` results
without a copy. ``captured`` is the function that replays. Nothing of the tuner is needed.
"""

from togi.graphs.captured import CapturedFunction, GraphWarning, capture
from togi.graphs.plan import GraphPlan
from togi.graphs.pool import GraphError, Pool, Recorder

__all__ = ["CapturedFunction", "GraphError", "GraphPlan", "GraphWarning", "Pool", "Recorder", "capture"]
