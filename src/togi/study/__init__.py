"""The course of a study: survey, explore, race, prove. Runs in the parent; no torch, no model."""
