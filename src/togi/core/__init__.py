"""What every room uses: records, errors, quantities. No torch, and nothing of the other rooms."""
