"""Why `auto` chooses what it chooses: the predicted time of every algorithm, as rows and as text."""

from __future__ import annotations

from typing import NamedTuple

from sparsewire.algorithms import suited
from sparsewire.choosing.calibration import Calibration
from sparsewire.choosing.choose import choose
from sparsewire.cost import Cost, CostFigures, Shape

__all__ = ["Prediction", "figures", "render", "table"]


class Prediction(NamedTuple):
    """What an algorithm is expected to cost the busiest rank."""

    algorithm: str
    cost: Cost


def table(network: CostFigures, shape: Shape) -> list[Prediction]:
    """Every algorithm's prediction, fastest first."""
    costs = {name: algorithm.cost(network, shape) for name, algorithm in suited(shape).items()}
    rows = [Prediction(n, c._replace(seconds=network.startup + c.seconds)) for n, c in costs.items()]
    return sorted(rows, key=lambda row: row.cost.seconds)


def render(calibration: Calibration, shape: Shape) -> str:
    """The figures, the table and the choice as plain text."""
    network = calibration.network
    lines = [
        f"{shape.size} ranks, length {shape.length:,}, at most {shape.nnz:,} entries per rank, "
        f"{shape.value_bytes} bytes per value"
        + (f", sent as {shape.precision.name}" if shape.precision else ""),
        f"{calibration}:",
        *(f"  {name:<20} {text}" for name, text in figures(network)),
        f"{'algorithm':<24} {'seconds':>10} {'rounds':>7} {'messages':>9} {'bytes':>15}",
        *(_line(row) for row in table(network, shape)),
        f"auto takes {choose(network, shape).algorithm}",
    ]
    return "\n".join(lines)


def figures(network: CostFigures) -> list[tuple[str, str]]:
    """Each figure with its unit.

    >>> figures(CostFigures())[2]
    ('bandwidth', '0.125 GB/s')
    """
    return [
        ("startup", f"{network.startup * 1e6:.3g} us per call"),
        ("latency", f"{network.latency * 1e6:.3g} us"),
        ("bandwidth", f"{network.bandwidth / 1e9:.3g} GB/s"),
        ("overhead", f"{network.overhead * 1e6:.3g} us per message"),
        ("seconds_per_entry", f"{network.seconds_per_entry * 1e9:.3g} ns"),
        ("seconds_per_value", f"{network.seconds_per_value * 1e9:.3g} ns"),
        ("seconds_per_index", f"{network.seconds_per_index * 1e9:.3g} ns, coded and decoded"),
        ("overlap", f"{network.overlap:.0%} of computing hides behind transfers"),
    ]


def _line(row: Prediction) -> str:
    cost = row.cost
    amounts = f"{cost.rounds:>7} {cost.messages:>9} {cost.bytes_sent:>15,}"
    return f"{row.algorithm:<24} {cost.seconds:>10.3g} {amounts}"
