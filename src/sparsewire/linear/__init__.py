"""Linear models for sparse rows on one process or many: scikit-learn estimators, files, generated data.

from sparsewire.linear import LogisticRegression
model = LogisticRegression(comm=sw.init()).fit(rows, labels)
"""

from sparsewire.errors import MissingExtraError

try:
    import scipy as _scipy  # noqa: F401
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise MissingExtraError.of(f"{error.name}", "linear") from error

from sparsewire.linear.estimators import LinearSVC, LogisticRegression, Ridge
from sparsewire.linear.generate import url_like, webspam_like
from sparsewire.linear.libsvm import load_libsvm
from sparsewire.linear.model_file import load_model, save_model

__all__ = [
    "LinearSVC",
    "LogisticRegression",
    "Ridge",
    "load_libsvm",
    "load_model",
    "save_model",
    "url_like",
    "webspam_like",
]
