"""What is honed: find it, run it, know it."""
