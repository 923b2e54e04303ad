"""Test accuracy of scikit-learn's linear models on two LIBSVM files, each at several strengths.

    python benchmarks/accuracy.py TRAIN TEST [--positive 1,2,3] --json FILE

What `sparsewire linear fit` reaches on the same files is compared with the best of them.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression, RidgeClassifier, SGDClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC

from sparsewire.bench.harness.json_file import write_json
from sparsewire.linear import load_libsvm


def models(several):
    """Every model at the strengths around its best one on news20; liblinear knows two classes."""
    for strength in (10.0, 1000.0):
        logistic = LogisticRegression(C=strength, solver="liblinear")
        yield "LogisticRegression", strength, OneVsRestClassifier(logistic) if several else logistic
    for strength in (1.0, 10.0):
        yield "LinearSVC", strength, LinearSVC(C=strength)
    for strength in (1e-6, 1e-5, 1e-4):
        yield "SGDClassifier", strength, SGDClassifier(alpha=strength, random_state=0)
    for strength in (0.1, 1.0):
        yield "RidgeClassifier", strength, RidgeClassifier(alpha=strength)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--positive", help="labels that are one class against the rest")
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    rows, labels = load_libsvm(given.train, zero_based=True)
    test_rows, test_labels = load_libsvm(given.test, zero_based=True, features=rows.shape[1])
    if given.positive:
        positive = [float(label) for label in given.positive.split(",")]
        labels, test_labels = np.isin(labels, positive), np.isin(test_labels, positive)
    found = []
    for name, strength, model in models(several=len(np.unique(labels)) > 2):
        start = time.perf_counter()
        model.fit(rows, labels)
        seconds = time.perf_counter() - start
        accuracy = model.score(test_rows, test_labels)
        print(f"{name} {strength:g}: {accuracy:.4f} in {seconds:.1f} s", flush=True)
        found.append({"model": name, "strength": strength, "test_accuracy": accuracy, "seconds": seconds})
    command = ["python", "benchmarks/accuracy.py", given.train.name, given.test.name]
    command += ["--positive", given.positive] if given.positive else []
    write_json(given.json, command, found)


if __name__ == "__main__":
    main()
