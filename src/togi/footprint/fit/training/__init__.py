"""Plans for a training step: which results of the forward pass are recomputed instead of saved.

``recompute`` has values and operations and repeats them, ``recording`` remembers which operation made which value (only
of those that ``repeats`` has seen to matter), ``saved_tensors`` gives autograd what a plan says. ``observe`` watches a
step with nothing saved, ``timeline`` forecasts the peak of any choice from that, ``search`` looks for the cheapest one,
``planner`` measures and proves it. ``micro_batches`` divides the batch where nothing else fits, ``optimizer_advice``
measures leaner optimizers.
"""
