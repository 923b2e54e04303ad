"""Logistic regression on several ranks, each with its own rows of one data set; all end with the same model.

sparsewire run -n 4 examples/linear_model.py
"""

import sparsewire as sw
from sparsewire.linear import LogisticRegression, url_like

with sw.init() as comm:
    rows, labels = url_like(10_000, features=200_000, nonzeros=50, part=(comm.rank, comm.size))
    model = LogisticRegression(comm=comm, tol=0.01, random_state=0)
    for epoch, progress in enumerate(model.iter_fit(rows, labels), start=1):
        if comm.rank == 0:
            sent = progress.bytes_sent / 1e6
            print(f"pass {epoch}: loss {progress.loss:.4f}, gap {progress.gap:.2%}, {sent:.1f} MB sent")
    if comm.rank == 0:
        print(f"{model.score(rows, labels):.1%} of this rank's rows have the right class")
