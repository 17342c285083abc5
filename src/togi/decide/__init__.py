"""The three decisions that everything else rests on, each defined once: faster, faithful, and which recipe to choose.

Pure Python over records: nothing here measures, runs or imports torch.
"""
