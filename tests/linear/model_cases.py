"""The models and the data of the tests of estimators."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from sparsewire.linear import LinearSVC, LogisticRegression, Ridge

ROWS, FEATURES = 120, 10
MODELS = {"logistic": LogisticRegression, "svm": LinearSVC, "ridge": Ridge}
each_model = pytest.mark.parametrize("kind", MODELS)
STEADY = {"solver": "sgd", "eta0": 0.1, "shuffle": False, "tol": None, "batch_size": 16}


def rows(dtype=np.float64):
    random = np.random.default_rng(1)
    dense = random.normal(size=(ROWS, FEATURES)) * (random.random((ROWS, FEATURES)) < 0.5)
    return csr_array(dense.astype(dtype))


def labels(classes=2):
    random = np.random.default_rng(2)
    scores = rows() @ random.normal(size=(FEATURES, classes)) + random.normal(size=(ROWS, classes))
    return (scores + np.arange(classes) / 2).argmax(axis=1)


def values():
    random = np.random.default_rng(3)
    return rows() @ random.normal(size=FEATURES) + 3 + random.normal(size=ROWS)


def targets(kind):
    return values() if kind == "ridge" else labels()


def bits(model):
    return np.asarray(model.coef_).tobytes() + np.asarray(model.intercept_).tobytes()


def one_hot(count):
    """Row i has feature i alone, so a coefficient tells whether its row was learnt from."""
    return csr_array(np.eye(count)), np.arange(count) % 2


def malformed(index):
    """Rows with a wrong index, which scipy does not notice."""
    wrong = rows()
    wrong.indices[7] = index
    return wrong
