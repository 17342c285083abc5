"""The command line: one command per file. Nothing here imports torch, and ``togi --help`` imports no records either."""

from togi.cli.app import main

__all__ = ["main"]
