"""The base of every room: records, errors, quantities. No torch, and nothing of the other rooms."""
