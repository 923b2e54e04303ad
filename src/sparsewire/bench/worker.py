"""One rank of a benchmark, as a process: ``python -m sparsewire.bench.worker PLAN``.

It speaks to the session that started it in JSON lines on standard output, each behind an ASCII record
separator (RFC 7464), because libraries print there too:

    {"done": 3, "total": 20}           from rank 0, for the progress bar
    {"records": [...], "nnz_out": 9}   from every rank, once, at the end
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import sparsewire as sw
from sparsewire.bench import memory, peers
from sparsewire.bench.cases import Case, Values, exact_sum, make_input
from sparsewire.bench.contenders import Allreduce, Together
from sparsewire.bench.timing import Contender, Record, measure
from sparsewire.network import INTERFACE, interface_bytes

__all__ = ["EVENT", "Plan", "main"]

EVENT = b"\x1e"


@dataclass(frozen=True)
class Plan:
    """What all ranks do, as one command-line argument."""

    case: Case
    algorithms: tuple[str, ...]
    peers: tuple[str, ...] = ()
    peer_port: int = 0
    in_namespace: bool = False
    iterations: int | None = None
    budget_s: float = 20.0
    timeout_s: float = 60.0
    measure: str = "time"  # or "memory"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        fields: dict[str, Any] = json.loads(text)
        case, algorithms, peers = (fields.pop(name) for name in ("case", "algorithms", "peers"))
        return cls(Case(**case), tuple(algorithms), tuple(peers), **fields)


def main() -> None:
    plan = Plan.from_json(sys.argv[1])
    with sw.init(timeout=plan.timeout_s) as comm:
        if plan.measure == "memory":
            _say({"records": [memory.measure_allreduce(comm, plan.case, name) for name in plan.algorithms]})
        else:
            expected = exact_sum(plan.case)
            records = [asdict(record) for record in _time(plan, comm, expected)]
            _say({"records": records, "nnz_out": int(np.count_nonzero(expected))})


def _time(plan: Plan, comm: sw.Communicator, expected: Values) -> list[Record]:
    indices, values = make_input(plan.case, comm.rank)
    sparse = sw.SparseVector(plan.case.length, indices, values)
    dense = sparse.to_dense()
    with ExitStack() as stack:
        contenders: list[Contender] = [Allreduce(name, comm, sparse, dense) for name in plan.algorithms]
        if plan.peers:
            interface = INTERFACE if plan.in_namespace else peers.LOOPBACK
            master = (os.environ["MASTER_ADDR"], plan.peer_port)
            stack.enter_context(peers.gloo(comm.rank, comm.size, master, interface, plan.timeout_s))
            contenders += [peers.contender(name, plan.case.length, indices, values) for name in plan.peers]
        records = measure(
            contenders,
            Together(comm),
            expected,
            budget_s=plan.budget_s,
            iterations=plan.iterations,
            interface_bytes=interface_bytes if plan.in_namespace else None,
            tell=_tell if comm.rank == 0 else lambda done, total: None,
        )
        comm.barrier()  # nobody takes the peers' group down while somebody still uses it
    return records


def _tell(done: int, total: int) -> None:
    _say({"done": done, "total": total})


def _say(event: dict[str, Any]) -> None:
    sys.stdout.buffer.write(EVENT + json.dumps(event).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
