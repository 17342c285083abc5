# load functions of other modules
import json
import pickle

import numpy as np


def read(path):
    with open(path) as file:
        meta = json.load(file)
    with open(meta["extra"], "rb") as file:
        extra = pickle.load(file)
    return np.load(meta["array"]), extra
