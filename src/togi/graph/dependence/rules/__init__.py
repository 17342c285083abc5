"""Rules for what operators do to rows, by topic. Importing this package fills ``registry.RULES``."""

from togi.graph.dependence.rules import creation, elementwise, indexing, layers, products, reductions, views

__all__ = ["creation", "elementwise", "indexing", "layers", "products", "reductions", "views"]
