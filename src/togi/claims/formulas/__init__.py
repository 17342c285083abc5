"""The code that claims are about, as it is written by hand. Needs torch: imported where a claim is measured."""
