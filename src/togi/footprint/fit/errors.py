"""What a plan refuses."""

from __future__ import annotations

from togi.core.errors import TogiError


class FitError(TogiError):
    """A plan that cannot be made, applied or trusted. It is raised before a wrong gradient is used."""
