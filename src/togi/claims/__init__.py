"""Advice that is passed on, each piece as a claim that ``togi explain ID --prove`` measures on this machine."""

from togi.claims.claim import HEADINGS, Claim, Measured, Proof, Proofs, Verdict, all_claims

__all__ = ["HEADINGS", "Claim", "Measured", "Proof", "Proofs", "Verdict", "all_claims"]
