"""A rank that fits linear models together with others; every rank must end with the same model."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from collectives_program import JOINING
from injectors import Injector
from journal import Journal
from scipy.sparse import csr_array
from trials import Fault, Trial

import sparsewire as sw
from sparsewire.linear import LogisticRegression, load_model, save_model
from sparsewire.linear.prediction import predict_file

ROWS, FEATURES = 90, 300
CLONE_NEWNS = 0x20000
MS_REC_PRIVATE = 0x4000 | 0x40000
_libc = ctypes.CDLL(None, use_errno=True)


def perform(trial: Trial, injector: Injector, journal: Journal) -> None:
    try:
        comm = injector.comm = sw.init(timeout=trial.joins_within)
    except sw.SparsewireError as error:
        journal.failed(JOINING, error)
        return
    comm.timeout = trial.timeout
    faults = {fault.kind: fault for fault in trial.faults if fault.victim == comm.rank}
    bad, full = faults.get("bad input"), faults.get("disk full")
    for call in trial.calls:
        if bad is None and full is None:
            injector.before(call)
        is_bad = bad is not None and bad.at == call.number
        if is_bad:
            journal.write(fault="bad input")
        try:
            model = _fitted(trial, comm, call.number, is_bad)
        except sw.SparsewireError as error:
            journal.failed(call.number, error)
            if isinstance(error, sw.TransportError):
                time.sleep(trial.linger)
                break
            continue
        alike = comm.allgather(model.coef_.ravel())
        journal.write(call=call.number, right=all(np.array_equal(alike[0], other) for other in alike))
        if full is not None and full.at == call.number:
            _fill_disk(full, model, journal)
    comm.close()


def _fitted(trial: Trial, comm: sw.Communicator, number: int, is_bad: bool) -> Any:
    chance = np.random.default_rng([trial.seed, trial.number, number, comm.rank])
    rows = csr_array(chance.integers(0, 3, (ROWS, FEATURES)) * (chance.random((ROWS, FEATURES)) < 0.05))
    labels = chance.integers(0, 2, ROWS).astype(float)
    if is_bad:
        labels[7] = np.nan
    return LogisticRegression(comm=comm, max_iter=3, tol=None).fit(rows.astype(float), labels)


def _fill_disk(fault: Fault, model: Any, journal: Journal) -> None:
    """Replace a good file on a disk that has no room for the new one; the good one must remain."""
    folder = Path(os.environ["OUTCOME"]).parent / "disk"
    folder.mkdir()
    _mount_small_disk(folder)
    data, path, out = folder / "rows.svm", folder / "model.npz", folder / "predictions.txt"
    data.write_text("".join(f"{row % 2} {1 + row % FEATURES}:1\n" for row in range(2000)))
    save_model(path, model)
    predict_file(path, data, out)
    before = path.read_bytes(), out.read_bytes()
    (folder / "others").write_bytes(bytes(_free_bytes(folder) - 4096))
    journal.write(fault=fault.kind)
    try:
        if fault.detail["what"] == "model":
            model.coef_ = np.random.default_rng(0).normal(size=(1, 100_000))
            model.n_features_in_ = 100_000
            save_model(path, model)
        else:
            predict_file(path, data, out, probabilities=True)
    except sw.SparsewireError as error:
        named = str(path if fault.detail["what"] == "model" else out) in str(error)
        journal.write(refused=type(error).__name__, message=str(error), named=named)
    files = sorted(file.name for file in folder.iterdir())
    intact = (path.read_bytes(), out.read_bytes()) == before
    journal.write(files=files, intact=intact, loads=load_model(path) is not None)


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_bsize


def _mount_small_disk(folder: Path) -> None:
    """For this process alone: nothing is left when it ends."""
    steps = [
        _libc.unshare(CLONE_NEWNS),
        _libc.mount(None, b"/", None, MS_REC_PRIVATE, None),
        _libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, b"size=256k"),
    ]
    if any(steps):
        raise OSError(ctypes.get_errno(), "cannot mount a small disk")
