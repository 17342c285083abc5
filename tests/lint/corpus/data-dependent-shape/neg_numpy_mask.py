# boolean indexing of NumPy arrays
import numpy as np


def filter_boxes(batches):
    kept = []
    for boxes, scores in batches:
        boxes = np.asarray(boxes)
        scores = np.asarray(scores)
        mask = scores > 0.5
        kept.append(boxes[mask])
        labels = np.unique(np.nonzero(mask)[0])
        kept.append(labels)
    return kept
