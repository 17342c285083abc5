"""Advice that is passed on, each piece as a claim that ``togi explain ID --prove`` measures on this machine."""

from togi.claims.claim import HEADINGS, Claim, ClaimVerdict, Measured, MeasuredClaim, Proofs, all_claims

__all__ = ["HEADINGS", "Claim", "ClaimVerdict", "Measured", "MeasuredClaim", "Proofs", "all_claims"]
