"""What every rank says, for what is too small and too mixed to be a vector."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from sparsewire.communicator import Communicator

__all__ = ["gather"]


def gather(comm: Communicator, said: Any) -> list[Any]:
    """What every rank says, in rank order; anything that JSON can carry.

    >>> import sparsewire as sw
    >>> gather(sw.init(), {"rows": 3})
    [{'rows': 3}]
    """
    text = json.dumps(said).encode()
    padded = text.ljust(-(-len(text) // 8) * 8)  # whole int64s
    everybody = comm.allgather(np.frombuffer(padded, np.int64))
    return [json.loads(np.asarray(one).tobytes()) for one in everybody]
