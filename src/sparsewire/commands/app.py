"""The command line: ``sparsewire run | serve | linear | bench | simulate | tune | demo | doctor``.

Commands import what they need when they are called, so that ``--help`` answers at once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from sparsewire.errors import InputError, SparsewireError

if TYPE_CHECKING:
    from sparsewire.bench.cases import Case

__all__ = ["app", "main"]

Number = TypeVar("Number", int, float)

LONGEST_PREPARATION_S = 7 * 24 * 3600.0  # of workers before they join, who have time-outs of their own

app = typer.Typer(
    name="sparsewire",
    help="Sparse collective communication: sums of mostly-zero vectors at the cost of their non-zeros.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Measure, side by side and checked.", no_args_is_help=True)
simulate = typer.Typer(help="Predict, in virtual time, for any number of ranks.", no_args_is_help=True)
linear = typer.Typer(help="Linear models of LIBSVM files, on many ranks.", no_args_is_help=True)
app.add_typer(linear, name="linear")
app.add_typer(bench, name="bench")
app.add_typer(simulate, name="simulate")

Ranks = Annotated[int, typer.Option("-n", "--ranks", min=1, help="Number of ranks.")]
Size = Annotated[str, typer.Option(help="Length of the vector: 16M is 16 * 2^20, k is 2^10, G is 2^30.")]
Density = Annotated[float, typer.Option(help="Share of each rank's entries that are not zero.")]
Algorithms = Annotated[str, typer.Option(help="Names, separated by commas, or 'all'.")]
Distribution = Annotated[
    str,
    typer.Option(
        help="uniform, zipf, rows, identical or disjoint; in whole blocks: blocks:256, blocks:256,identical, "
        "blocks:256,disjoint, rows:64,zipf or trace:FILE, which has a size and a density of its own."
    ),
]
Precisions = Annotated[
    str,
    typer.Option(
        "--precision",
        help="Names, separated by commas: exact, coo (indices are not coded), float16, bfloat16, "
        "qsgd2, qsgd4, qsgd8.",
    ),
]
Dtype = Annotated[str, typer.Option(help="Type of the values.")]
Seed = Annotated[int, typer.Option(help="Same seed, same input.")]
NetworkRate = Annotated[
    str | None, typer.Option("--network", help="Rate of an emulated link per rank, e.g. 1gbit (Linux, root).")
]
Json = Annotated[Path | None, typer.Option("--json", help="Also write the rows to this file.")]


def main() -> NoReturn:
    """Run the command line; an error that is ours is one line, not a traceback."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    # A shell script starts us in the background with SIGINT ignored, and Python keeps it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app()
    except SparsewireError as error:
        print(f"sparsewire: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    sys.exit(0)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """End as an exception does: ranks are stopped and namespaces removed on the way out."""
    sys.exit(128 + number)


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    script: Annotated[str, typer.Argument(help="A Python script, or a module with -m.", show_default=False)],
    ranks: Ranks,
    arguments: Annotated[list[str] | None, typer.Argument(help="Passed on to the script.")] = None,
    module: Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is the name of a module.")] = False,
    aggregators: Annotated[
        int, typer.Option(min=0, help="More ranks, which only aggregate for omnireduce.")
    ] = 0,
) -> None:
    """Run a script as local ranks; all stop if one dies, and its exit code is the result."""
    from sparsewire.launch.local import launch

    if not module and not Path(script).exists():
        raise InputError(f"there is no script {script!r}")
    command = [sys.executable, *(["-m"] if module else []), script, *(arguments or [])]
    try:
        outcome = launch(command, ranks, aggregators=aggregators)
    except BrokenPipeError:  # whoever read our output has seen enough, as in `sparsewire run ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains at exit
        raise typer.Exit(128 + signal.SIGPIPE) from None
    if outcome.code != 0:
        print(f"sparsewire: {outcome}; the other ranks were stopped", file=sys.stderr)
    raise typer.Exit(outcome.code)


@app.command()
def serve() -> None:
    """Only aggregate, for a job's workers, until they have left; `run --aggregators` starts this."""
    import sparsewire

    with sparsewire.init(timeout=LONGEST_PREPARATION_S) as comm:
        comm.serve()


@linear.command("fit")
def linear_fit(
    context: typer.Context,
    train: Annotated[
        Path, typer.Argument(help="A LIBSVM file; .gz, .bz2, .xz and .zst too.", show_default=False)
    ],
    test: Annotated[Path | None, typer.Option(help="A file to score the model on after every pass.")] = None,
    loss: Annotated[
        str, typer.Option(help="logistic, squared_hinge or hinge for classes; squared for values.")
    ] = "logistic",
    solver: Annotated[
        str, typer.Option(help="sgd: mini-batches of rows. cd: random blocks of features.")
    ] = "sgd",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data, at most.")] = 10,
    ranks: Ranks = 4,
    driver: Annotated[str, typer.Option(help="tcp or mpi.")] = "tcp",
    network: NetworkRate = None,
    model: Annotated[
        Path | None, typer.Option(help="Where to save the model after every pass, an .npz file.")
    ] = None,
    penalty: Annotated[str, typer.Option(help="l2, l1, elasticnet or none.")] = "l2",
    alpha: Annotated[float, typer.Option(help="Strength of the penalty.")] = 1e-4,
    l1_ratio: Annotated[float, typer.Option(help="Share of l1 in elasticnet.")] = 0.15,
    class_weight: Annotated[
        str | None, typer.Option(help="'balanced': rare classes count as much as others.")
    ] = None,
    positive: Annotated[
        str | None,
        typer.Option(help="Labels, separated by commas, that are one class (1) against the rest (-1)."),
    ] = None,
    batch: Annotated[int, typer.Option(help="Rows of a rank and step (sgd).")] = 1000,
    eta0: Annotated[
        float | None, typer.Option(help="Length of the first step (sgd); default: as the data allows.")
    ] = None,
    learning_rate: Annotated[
        str, typer.Option(help="Of later steps (sgd): constant, invscaling or epoch_decay.")
    ] = "constant",
    power_t: Annotated[
        float, typer.Option(help="invscaling: divided by the step's number to this power.")
    ] = 0.5,
    decay: Annotated[float, typer.Option(help="epoch_decay: factor of every pass.")] = 0.8,
    momentum: Annotated[float, typer.Option(help="Of steps (sgd).")] = 0.0,
    average: Annotated[
        bool, typer.Option("--average", help="The model is the mean over all steps (sgd).")
    ] = False,
    block: Annotated[int, typer.Option(help="Features of a rank and step (cd).")] = 100,
    algorithm: Annotated[str, typer.Option(help="Of the sum of gradients (sgd).")] = "auto",
    precision: Annotated[
        str | None, typer.Option(help="Of gradients on the wire: float16, bfloat16, qsgd2, qsgd4 or qsgd8.")
    ] = None,
    method: Annotated[
        str, typer.Option(help="exact, or what selects the largest entries of gradients: topk, ...")
    ] = "exact",
    density: Annotated[
        float, typer.Option(help="Share of the gradient that is sent, unless it is exact.")
    ] = 0.01,
    tol: Annotated[
        float | None, typer.Option(help="Stop when five passes have not gained this much; default: never.")
    ] = None,
    early_stopping: Annotated[
        bool, typer.Option("--early-stopping", help="Stop by the loss of a tenth of the rows, held out.")
    ] = False,
    features: Annotated[
        int | None, typer.Option(min=1, help="Number of features; default: the largest index.")
    ] = None,
    zero_based: Annotated[
        bool | None,
        typer.Option(
            "--zero-based/--one-based",
            help="What indices count from; default: 0 if it occurs.",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Of data and model: float32 or float64.")] = "float32",
    seed: Annotated[int, typer.Option(help="Same seed, same model.")] = 0,
    json: Annotated[Path | None, typer.Option("--json", help="Also write all passes to this file.")] = None,
) -> None:
    """Train a linear model; Ctrl-C leaves the model of the last complete pass."""
    from dataclasses import asdict

    from sparsewire.bench import report
    from sparsewire.commands.linear_fit import print_fit, run_fit
    from sparsewire.linear.fit_rank import FitPlan

    parameters = {
        "solver": solver,
        "penalty": None if penalty == "none" else penalty,
        "alpha": alpha,
        "l1_ratio": l1_ratio,
        "max_iter": epochs,
        "tol": tol,
        "early_stopping": early_stopping,
        "batch_size": batch,
        "learning_rate": learning_rate,
        "eta0": eta0,
        "power_t": power_t,
        "decay": decay,
        "momentum": momentum,
        "average": average,
        "block_size": block,
        "random_state": seed,
        "method": method,
        "algorithm": algorithm,
        "precision": precision,
        "density": density,
        **({"class_weight": class_weight} if class_weight else {}),
    }
    plan = FitPlan(
        str(train),
        loss,
        parameters,
        test=str(test) if test else None,
        model=str(model) if model else None,
        features=features,
        zero_based="auto" if zero_based is None else zero_based,
        dtype=dtype,
        positive=[_number(float, word) for word in positive.split(",")] if positive else None,
    )
    fitted = run_fit(plan, ranks, driver, network)
    print_fit(report.wide_console(), plan, fitted)
    if json:
        command = ["sparsewire", "linear", "fit", train.name, *_given_words(context)]
        rows = [asdict(record) for record in fitted.passes]
        report.write_json(
            json,
            command,
            rows,
            data=fitted.data,
            score=fitted.score_name,
            training_score=fitted.training_score,
        )


@linear.command("predict")
def linear_predict(
    model: Annotated[Path, typer.Argument(help="What `linear fit --model` wrote.", show_default=False)],
    data: Annotated[
        Path, typer.Argument(help="A LIBSVM file; .gz, .bz2, .xz and .zst too.", show_default=False)
    ],
    output: Annotated[
        Path | None, typer.Option(help="Where to write predictions; default: standard output.")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Of every class, instead of the likeliest one.")
    ] = False,
) -> None:
    """A line for every row of DATA: what MODEL says of it; and how much of that is right."""
    import warnings

    from sparsewire.linear.prediction import predict_file

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = _print_warning
        predicted = predict_file(model, data, output, probabilities=probabilities)
    print(predicted, file=sys.stdout if output else sys.stderr)


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Without the place in the source, which says nothing to users."""
    print(f"sparsewire: {message}", file=sys.stderr)


@bench.command("allreduce")
def bench_allreduce(
    context: typer.Context,
    ranks: Ranks = 4,
    size: Size = "16M",
    density: Annotated[
        str, typer.Option(help="Share of each rank's entries that are not zero; several: 0.01,0.1.")
    ] = "0.01",
    algorithms: Algorithms = "all",
    precision: Precisions = "exact",
    driver: Annotated[str, typer.Option(help="tcp, mpi: real processes. local: one process.")] = "tcp",
    network: NetworkRate = None,
    aggregators: Annotated[
        int, typer.Option(min=0, help="Further ranks, for omnireduce-dedicated (tcp only).")
    ] = 0,
    json: Json = None,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw times against density into this file (.png, .svg).")
    ] = None,
    peers: Annotated[str, typer.Option(help="Names, separated by commas, or 'all' of the driver.")] = "all",
    no_peers: Annotated[bool, typer.Option("--no-peers", help="Leave out gloo (tcp) and MPI (mpi).")] = False,
    distribution: Distribution = "uniform",
    dtype: Dtype = "float32",
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Of every row; default: as many as fit in --seconds.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time to spend on measuring each density.")] = 20.0,
    seed: Seed = 0,
) -> None:
    """Every algorithm against dense, and against gloo or MPI, in one run, each result checked."""
    from dataclasses import asdict

    from sparsewire.bench import report
    from sparsewire.bench.contenders import choose_algorithms, choose_peers, choose_precisions
    from sparsewire.bench.plot import plot_allreduce, require_matplotlib
    from sparsewire.bench.progress import progress
    from sparsewire.bench.session import Options, run_sweep

    if plot:
        require_matplotlib()
    densities = [_number(float, word) for word in density.split(",")]
    cases = _cases(context, ranks, size, densities, dtype, distribution, seed)
    names = tuple(choose_algorithms(algorithms, driver, aggregators))
    precisions = tuple(choose_precisions(precision, dtype))
    beside = () if no_peers else choose_peers(peers, driver)
    options = Options(names, precisions, driver, network, beside, iterations, seconds, aggregators)
    with progress("bench allreduce") as tell:
        results = run_sweep(cases, options, tell)
    for case, result in zip(cases, results, strict=True):
        report.print_allreduce(report.wide_console(), case, result.rows, result.skipped)
    rows = [row for result in results for row in result.rows]
    if json:
        command = ["sparsewire", "bench", "allreduce", *_case_words(cases[0], size, density)]
        command += ["--algorithms", algorithms, "--precision", precision]
        command += [*_wire_words(driver, network), *(["--no-peers"] if no_peers else ["--peers", peers])]
        command += ["--aggregators", str(aggregators)] if aggregators else []
        command += ["--seconds", f"{seconds:g}"]
        command += ["--iterations", str(iterations)] if iterations else []
        report.write_json(json, command, [asdict(row) for row in rows], skipped=results[0].skipped)
    if plot:
        plot_allreduce(rows, plot)
    raise typer.Exit(1 if any(row.wrong for row in rows) else 0)


@bench.command("trace")
def bench_trace(
    file: Annotated[Path, typer.Argument(help="Where to write it, an .npz file.", show_default=False)],
    ranks: Ranks = 8,
    row: Annotated[int, typer.Option(min=1, help="Positions of a row of the table.")] = 64,
    batch: Annotated[int, typer.Option(min=1, help="Words of a rank and step.")] = 2048,
    steps: Annotated[int, typer.Option(min=1, help="To record.")] = 8,
    data: Annotated[
        Path | None, typer.Option(help="A text, instead of the standard library's source.")
    ] = None,
) -> None:
    """Record which rows of an embedding table a text touches, for --distribution trace:FILE."""
    from sparsewire.bench import report
    from sparsewire.bench.trace import record_trace, write_trace

    trace = record_trace(file, ranks, row, batch, steps, data)
    write_trace(trace)
    report.print_trace(report.wide_console(), trace)


@bench.command("grid")
def bench_grid(
    environments: Annotated[
        str, typer.Option(help="Drivers, behind an emulated link or not.")
    ] = "tcp@1gbit,tcp,mpi",
    ranks: Annotated[str, typer.Option(help="Numbers of ranks.")] = "2,4,8",
    sizes: Annotated[str, typer.Option(help="Lengths of the vector.")] = "4k,64k,1M,16M",
    densities: Annotated[str, typer.Option(help="Shares of entries that are not zero.")] = (
        "1e-5,1e-4,1e-3,1e-2,0.1,0.5"
    ),
    seconds: Annotated[float, typer.Option(min=0.01, help="Time to spend on measuring each cell.")] = 4.0,
    tuning: Annotated[float, typer.Option(min=0, help="Time to spend on tuning each job first.")] = 20.0,
    json: Json = None,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw heat maps into this file (.png, .svg).")
    ] = None,
) -> None:
    """Is `auto` as fast as the best algorithm?  Every size, density, number of ranks and environment."""
    from dataclasses import asdict

    from sparsewire.bench import report
    from sparsewire.bench.cases import parse_size
    from sparsewire.bench.grid import Cell, Environment, cell_to_json, grid_cases, run_grid, summarise
    from sparsewire.bench.plot import plot_grid, require_matplotlib
    from sparsewire.bench.progress import progress

    if plot:
        require_matplotlib()
    where = [Environment.parse(word) for word in environments.split(",")]
    cases = grid_cases(
        [_number(int, word) for word in ranks.split(",")],
        [parse_size(word) for word in sizes.split(",")],
        [_number(float, word) for word in densities.split(",")],
    )
    command = ["sparsewire", "bench", "grid", "--environments", environments, "--ranks", ranks]
    command += ["--sizes", sizes, "--densities", densities]
    command += ["--seconds", f"{seconds:g}", "--tuning", f"{tuning:g}"]

    def save(cells: list[Cell]) -> None:
        if json:
            rows = [cell_to_json(cell) for cell in cells]
            report.write_json(json, command, rows, summary=asdict(summarise(cells)))

    with progress("bench grid") as tell:
        cells = run_grid(where, cases, seconds, tuning, tell, save)
    report.print_grid(report.wide_console(), cells, summarise(cells))
    if plot:
        plot_grid(cells, plot)
    raise typer.Exit(1 if any(cell.wrong for cell in cells) else 0)


@bench.command("overlap")
def bench_overlap(
    ranks: Ranks = 2,
    size: Size = "4M",
    density: Density = 0.01,
    driver: Annotated[str, typer.Option(help="tcp or mpi.")] = "tcp",
    network: NetworkRate = None,
    compute_ratio: Annotated[
        float, typer.Option(min=0.01, help="Computing, in units of the communication's time.")
    ] = 3.0,
    json: Json = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time to spend on measuring.")] = 10.0,
    seed: Seed = 0,
) -> None:
    """Eight calls in flight beside a numpy loop: does communication hide behind computing?"""
    from dataclasses import asdict

    from sparsewire.bench import report
    from sparsewire.bench.cases import Case, parse_size
    from sparsewire.bench.progress import progress
    from sparsewire.bench.rows import times_longer_alone
    from sparsewire.bench.session import run_overlap

    case = Case(ranks, parse_size(size), density, seed=seed)
    with progress("bench overlap") as tell:
        rows = run_overlap(case, driver, network, compute_ratio, seconds, tell)
    report.print_overlap(report.wide_console(), case, rows)
    if json:
        command = ["sparsewire", "bench", "overlap", *_case_words(case, size, f"{density:g}")]
        command += _wire_words(driver, network)
        command += ["--compute-ratio", f"{compute_ratio:g}", "--seconds", f"{seconds:g}"]
        ratio = times_longer_alone(rows)
        report.write_json(json, command, [asdict(row) for row in rows], times_longer_alone=ratio)
    raise typer.Exit(1 if any(row.wrong for row in rows) else 0)


@bench.command("step")
def bench_step(
    ranks: Ranks = 4,
    size: Size = "16M",
    density: Annotated[float, typer.Option(help="Share of the gradient that a step selects.")] = 0.01,
    methods: Algorithms = "all",
    driver: Annotated[str, typer.Option(help="tcp or mpi.")] = "tcp",
    network: NetworkRate = None,
    json: Json = None,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw phases and selected counts into this file (.png, .svg).")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time to spend on measuring.")] = 20.0,
    seed: Seed = 0,
) -> None:
    """The whole training step, from gradient to mean: sparse methods against dense gloo or MPI."""
    from dataclasses import asdict

    from sparsewire.bench import report
    from sparsewire.bench.cases import Case, parse_size
    from sparsewire.bench.contenders import choose_methods
    from sparsewire.bench.plot import plot_step, require_matplotlib
    from sparsewire.bench.progress import progress
    from sparsewire.bench.session import run_step

    if plot:
        require_matplotlib()
    case = Case(ranks, parse_size(size), density, seed=seed)
    names = choose_methods(methods)
    with progress("bench step") as tell:
        rows, skipped = run_step(case, names, driver, network, seconds, tell)
    report.print_step(report.wide_console(), case, rows, skipped)
    if json:
        command = ["sparsewire", "bench", "step", "-n", str(ranks), "--size", size]
        command += ["--density", f"{density:g}", "--methods", methods, *_wire_words(driver, network)]
        command += ["--seconds", f"{seconds:g}", "--seed", str(seed)]
        report.write_json(json, command, [asdict(row) for row in rows], skipped=skipped)
    if plot:
        plot_step(rows, plot)
    raise typer.Exit(1 if any(row.wrong for row in rows) else 0)


@bench.command("train")
def bench_train(
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=2, help="Number of ranks.")] = 4,
    task: Annotated[str, typer.Option(help="chars, embedding or mnist.")] = "chars",
    methods: Annotated[
        str | None, typer.Option(help="Names, separated by commas; default: those that suit the task.")
    ] = None,
    density: Annotated[float, typer.Option(help="Share of the gradient that a step selects.")] = 0.01,
    warmup_steps: Annotated[
        int, typer.Option(min=0, help="Steps over which the density falls from 25%.")
    ] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Of each training.")] = 300,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings; the first one is timed.")] = 1,
    network: NetworkRate = None,
    width: Annotated[
        int | None, typer.Option(min=1, help="Of the model's layers; default: the task's.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Instead of what this machine has: a text; for mnist an .npz.")
    ] = None,
    json: Json = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw losses into this file (.png, .svg).")] = None,
    seed: Seed = 0,
) -> None:
    """Real training under DDP: time and loss of our methods, of dense, fp16 and PowerSGD, side by side."""
    from dataclasses import asdict

    from sparsewire.bench import report
    from sparsewire.bench.plot import plot_train, require_matplotlib
    from sparsewire.bench.progress import progress
    from sparsewire.bench.tasks import choose_task
    from sparsewire.bench.train import TrainPlan
    from sparsewire.bench.train_session import choose_methods, run_train

    if plot:
        require_matplotlib()
    chosen = choose_task(task, data)
    plan = TrainPlan(
        ranks=ranks,
        task=task,
        methods=choose_methods(methods, chosen),
        steps=steps,
        seed=seed,
        width=width or chosen.width,
        density=density,
        warmup_steps=warmup_steps,
        data=str(data) if data else None,
    )
    with progress("bench train") as tell:
        rows = run_train(plan, seeds, network, tell)
    report.print_train(report.wide_console(), rows)
    if json:
        command = ["sparsewire", "bench", "train", "-n", str(ranks), "--task", task]
        command += ["--methods", ",".join(plan.methods), "--density", f"{density:g}"]
        command += ["--warmup-steps", str(warmup_steps), "--steps", str(steps), "--seeds", str(seeds)]
        command += ["--network", network] if network else []
        command += ["--width", str(plan.width), *(["--data", data.name] if data else []), "--seed", str(seed)]
        report.write_json(json, command, [asdict(row) for row in rows])
    if plot:
        plot_train(rows, plot)
    raise typer.Exit(1 if any(row.wrong for row in rows) else 0)


@bench.command("linear")
def bench_linear(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(help="A LIBSVM file with two labels, instead of --data.", show_default=False),
    ] = None,
    data: Annotated[str, typer.Option(help="Generated rows: url or webspam.")] = "url",
    rows: Annotated[int, typer.Option(min=2, help="To generate, on all ranks together.")] = 200_000,
    features: Annotated[
        int | None, typer.Option(min=1, help="Default: as many as url, webspam or the file has.")
    ] = None,
    ranks: Ranks = 4,
    batch: Annotated[int, typer.Option(min=1, help="Rows of a rank and step.")] = 1000,
    passes: Annotated[int, typer.Option(min=1, help="To time, after one that is not.")] = 5,
    algorithms: Algorithms = "all",
    methods: Annotated[
        str, typer.Option(help="exact: by all algorithms. Others send the largest entries: topk, ...")
    ] = "exact",
    density: Annotated[float, typer.Option(help="Share of the gradient that other methods send.")] = 0.01,
    loss: Annotated[str, typer.Option(help="logistic, squared_hinge or hinge.")] = "logistic",
    driver: Annotated[str, typer.Option(help="tcp or mpi.")] = "tcp",
    network: NetworkRate = None,
    no_peers: Annotated[bool, typer.Option("--no-peers", help="Leave out gloo (tcp) and MPI (mpi).")] = False,
    no_alone: Annotated[bool, typer.Option("--no-alone", help="Leave out scikit-learn and Spark.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Measure peak memory instead of time.")] = False,
    json: Json = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw passes into this file (.png, .svg).")] = None,
    seed: Seed = 0,
) -> None:
    """Linear models, pass by pass: sparse sums of gradients against dense ones, scikit-learn and Spark."""
    from dataclasses import asdict

    from sparsewire.bench import report
    from sparsewire.bench.linear_plan import LinearPlan
    from sparsewire.bench.linear_session import choose_contenders, run_linear, run_linear_memory
    from sparsewire.bench.plot import plot_linear, require_matplotlib
    from sparsewire.bench.progress import progress

    if plot:
        require_matplotlib()
    plan = LinearPlan(
        ranks=ranks,
        data=str(file) if file else data,
        rows=None if file else rows,
        features=features,
        contenders=choose_contenders(algorithms, methods),
        passes=passes,
        batch=batch,
        loss=loss,
        density=density,
        seed=seed,
    )
    command = ["sparsewire", "bench", "linear", *([file.name] if file else []), *_given_words(context)]
    if memory:
        with progress("bench linear") as tell:
            peaks = run_linear_memory(plan, driver, tell)
        report.print_linear_memory(report.wide_console(), peaks)
        if json:
            report.write_json(json, command, [asdict(row) for row in peaks])
        return
    with progress("bench linear") as tell:
        found, skipped = run_linear(plan, driver, network, peers=not no_peers, alone=not no_alone, tell=tell)
    report.print_linear(report.wide_console(), found, skipped)
    if json:
        packages = report.package_versions("scikit-learn", "pyspark")
        report.write_json(json, command, [asdict(row) for row in found], skipped=skipped, packages=packages)
    if plot:
        plot_linear(found, plot)
    raise typer.Exit(1 if any(row.wrong for row in found) else 0)


@bench.command("memory")
def bench_memory(
    context: typer.Context,
    ranks: Ranks = 4,
    size: Size = "64M",
    density: Density = 0.001,
    algorithms: Algorithms = "all",
    json: Json = None,
    distribution: Distribution = "uniform",
    dtype: Dtype = "float32",
    seed: Seed = 0,
) -> None:
    """Peak memory of one allreduce per rank, for the sparse algorithms."""
    from dataclasses import asdict

    from sparsewire.bench import report
    from sparsewire.bench.contenders import choose_sparse_algorithms
    from sparsewire.bench.progress import progress
    from sparsewire.bench.session import run_memory

    [case] = _cases(context, ranks, size, [density], dtype, distribution, seed)
    names = choose_sparse_algorithms(algorithms)
    with progress("bench memory") as tell:
        rows = run_memory(case, names, tell)
    report.print_memory(report.wide_console(), case, rows)
    if json:
        words = _case_words(case, size, f"{density:g}")
        command = ["sparsewire", "bench", "memory", *words, "--algorithms", algorithms]
        report.write_json(json, command, [asdict(row) for row in rows])
    raise typer.Exit(1 if any(row.wrong for row in rows) else 0)


@bench.command("kernels")
def bench_kernels(
    isa: Annotated[str | None, typer.Option(help="Instruction set to force; default: the best.")] = None,
    json: Json = None,
) -> None:
    """Every kernel against the bar it is held to."""
    from sparsewire.bench import kernels, report
    from sparsewire.bench.progress import progress

    with progress("bench kernels") as tell:
        rows = kernels.run(isa, tell=tell)
    report.print_kernels(report.wide_console(), rows)
    if json:
        command = ["sparsewire", "bench", "kernels", *(["--isa", isa] if isa else [])]
        report.write_json(json, command, rows)


@bench.command("coding")
def bench_coding(
    size: Size = "16M",
    json: Json = None,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw bits per index into this file (.png, .svg).")
    ] = None,
) -> None:
    """What index coding and low precision cost and save, on one core."""
    from dataclasses import asdict

    from sparsewire.bench import coding, report
    from sparsewire.bench.cases import parse_size
    from sparsewire.bench.plot import plot_coding, require_matplotlib
    from sparsewire.bench.progress import progress

    if plot:
        require_matplotlib()
    with progress("bench coding") as tell:
        supports, precisions = coding.run(parse_size(size), tell=tell)
    report.print_coding(report.wide_console(), supports, precisions)
    if json:
        command = ["sparsewire", "bench", "coding", "--size", size]
        rows = [asdict(row) for row in supports]
        report.write_json(json, command, rows, precisions=[asdict(row) for row in precisions])
    if plot:
        plot_coding(supports, plot)
    raise typer.Exit(1 if any(row.wrong for row in supports) else 0)


@bench.command("libsvm")
def bench_libsvm(
    file: Annotated[
        Path | None, typer.Argument(help="Plain text; by default one like URL is made.", show_default=False)
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Of a file that is made.")] = 20_000,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time to spend on measuring.")] = 20.0,
    json: Json = None,
) -> None:
    """How fast LIBSVM files are read on one core, ours and scikit-learn's reader in turns."""
    from dataclasses import asdict

    from sparsewire.bench import report
    from sparsewire.bench.libsvm import measure_libsvm
    from sparsewire.bench.progress import progress

    with progress("bench libsvm") as tell:
        found = measure_libsvm(str(file) if file else None, rows, seconds, tell)
    report.print_libsvm(report.wide_console(), found)
    if json:
        command = ["sparsewire", "bench", "libsvm", *([file.name] if file else ["--rows", str(rows)])]
        report.write_json(json, [*command, "--seconds", f"{seconds:g}"], [asdict(row) for row in found])
    raise typer.Exit(1 if any(row.wrong for row in found) else 0)


@simulate.command("allreduce")
def simulate_allreduce(
    context: typer.Context,
    ranks: Ranks = 256,
    size: Size = "110M",
    density: Density = 0.01,
    latency: Annotated[str, typer.Option(help="Of every message, e.g. 50us.")] = "50us",
    bandwidth: Annotated[str, typer.Option(help="Of every rank, in each direction, e.g. 1gbit.")] = "1gbit",
    algorithms: Algorithms = "all",
    precision: Precisions = "exact",
    json: Json = None,
    distribution: Distribution = "uniform",
    dtype: Dtype = "float32",
    seed: Seed = 0,
) -> None:
    """How long each algorithm would take on a network of that latency and bandwidth."""
    from dataclasses import asdict

    from sparsewire.bench import report
    from sparsewire.bench.contenders import choose_algorithms, choose_precisions
    from sparsewire.bench.progress import progress
    from sparsewire.bench.simulate import parse_duration, run_simulation
    from sparsewire.launch.emulation import parse_rate

    [case] = _cases(context, ranks, size, [density], dtype, distribution, seed)
    names, latency_s, rate = (
        choose_algorithms(algorithms, "simulator"),
        parse_duration(latency),
        parse_rate(bandwidth),
    )
    precisions = choose_precisions(precision, dtype)
    with progress("simulate allreduce") as tell:
        prediction = run_simulation(case, names, latency_s, rate, bandwidth, tell, precisions)
    report.print_simulation(report.wide_console(), case, latency, prediction)
    if json:
        command = [
            "sparsewire",
            "simulate",
            "allreduce",
            *_case_words(case, size, f"{density:g}"),
            *("--algorithms", algorithms, "--precision", precision),
        ]
        command += ["--latency", latency, "--bandwidth", bandwidth]
        more = {"scale": prediction.scale, "model_seconds": prediction.model_seconds}
        more["skipped"] = prediction.skipped
        report.write_json(json, command, [asdict(row) for row in prediction.rows], **more)
    raise typer.Exit(1 if any(row.wrong for row in prediction.rows) else 0)


@app.command()
def tune(
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=2, help="Local ranks to start.")] = 4,
    driver: Annotated[str, typer.Option(help="Of the ranks to start: tcp or mpi.")] = "tcp",
    network: NetworkRate = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time to spend on measuring.")] = 20.0,
) -> None:
    """Measure what messages and computing cost here, for `auto` to choose by; in a job, with its ranks."""
    import sparsewire
    from sparsewire.bench.progress import progress
    from sparsewire.choosing.tune import run_tune
    from sparsewire.launch.emulation import parse_rate
    from sparsewire.launch.job import run_job

    with sparsewire.init() as comm:
        if comm.size > 1:
            with progress("tune") if comm.rank == 0 else nullcontext(lambda *_: None) as tell:
                found = run_tune(comm, budget_s=seconds, tell=tell)
            print(found, end="\n" if found else "")
            return
    rate = parse_rate(network) if network else None
    ourselves = ["-m", "sparsewire", "tune", "--seconds", f"{seconds:g}"]
    outcome = run_job(ourselves, ranks, driver=driver, bits_per_second=rate, on_line=_pass_on)
    raise typer.Exit(outcome.code)


def _pass_on(rank: int, stream: str, line: bytes) -> None:
    """What ranks that speak with one voice say, as our own words."""
    print(line.decode(errors="replace"), file=sys.stdout if stream == "stdout" else sys.stderr, flush=True)


@app.command()
def demo() -> None:
    """Four real processes add up 16M floats, sparse and dense: half a minute, no set-up."""
    from sparsewire.bench import report
    from sparsewire.bench.demo import run_demo

    raise typer.Exit(run_demo(report.wide_console()))


@app.command()
def doctor() -> None:
    """What is installed, and what can run here."""
    from sparsewire.bench import report
    from sparsewire.bench.doctor import print_doctor

    print_doctor(report.wide_console())


def _number(kind: Callable[[str], Number], text: str) -> Number:
    try:
        return kind(text)
    except ValueError:
        raise InputError(f"{text!r} is not a number") from None


def _given_words(context: typer.Context) -> list[str]:
    """The options that were given, again, but for --json; files without their folders."""
    words = []
    for option in context.command.params:
        name = option.name or ""
        source, value = context.get_parameter_source(name), context.params[name]
        if option.param_type_name != "option" or source is None or source.name != "COMMANDLINE":
            continue
        if name == "json":
            continue
        if isinstance(value, bool):
            words.append((option.opts if value else option.secondary_opts)[0])
        else:
            words += [option.opts[-1], value.name if isinstance(value, Path) else str(value)]
    return words


def _wire_words(driver: str, network: str | None) -> list[str]:
    return ["--driver", driver, *(["--network", network] if network else [])]


def _cases(
    context: typer.Context,
    ranks: int,
    size: str,
    densities: Sequence[float],
    dtype: str,
    distribution: str,
    seed: int,
) -> list[Case]:
    """One for each density; a trace is a single one, whose size and density nobody else may say."""
    from sparsewire.bench.cases import Case, parse_size, trace_case

    if not distribution.startswith("trace:"):
        length = parse_size(size)
        return [Case(ranks, length, density, dtype, distribution, seed) for density in densities]
    for name in ("size", "density"):
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            raise InputError(f"a trace has a {name} of its own: leave out --{name}")
    return [trace_case(ranks, dtype, distribution, seed)]


def _case_words(case: Case, size: str, density: str) -> list[str]:
    """The options that make this case again; a trace has its own size and density."""
    is_trace = case.distribution.startswith("trace:")
    return [
        *("-n", str(case.ranks)),
        *([] if is_trace else ["--size", size, "--density", density]),
        *("--dtype", case.dtype, "--distribution", case.distribution_name, "--seed", str(case.seed)),
    ]


if __name__ == "__main__":
    main()
