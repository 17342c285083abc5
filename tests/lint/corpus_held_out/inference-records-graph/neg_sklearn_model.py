# `model` is a scikit-learn estimator
import numpy as np
from sklearn.linear_model import LogisticRegression


def score(folds):
    model = LogisticRegression()
    results = []
    for train, test in folds:
        model.fit(*train)
        results.append(np.mean(model.predict(test[0]) == test[1]))
    return results
