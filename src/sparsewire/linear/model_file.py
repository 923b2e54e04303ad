"""Fitted models as .npz files, which numpy reads without pickle.

format                        1
loss, parameters              from which the estimator is made; parameters are JSON
coef                          the array of the estimator, if at least half of it is not zero; otherwise
coef_places, coef_values      its numbers other than zero, and their places in the transpose of coef
intercept, classes            the arrays of the estimator; a regression has no classes
features, epochs, loss_curve  numbers of features and passes, and the loss after each pass
gap                           that of the estimator, if the solver has a certificate
facts                         what else the caller wants to keep, as JSON
sparsewire                    the version that wrote the file
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from sparsewire.errors import InputError
from sparsewire.files import replaced_file
from sparsewire.linear.estimators import LinearSVC, LogisticRegression, Ridge
from sparsewire.linear.losses import HINGE, LOGISTIC, SQUARED, SQUARED_HINGE
from sparsewire.linear.model import LinearModel
from sparsewire.linear.problem import Array
from sparsewire.vector import index_dtype

__all__ = ["load_model", "make_model", "model_facts", "save_model"]

FORMAT = 1
MODELS: dict[str, type[LinearModel]] = {
    LOGISTIC.name: LogisticRegression,
    SQUARED_HINGE.name: LinearSVC,
    HINGE.name: LinearSVC,
    SQUARED.name: Ridge,
}


def make_model(loss: str, **parameters: Any) -> LinearModel:
    """An estimator that minimises this loss.

    >>> make_model("hinge", alpha=0.01)
    LinearSVC(alpha=0.01, loss='hinge')
    """
    if loss not in MODELS:
        raise InputError(f"unknown loss {loss!r}; known are {', '.join(MODELS)}")
    if MODELS[loss] is LinearSVC:
        parameters["loss"] = loss
    return MODELS[loss](**parameters)


def save_model(path: str | os.PathLike[str], model: LinearModel, **facts: Any) -> None:
    """Write a fitted model; an existing file is replaced when the new one is complete.

    ``facts`` are saved with it and returned by ``model_facts``: anything that JSON can hold.  Not saved are
    the communicator, a generator given as ``random_state``, and what only training needs, such as velocities.

    >>> import os, tempfile
    >>> from sparsewire.linear import url_like
    >>> rows, labels = url_like(100, features=50, nonzeros=5)
    >>> model = LogisticRegression(max_iter=3, tol=None).fit(rows, labels)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_model(os.path.join(folder, "model.npz"), model)
    ...     loaded = load_model(os.path.join(folder, "model.npz"))
    >>> bool((loaded.decision_function(rows) == model.decision_function(rows)).all())
    True
    """
    check_is_fitted(model)
    arrays = {
        "format": FORMAT,
        "loss": _loss_name(model),
        "parameters": json.dumps(_parameters(model), default=_plain),
        "intercept": model.intercept_,
        "features": model.n_features_in_,
        "epochs": model.n_iter_,
        "loss_curve": model.loss_curve_,
        "facts": json.dumps(facts),
        "sparsewire": importlib.metadata.version("sparsewire"),
        **_coef_arrays(model.coef_),
        **({} if model.gap_ is None else {"gap": model.gap_}),
        **({} if isinstance(model, Ridge) else {"classes": _classes(model)}),
    }
    with replaced_file(path, "wb") as file:
        np.savez(file, **arrays)


def load_model(path: str | os.PathLike[str]) -> LinearModel:
    """The model that ``save_model`` wrote, which can predict and continue with ``partial_fit``."""
    with _opened(path) as file:
        if damaged := file.zip.testzip():
            raise ValueError(f"{damaged} is damaged")
        model = make_model(str(file["loss"]), **_given(json.loads(str(file["parameters"]))))
        model.n_features_in_, model.n_iter_ = int(file["features"]), int(file["epochs"])
        model.loss_curve_ = file["loss_curve"].tolist()
        model.gap_ = float(file["gap"]) if "gap" in file else None
        model.intercept_ = file["intercept"][()]
        shape: tuple[int, ...] = (model.n_features_in_,)
        if not isinstance(model, Ridge):
            model.classes_ = file["classes"]
            shape = (len(model.classes_) if len(model.classes_) > 2 else 1, *shape)
        model.coef_ = _coef(file, shape)
        if model.coef_.shape != shape or np.shape(model.intercept_) != shape[:-1]:
            raise ValueError(f"coef is of shape {model.coef_.shape}, not {shape}")
        return model


def model_facts(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The ``facts`` given to ``save_model``, and the number of passes of the model ("epochs")."""
    with _opened(path) as file:
        return {**json.loads(str(file["facts"])), "epochs": int(file["epochs"])}


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    """The arrays of a file; anything wrong with them becomes an InputError with the file's name."""
    try:
        with open(path, "rb") as stream:
            if not zipfile.is_zipfile(stream):
                raise ValueError("it is not a complete .npz file")
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as file:
                if "format" not in file:
                    raise ValueError("it has no entry 'format'")
                if int(file["format"]) > FORMAT:
                    raise InputError("it was saved by a later version of sparsewire: update this one")
                yield file
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # for damaged bytes, zip, numpy and JSON raise many types
        raise InputError(f"{path} is not a model that sparsewire has saved: {error}") from error


def _loss_name(model: LinearModel) -> str:
    if isinstance(model, LinearSVC):
        return model.loss
    return next(name for name, kind in MODELS.items() if isinstance(model, kind))


def _parameters(model: LinearModel) -> dict[str, Any]:
    """The parameters that JSON can hold; class weights as pairs, because keys of JSON are strings."""
    parameters = {
        name: value for name, value in model.get_params(deep=False).items() if name not in ("comm", "loss")
    }
    if isinstance(weights := parameters.get("class_weight"), dict):
        parameters["class_weight"] = [*weights.items()]
    if not isinstance(model.random_state, int | np.integer):
        del parameters["random_state"]
    if model.precision is not None and not isinstance(model.precision, str):
        parameters["precision"] = model.precision.name
    return parameters


def _plain(number: Any) -> Any:
    """A number of numpy as a number of Python."""
    return number.item()


def _given(parameters: dict[str, Any]) -> dict[str, Any]:
    if isinstance(weights := parameters.get("class_weight"), list):
        parameters["class_weight"] = dict(weights)
    return parameters


def _classes(model: LinearModel) -> Array:
    classes: Array = model.classes_
    if classes.dtype.hasobject:
        classes = np.array(classes.tolist())  # numpy writes strings, but not as objects
    if classes.dtype.hasobject:
        raise InputError(f"classes are saved as numbers or texts, and these are {classes.tolist()}")
    return classes


def _coef_arrays(coef: Array) -> dict[str, Array]:
    weights = coef.T.reshape(-1)  # feature by feature, as they are in memory
    if 2 * np.count_nonzero(weights) >= len(weights):
        return {"coef": coef}
    places = np.flatnonzero(weights)
    return {"coef_places": places.astype(index_dtype(len(weights))), "coef_values": weights[places]}


def _coef(file: Any, shape: tuple[int, ...]) -> Array:
    if "coef" in file:
        coef: Array = file["coef"]
        return coef
    values = file["coef_values"]
    weights: Array = np.zeros(shape[::-1], values.dtype)
    weights.reshape(-1)[file["coef_places"]] = values
    return weights.T
