"""all_reduce(): as gloo does it where gloo can, and as dense arithmetic says where it cannot."""

from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import sparsewire as sw
from sparsewire.torch import collectives
from sparsewire.torch.collectives import all_reduce

pytestmark = pytest.mark.torch

SIZES = [1, 2, 3, 4]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64]
FLOATS = [dtype for dtype in DTYPES if dtype.is_floating_point]
OPS = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
ORACLES = {
    "sum": lambda stack: stack.sum(axis=0),
    "avg": lambda stack: stack.mean(axis=0),
    "max": lambda stack: stack.max(axis=0),
    "min": lambda stack: stack.min(axis=0),
}


def reduce_all(group, tensors, dtypes, op="sum"):
    """This rank's tensors of these dtypes, after all_reduce."""
    mine = [tensor for dtype in dtypes for tensor in tensors(group.rank(), group.size(), dtype)]
    for tensor in mine:
        assert all_reduce(tensor, op=OPS[op], group=group) is None
    return mine


def reduce_all_by_gloo(group, tensors, dtypes):
    mine = [tensor for dtype in dtypes for tensor in tensors(group.rank(), group.size(), dtype)]
    for tensor in mine:
        dist.all_reduce(tensor, group=group)
    return mine


def assert_same(ours, theirs):
    """Layout, shape, dtype and content; of a sparse tensor, which entries are stored too."""
    assert (ours.layout, ours.shape, ours.dtype) == (theirs.layout, theirs.shape, theirs.dtype)
    if ours.layout == torch.sparse_coo:
        assert ours.is_coalesced()
        assert (ours.sparse_dim(), ours.dense_dim()) == (theirs.sparse_dim(), theirs.dense_dim())
        assert torch.equal(ours.indices(), theirs.indices())
        assert torch.equal(ours.values(), theirs.values())
    else:
        assert torch.equal(ours, theirs)


def assert_as_gloo(ranks, size, tensors, dtypes):
    ours = ranks.run(reduce_all, tensors, dtypes, size=size)
    gloos = ranks.run(reduce_all_by_gloo, tensors, dtypes, size=size)
    for mine, theirs in zip(ours, gloos, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert_same(one, other)


def expected_of(op, size, tensors, dtypes):
    """What dense arithmetic in float64 says, in the dtypes of the tensors."""
    given = [[t for dtype in dtypes for t in tensors(rank, size, dtype)] for rank in range(size)]
    for alike in zip(*given, strict=True):
        stack = np.stack([tensor.double().to_dense().numpy() for tensor in alike])
        yield torch.from_numpy(np.asarray(ORACLES[op](stack))).to(alike[0].dtype)


# -- dense ---------------------------------------------------------------------------------------


def dense_tensors(rank, size, dtype):
    """Edge shapes; sums are exact."""
    numbers = (torch.arange(24) % 5 - 2) * 2**rank
    numbers[torch.arange(24) % size != rank] = 0
    return [
        numbers.to(dtype),
        numbers.to(dtype).reshape(2, 3, 4),
        torch.full((7,), 2**rank, dtype=dtype),
        torch.full((), 2**rank, dtype=dtype),
        torch.zeros((0,), dtype=dtype),
        torch.zeros((3, 0), dtype=dtype),
    ]


@pytest.mark.parametrize("size", SIZES)
def test_dense_sum_is_that_of_gloo(ranks, size):
    assert_as_gloo(ranks, size, dense_tensors, DTYPES)


def signed_tensors(rank, size, dtype):
    """Each sign in each place on some rank, and places where nobody has anything but zero."""
    numbers = torch.roll(torch.tensor([1, -1, 2, -2, 0, 0, 8]), rank)
    return [(numbers * torch.tensor([1, 1, 1, 1, 1, 0, 0])).to(dtype)]


@pytest.mark.parametrize("op", ["avg", "max", "min"])
@pytest.mark.parametrize("size", SIZES)
def test_dense_operation_is_that_of_arithmetic(ranks, size, op):
    dtypes = FLOATS if op == "avg" else DTYPES
    expected = [*expected_of(op, size, signed_tensors, dtypes)]
    for mine in ranks.run(reduce_all, signed_tensors, dtypes, op, size=size):
        for ours, oracles in zip(mine, expected, strict=True):
            assert_same(ours, oracles)


def reduce_parts(group):
    """Views of one tensor: a transposed matrix, every third column, and a parameter."""
    whole = torch.full((6, 6), 2.0 ** group.rank())
    all_reduce(whole.t(), group=group)
    columns = torch.full((4, 6), 2.0 ** group.rank())
    all_reduce(columns[:, ::3], group=group)
    parameter = torch.nn.Parameter(torch.full((5,), 2.0 ** group.rank()))
    all_reduce(parameter, group=group)
    return whole, columns, parameter.detach()


def test_views_and_parameters_are_reduced_in_place(ranks):
    for rank, (whole, columns, parameter) in enumerate(ranks.run(reduce_parts, size=3)):
        assert (whole == 7).all()
        assert (columns[:, ::3] == 7).all()
        assert (columns[:, [1, 2, 4, 5]] == 2**rank).all()
        assert (parameter == 7).all()


# -- sparse --------------------------------------------------------------------------------------


def coo(places, values, shape):
    places = torch.as_tensor(places, dtype=torch.int64)
    return torch.sparse_coo_tensor(places, values, shape, check_invariants=True)


def sparse_tensors(rank, size, dtype):
    """Places that all ranks have, that one has, that come twice, and none at all; whole rows too."""
    values = torch.tensor([1, 2, 4]).to(dtype) * 2**rank
    rows = values[:, None] + torch.zeros(2, dtype=dtype)
    nothing = torch.zeros(0, dtype=dtype)
    return [
        coo([[7, 1 + rank, 7]], values, (9,)),
        coo([[0, 2, 1], [3, rank, 1]], values, (3, 5)),
        coo([[1, 1, 0], [0, 0, 1], [rank, rank, 2]], values, (2, 2, 4)),
        coo([[rank, 6, rank]], rows, (8, 2)),
        coo([[rank, 2, 0], [1, 0, 1]], rows[:, :, None].expand(3, 2, 3), (4, 2, 2, 3)),
        coo([[5]], values[:1], (6,)) if rank == 0 else coo([[]], nothing, (6,)),
        coo([[]], nothing, (4,)),
        coo([[]], nothing.reshape(0, 1).expand(0, 3), (4, 3)),
    ]


@pytest.mark.parametrize("size", SIZES)
def test_sparse_sum_is_that_of_gloo(ranks, size):
    dtypes = [dtype for dtype in DTYPES if dtype != torch.float16]  # which gloo cannot add
    assert_as_gloo(ranks, size, sparse_tensors, dtypes)


def signed_sparse_tensors(rank, size, dtype):
    return [tensor * (-1) ** rank for tensor in sparse_tensors(rank, size, dtype)]


@pytest.mark.parametrize("op", OPS)
def test_sparse_operation_takes_what_is_not_stored_for_zero(ranks, op):
    expected = [*expected_of(op, 4, signed_sparse_tensors, FLOATS)]
    for mine in ranks.run(reduce_all, signed_sparse_tensors, FLOATS, op):
        for ours, oracles in zip(mine, expected, strict=True):
            assert ours.is_coalesced()
            assert_same(ours.to_dense(), oracles)


def tensors_without_sparse_dimensions(rank, size, dtype):
    nowhere = torch.zeros(0, 1, dtype=torch.int64)
    return [coo(nowhere, torch.tensor([[2**rank, 0]]).to(dtype), (2,))]


def test_tensor_whose_dimensions_are_all_dense_is_reduced(ranks):
    for [ours] in ranks.run(reduce_all, tensors_without_sparse_dimensions, [torch.float32], size=2):
        assert (ours.sparse_dim(), ours.dense_dim()) == (0, 1)
        assert ours.to_dense().tolist() == [3, 0]


def reduce_sparse_beside_dense(group):
    tensor = torch.tensor([0.0, 1.0, 0.0])
    if group.rank() == 0:
        tensor = tensor.to_sparse()
    all_reduce(tensor, group=group)
    return tensor


def test_each_rank_gets_its_own_layout_back(ranks):
    totals = ranks.run(reduce_sparse_beside_dense, size=3)
    assert [total.layout for total in totals] == [torch.sparse_coo, torch.strided, torch.strided]
    assert [total.to_dense().tolist() for total in totals] == [[0, 3, 0]] * 3


def train_embedding(group, reduce):
    torch.manual_seed(group.rank())
    embedding = torch.nn.Embedding(50, 4, sparse=True)
    embedding(torch.randint(0, 50, (20,))).sum().backward()
    reduce(embedding.weight.grad, group=group)
    return embedding.weight.grad


def test_gradient_of_an_embedding_is_summed_as_by_gloo(ranks):
    ours, gloos = ranks.run(train_embedding, all_reduce), ranks.run(train_embedding, dist.all_reduce)
    for mine, theirs in zip(ours, gloos, strict=True):
        assert_same(mine, theirs)


# -- as the hook of a sharded model --------------------------------------------------------------


def train_sharded(group, with_hook):
    """Gradients of a model in two replicas of two shards, with and without FSDP's own all_reduce."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    fully_shard(model, mesh=mesh["shards"] if with_hook else mesh)
    if with_hook:
        replicas = mesh.get_group("replicas")
        model.set_all_reduce_hook(lambda shard: all_reduce(shard, dist.ReduceOp.AVG, replicas))
    model(torch.full((1, 8), 2.0 ** group.rank())).sum().backward()
    return [parameter.grad.full_tensor() for parameter in model.parameters()]


def test_hook_of_fsdp2_averages_over_replicas_as_fsdp2_does(ranks):
    for mine, theirs in zip(ranks.run(train_sharded, True), ranks.run(train_sharded, False), strict=True):
        assert mine[0].unique().tolist() == [15 / 4]
        for one, other in zip(mine, theirs, strict=True):
            assert_same(one, other)


# -- in the background ---------------------------------------------------------------------------


def reduce_many_in_background(group):
    """Several at once, dense and sparse, waited for in another order."""
    tensors = [torch.full((100 + i,), 2.0 ** group.rank()) for i in range(6)]
    tensors += [tensor.to_sparse() for tensor in tensors]
    works = [all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    waited = [work.wait() for work in reversed(works)]
    done = [work.is_completed() for work in works]
    futures = [work.get_future().wait()[0] is tensor for work, tensor in zip(works, tensors, strict=True)]
    return waited, done, futures, tensors


def test_work_can_be_waited_for_as_that_of_torch(ranks):
    for waited, done, futures, tensors in ranks.run(reduce_many_in_background):
        assert waited == done == futures == [True] * 12
        for place, tensor in enumerate(tensors):
            assert tensor.to_dense().tolist() == [15] * (100 + place % 6)


def continue_when_done(group):
    tensor = torch.full((3,), 2.0 ** group.rank())
    future = all_reduce(tensor, group=group, async_op=True).get_future()
    return future.then(lambda done: done.value()[0] / group.size()).wait()


def test_future_of_work_has_the_reduced_tensor(ranks):
    assert [mean.tolist() for mean in ranks.run(continue_when_done, size=2)] == [[1.5] * 3] * 2


def wait_for_the_late(group):
    tensor = torch.ones(3)
    if group.rank() == 0:
        work = all_reduce(tensor, group=group, async_op=True)
        try:
            work.wait(timedelta(seconds=0.1))
        except TimeoutError as error:
            said = str(error), work.is_completed(), tensor.tolist()
        dist.barrier(group)
        return (*said, work.wait(timedelta(seconds=30)), tensor.tolist())
    dist.barrier(group)
    all_reduce(tensor, group=group)
    return None


def test_wait_that_times_out_can_be_repeated(ranks):
    [first, _] = ranks.run(wait_for_the_late, size=2)
    assert first == ("not ended after 0.1 s; it goes on", False, [1, 1, 1], True, [2, 2, 2])


# -- errors --------------------------------------------------------------------------------------


def reduce_then_again(group, tensors, async_op=False):
    """The error of the first call, and what the next one brings."""
    try:
        work = all_reduce(tensors[group.rank()], group=group, async_op=async_op)
        if async_op:
            work.wait()
    except sw.SparsewireError as error:
        tensor = torch.full((2,), 2.0 ** group.rank())
        all_reduce(tensor, group=group)
        return type(error), str(error), tensor.tolist()


@pytest.mark.parametrize("async_op", [False, True])
def test_other_length_on_one_rank_is_an_error_on_all_and_harms_no_later_call(ranks, async_op):
    tensors = [torch.ones(8), torch.ones(9), torch.ones(8)]
    outcomes = ranks.run(reduce_then_again, tensors, async_op, size=3)
    for kind, message, later in outcomes:
        assert kind is sw.CallMismatchError
        assert "rank 1 called allreduce(length=9" in message
        assert later == [7, 7]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.ones(4, dtype=torch.bool), "rank 1: values have dtype bool; supported are float32"),
        (np.ones(4), "rank 1: ndarray is no tensor"),
    ],
    ids=["dtype", "kind"],
)
def test_what_one_rank_cannot_reduce_is_an_error_on_all(ranks, bad, message):
    for kind, said, later in ranks.run(reduce_then_again, [torch.ones(4), bad, torch.ones(4)], size=3):
        assert kind is sw.InputError
        assert said.startswith(message)
        assert later == [7, 7]


def reduce_by_product(group):
    op = dist.ReduceOp.PRODUCT if group.rank() == 1 else dist.ReduceOp.SUM
    try:
        all_reduce(torch.ones(3), op=op, group=group)
    except sw.InputError as error:
        return str(error)


def test_unknown_operation_of_one_rank_is_an_error_on_all_with_what_is_known(ranks):
    for said in ranks.run(reduce_by_product, size=3):
        assert said.startswith("rank 1: op is")
        assert "SUM, AVG, MAX and MIN" in said


def mean_of_integers(group):
    try:
        all_reduce(torch.ones(3, dtype=torch.int64), op=dist.ReduceOp.AVG, group=group)
    except sw.InputError as error:
        return str(error)


def test_integers_have_no_mean(ranks):
    assert all("float dtype" in said for said in ranks.run(mean_of_integers, size=2))


# -- the group -----------------------------------------------------------------------------------


def reduce_in_new_groups(group):
    """How many communicators there are, in a life of several groups."""
    counts = [len(collectives._communicators)]
    for _ in range(3):
        made = dist.new_group([*range(group.size())])
        for _ in range(2):
            tensor = torch.ones(2)
            all_reduce(tensor, group=made)
            all_reduce(tensor, group=made, async_op=True).wait()
        counts.append(len(collectives._communicators) - counts[0])
        comm = collectives._communicators[made]
        dist.destroy_process_group(made)
        del made
        counts.append(comm._lane._closed)
    return counts[1:]


def test_communicator_lives_as_long_as_its_group(ranks):
    assert ranks.run(reduce_in_new_groups) == [[1, True] * 3] * 4
