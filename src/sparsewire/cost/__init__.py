"""What a collective costs: figures of the machine, the shape of a problem, and what rounds take."""

from sparsewire.cost.figures import Cost, CostFigures, RoundCost
from sparsewire.cost.shape import BLOCK, HEADER_BYTES, Shape

__all__ = ["BLOCK", "HEADER_BYTES", "Cost", "CostFigures", "RoundCost", "Shape"]
