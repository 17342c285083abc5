"""The subject of a study: find it, run it, know it."""
