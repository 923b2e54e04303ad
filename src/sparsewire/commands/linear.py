"""``sparsewire linear fit`` and ``sparsewire linear predict``."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsewire.bench.harness.options import Driver, Network, Option, Options, Ranks, option, parse_numbers
from sparsewire.commands.generate import make_callback

LibsvmFile = Annotated[Path, Option("A LIBSVM file; .gz, .bz2, .xz and .zst too.", by_position=True)]

group = typer.Typer(help="Linear models of LIBSVM files, on many ranks.", no_args_is_help=True)


@dataclass(frozen=True, kw_only=True)
class FitOptions(Options):
    """Train a linear model; Ctrl-C leaves the model of the last complete pass."""

    train: LibsvmFile
    test: Path | None = option(None, "A file to score the model on after every pass.")
    loss: str = option("logistic", "logistic, squared_hinge or hinge for classes; squared for values.")
    solver: str = option(
        "auto",
        "sdca: a row at a time, in the dual. sgd: mini-batches of rows. cd: random blocks of features.",
    )
    epochs: int = option(10, "Passes over the data, at most.", min=1)
    ranks: Ranks = 4
    driver: Driver = "tcp"
    network: Network = None
    model: Path | None = option(None, "Where to save the model after every pass, an .npz file.")
    penalty: str = option("l2", "l2, l1, elasticnet or none.")
    alpha: float = option(1e-4, "Strength of the penalty.")
    l1_ratio: float = option(0.15, "Share of l1 in elasticnet.")
    class_weight: str | None = option(None, "'balanced': rare classes count as much as others.")
    positive: str | None = option(
        None, "Labels, separated by commas, that are one class (1) against the rest (-1)."
    )
    batch: int = option(1000, "Rows of a rank and step (sgd).")
    eta0: float | None = option(None, "Length of the first step (sgd); default: as the data allows.")
    learning_rate: str = option("constant", "Of later steps (sgd): constant, invscaling or epoch_decay.")
    power_t: float = option(0.5, "invscaling: divided by the step's number to this power.")
    decay: float = option(0.8, "epoch_decay: factor of every pass.")
    momentum: float = option(0.0, "Of steps (sgd).")
    average: bool = option(False, "The model is the mean over all steps (sgd).")
    block: int = option(100, "Features of a rank and step (cd).")
    algorithm: str = option("auto", "Of the sum of gradients (sgd) or changes (sdca).")
    precision: str | None = option(
        None, "Of gradients on the wire: float16, bfloat16, qsgd2, qsgd4 or qsgd8."
    )
    method: str = option("exact", "exact, or what selects the largest entries of gradients: topk, ...")
    density: float = option(0.01, "Share of the gradient that is sent, unless it is exact.")
    tol: float | None = option(
        None,
        "sdca: stop when the loss is within this share of the optimum (default: 0.001). "
        "Others: stop when five passes have not gained this much (default: never).",
    )
    early_stopping: bool = option(False, "Stop by the loss of a tenth of the rows, held out.")
    features: int | None = option(None, "Number of features; default: the largest index.", min=1)
    zero_based: bool | None = option(
        None, "What indices count from; default: 0 if it occurs.", flags=("--zero-based/--one-based",)
    )
    dtype: str = option("float32", "Of data and model: float32 or float64.")
    seed: int = option(0, "The same seed gives the same model.")
    json: Path | None = option(None, "Also write all passes to this file.", is_output=True)

    def unused(self) -> tuple[str, ...]:
        """There are many options, so those with their default values are not recorded."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) == field.default)

    def parameters(self) -> dict[str, Any]:
        """The parameters of the estimator."""
        same = (
            *("solver", "alpha", "l1_ratio", "tol", "early_stopping", "learning_rate", "eta0", "power_t"),
            *("decay", "momentum", "average", "method", "algorithm", "precision", "density"),
        )
        parameters = {
            **{name: getattr(self, name) for name in same},
            "penalty": None if self.penalty == "none" else self.penalty,
            "max_iter": self.epochs,
            "batch_size": self.batch,
            "block_size": self.block,
            "random_state": self.seed,
        }
        return parameters | ({"class_weight": self.class_weight} if self.class_weight else {})


def fit(options: FitOptions) -> None:
    """Train, print a summary and write the JSON file."""
    from sparsewire.bench.harness.json_file import write_json
    from sparsewire.bench.harness.table import wide_console
    from sparsewire.commands.linear_fit import print_fit, run_fit
    from sparsewire.files import require_writable
    from sparsewire.linear.fit_rank import FitPlan

    plan = FitPlan(
        str(options.train),
        options.loss,
        options.parameters(),
        test=str(options.test) if options.test else None,
        model=str(options.model) if options.model else None,
        features=options.features,
        zero_based="auto" if options.zero_based is None else options.zero_based,
        dtype=options.dtype,
        positive=parse_numbers(float, options.positive) if options.positive else None,
    )
    if options.json:
        require_writable(options.json)
    fitted = run_fit(plan, options.ranks, options.driver, options.network)
    print_fit(wide_console(), plan, fitted)
    if options.json:
        write_json(
            options.json,
            ["sparsewire", "linear", "fit", *options.words()],
            [asdict(record) for record in fitted.passes],
            data=fitted.data,
            score=fitted.score_name,
            training_score=fitted.training_score,
        )


group.command("fit")(make_callback(FitOptions, fit))


@dataclass(frozen=True, kw_only=True)
class PredictOptions(Options):
    """A line for every row of DATA: what MODEL predicts for it; and how much of that is right."""

    model: Annotated[Path, Option("What `linear fit --model` wrote.", by_position=True)]
    data: LibsvmFile
    output: Path | None = option(None, "Where to write predictions; default: standard output.")
    probabilities: bool = option(False, "Of every class, instead of the likeliest one.")


def predict(options: PredictOptions) -> None:
    """Predict, and print how much is right."""
    import warnings

    from sparsewire.linear.prediction import predict_file

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = _print_warning
        predicted = predict_file(
            options.model, options.data, options.output, probabilities=options.probabilities
        )
    print(predicted, file=sys.stdout if options.output else sys.stderr)


group.command("predict")(make_callback(PredictOptions, predict))


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print the message without its place in the source, which means nothing to users."""
    print(f"sparsewire: {message}", file=sys.stderr)
