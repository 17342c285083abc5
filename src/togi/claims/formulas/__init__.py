"""What claims are about, as it is written by hand. Imported where a claim is measured, since it needs torch."""
