"""The queue's state, the types it holds, several processes, and torch.compile."""

import json
import math
import textwrap

import pytest
import torch
from together import ended, start

import eqco
from eqco.runtime.errors import InputError


def filled_queue(count=3, capacity=5):
    queue = eqco.KeyQueue(capacity, 2)
    queue.enqueue(torch.arange(2.0 * count).view(count, 2))
    return queue


def model_with_queue():
    model = torch.nn.Linear(2, 2)
    model.queue = filled_queue()
    return model


def test_a_model_with_a_queue_is_saved_by_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    model, loaded = model_with_queue(), torch.nn.Linear(2, 2)
    loaded.queue = eqco.KeyQueue(5, 2)
    safetensors.save_model(model, tmp_path / "model.safetensors")
    safetensors.load_model(loaded, tmp_path / "model.safetensors")
    assert (loaded.queue.cursor, loaded.queue.filled, loaded.queue.batches) == (3, 3, 1)
    assert all(type(n) is int for n in (loaded.queue.cursor, loaded.queue.filled))
    assert torch.equal(loaded.queue.negatives().keys, model.queue.negatives().keys)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("lacking", ["keys", "cursor", "filled", "batches"])
def test_a_state_with_keys_and_without_counts_is_refused(lacking, strict):
    model = model_with_queue()
    state = model.state_dict()
    del state[f"queue.{lacking}"]
    model.queue = eqco.KeyQueue(5, 2)
    with pytest.raises(InputError, match=f"state of the queue lacks {lacking}"):
        model.load_state_dict(state, strict=strict)
    assert model.queue.filled == 0
    assert not model.queue.keys.any()


def test_a_state_without_a_queue_leaves_it_as_it_was():
    model = model_with_queue()
    state = torch.nn.Linear(2, 2).state_dict()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) == {f"queue.{name}" for name in ("keys", "cursor", "filled", "batches")}
    assert not unexpected
    assert model.queue.filled == 3
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict(state)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"filled": 99}, "filled=99, which must be 0 to 5"),
        ({"cursor": -3}, "cursor=-3, which must be 0 to 4"),
        ({"cursor": 5}, "cursor=5, which must be 0 to 4"),
        ({"cursor": 2}, "cursor=2 and filled=3, which must be equal until the queue of 5 is full"),
        ({"batches": 0}, "batches=0 and filled=3"),
        ({"filled": [3, 3]}, r"filled=tensor\(\[3, 3\]\), which must be one whole number"),
        ({"cursor": math.nan}, "cursor=nan, which must be one whole number"),
        ({"keys": 1.0}, r"keys of shape \(\), which must be \(capacity, dim\)"),
    ],
)
def test_a_damaged_state_is_refused_and_nothing_changes(changes, message):
    state = filled_queue().state_dict()
    state |= {name: torch.tensor(value) for name, value in changes.items()}
    queue = eqco.KeyQueue(5, 2)
    with pytest.raises(InputError, match=f"{message}.*Load another checkpoint"):
        queue.load_state_dict(state)
    assert (queue.filled, queue.cursor, bool(queue.keys.any())) == (0, 0, False)


def test_a_full_queue_may_have_any_cursor():
    queue, loaded = filled_queue(5), eqco.KeyQueue(5, 2)
    queue.enqueue(torch.ones(2, 2))
    loaded.load_state_dict(queue.state_dict())
    assert (loaded.cursor, loaded.filled) == (2, 5)


def test_keys_beyond_a_half_precision_queue_are_refused():
    queue = eqco.KeyQueue(4, 2).half()
    with pytest.raises(InputError, match=r"size 100000, and the queue's torch.float16 holds up to"):
        queue.enqueue(torch.tensor([[1e5, 0.0]]))
    assert queue.filled == 0
    queue.enqueue(torch.tensor([[6e4, 0.0]]))
    assert torch.isfinite(queue.negatives().keys).all()


def test_float64_keys_are_held_exactly_or_refused():
    keys = torch.tensor([[1 / 3, 2 / 3]], dtype=torch.float64)
    with pytest.raises(InputError, match=r"Make the queue with dtype=torch.float64"):
        eqco.KeyQueue(4, 2).enqueue(keys)
    queue = eqco.KeyQueue(4, 2, dtype=torch.float64)
    queue.enqueue(keys)
    assert torch.equal(queue.negatives().keys, keys)
    with pytest.raises(InputError, match="keys are floating-point"):
        eqco.KeyQueue(4, 2, dtype=torch.int64)


@pytest.mark.parametrize("sizes", [(2, 3, 4, 2), (9, 1, 12), (5, 5)])
def test_ids_stay_beside_their_keys(sizes):
    """Around the end, where a large batch leaves a choice, and over saving and loading."""
    queue, start = eqco.KeyQueue(5, 2, with_ids=True), 0
    for size in sizes:
        ids = torch.arange(start, start + size)
        queue.enqueue(ids[:, None].repeat(1, 2).float(), ids=ids)
        start += size
        other = eqco.KeyQueue(5, 2, with_ids=True)
        other.load_state_dict(queue.state_dict())
        queue, held = other, other.negatives()
        assert torch.equal(held.ids, held.keys[:, 0].long())
    plain = eqco.KeyQueue(5, 2)
    for each in torch.arange(start).split(list(sizes)):
        plain.enqueue(each[:, None].repeat(1, 2).float())
    assert torch.equal(plain.keys, queue.keys), "ids change nothing of the keys"


@pytest.mark.parametrize("alpha", [None, 64])
def test_a_query_meets_no_earlier_key_of_its_own_image(alpha):
    """In the queue, beside the batch, and in a draw of both."""
    torch.manual_seed(0)
    queries, positives, older = torch.randn(3, 4, 8).unbind()
    ids, older_ids = torch.tensor([3, 4, 5, 3]), torch.tensor([5, 6, 3, 7])
    queue = eqco.KeyQueue(6, 8, with_ids=True)
    queue.enqueue(older, ids=older_ids)
    loss_fn = eqco.EqCoLoss(alpha=alpha, reduction="none")
    found = loss_fn(queries, positives, queue.negatives(), ids=ids)
    both = eqco.combine_negatives(eqco.in_batch_negatives(positives, ids=ids), queue.negatives())
    beside = loss_fn(queries, positives, both, ids=ids)
    drawn = eqco.sampled_negatives(both, 7, seed=0, step=0, shared=True)
    by_draw = loss_fn(queries, positives, drawn, ids=ids)
    for row in range(4):
        own = slice(row, row + 1)
        left = older[older_ids != ids[row]]
        all_left = torch.cat([positives[ids != ids[row]], left])
        for each, keys in ((found, left), (beside, all_left), (by_draw, all_left)):
            torch.testing.assert_close(each[own], loss_fn(queries[own], positives[own], keys))


def test_ids_that_cannot_be_are_refused():
    keys, ids = torch.ones(3, 2), torch.arange(3)
    queue = eqco.KeyQueue(5, 2, with_ids=True)
    with pytest.raises(InputError, match=r"without ids to a queue with with_ids=True"):
        queue.enqueue(keys)
    with pytest.raises(InputError, match=r"keeps none. Make it with with_ids=True"):
        eqco.KeyQueue(5, 2).enqueue(keys, ids=ids)
    with pytest.raises(InputError, match=r"ids of shape \(2,\).*\(3,\) of whole.*each key"):
        queue.enqueue(keys, ids=ids[:2])
    with pytest.raises(InputError, match=r"ids is of type torch.float32"):
        eqco.Negatives(keys, ids=ids.float())
    with pytest.raises(InputError, match=r"the first source has no ids"):
        eqco.combine_negatives(eqco.Negatives(keys), eqco.Negatives(keys, ids=ids))
    assert queue.filled == 0
    queue.enqueue(keys, ids=ids)
    with pytest.raises(InputError, match=r"negatives carry ids already"):
        eqco.contrastive_loss(keys, keys, queue.negatives(), ids=ids, key_ids=ids)
    with pytest.raises(InputError, match=r"state of the queue lacks ids"):
        eqco.KeyQueue(5, 2, with_ids=True).load_state_dict(eqco.KeyQueue(5, 2).state_dict())
    damaged = {**queue.state_dict(), "ids": torch.zeros(4, dtype=torch.int64)}
    with pytest.raises(InputError, match=r"damaged: it has ids of shape \(4,\)"):
        eqco.KeyQueue(5, 2, with_ids=True).load_state_dict(damaged)


WORKER = """
    import json, torch, eqco
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.queue = torch.nn.Linear(2, 2), eqco.KeyQueue(7, 2)
        def forward(self, images):
            return self.layer(images)

    model = Model()
    wrapped = DistributedDataParallel(model)
    try:
        model.queue.enqueue(torch.ones(1, 2))
        refused = ""
    except eqco.InputError as error:
        refused = str(error)
    for step in range(3):
        wrapped(torch.ones(2, 2)).sum().backward()
        # the last batch is uneven
        count = 2 if step < 2 else 1 + rank
        model.queue.enqueue(torch.full((count, 2), 10.0 * step + rank), gather=True)
    wrapped(torch.ones(2, 2))
    held = model.queue.negatives().keys[:, 0].tolist()
    model.queue.enqueue(torch.full((1, 2), 99.0), gather=False)
    print(json.dumps([refused, held, model.queue.cursor]))
    dist.destroy_process_group()
"""


@pytest.mark.end_to_end
def test_queues_inside_ddp_hold_the_keys_of_all_processes(warm):
    said = ended(start(warm, ["-c", textwrap.dedent(WORKER)], 2))
    assert [code for code, *_ in said] == [0, 0], said
    for _, output, _ in said:
        refused, held, cursor = json.loads(output.strip().splitlines()[-1])
        assert "gather=None with 2 processes" in refused
        assert "gather=True" in refused
        # eleven keys of three steps, in the order of ranks, through seven places
        assert held == [11, 20, 21, 21, 10, 10, 11]
        assert cursor == 5


class Counting:
    """A backend that counts the graphs it is given."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return graph.forward


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler's own look at keys
def test_a_filling_queue_in_a_compiled_step_compiles_nothing_anew():
    torch._dynamo.reset()
    counting, queue, encoder = Counting(), eqco.KeyQueue(40, 2), torch.nn.Linear(2, 2)

    def step(images):
        keys = encoder(images)
        queue.enqueue(keys)
        return keys.sum()

    compiled, graphs = torch.compile(step, backend=counting, dynamic=True), []
    for size in (3, 3, 4, 5, 6, 2, 3, 4, 5, 6, 7, 8):
        compiled(torch.ones(size, 2))
        graphs.append(counting.graphs)
    assert graphs[-1] == graphs[0] <= 2
    assert (queue.filled, queue.batches) == (40, 12)


def test_a_compiled_encoder_beside_loss_and_queue_is_one_graph():
    """The documented way while a queue fills, with any batch size."""
    torch._dynamo.reset()
    counting, queue = Counting(), eqco.KeyQueue(40, 2)
    encoder = torch.compile(torch.nn.Linear(2, 2), backend=counting, dynamic=True)
    for size in (3, 4, 5, 6, 7, 8, 9, 10, 11, 12):
        queries, keys = encoder(torch.randn(2 * size, 2)).chunk(2)
        negatives = eqco.in_batch_negatives(keys)
        if queue.filled:
            negatives = eqco.combine_negatives(negatives, queue.negatives())
        eqco.contrastive_loss(queries, keys, negatives, alpha=64).backward()
        queue.enqueue(keys)
    assert counting.graphs == 1


@pytest.mark.parametrize("count", [5, 40])
def test_a_draw_outside_leaves_the_compiled_loss_one_graph(count):
    """Few negatives are indices, many a mask."""
    torch._dynamo.reset()
    queries, keys = torch.randn(2, 50, 4)
    pool = eqco.in_batch_negatives(keys)

    @torch.compile(fullgraph=True, backend="eager")
    def loss(drawn):
        return eqco.contrastive_loss(queries, pool.keys, drawn, alpha=64)

    for step in range(3):
        drawn = eqco.sampled_negatives(pool, count, seed=0, step=step)
        torch.testing.assert_close(
            loss(drawn), eqco.contrastive_loss(queries, pool.keys, drawn, alpha=64)
        )


def test_a_draw_inside_a_compiled_step_is_that_outside():
    torch._dynamo.reset()
    pool, counting = eqco.in_batch_negatives(torch.randn(20, 4)), Counting()

    def drawn(keys, step):
        scaled = keys * 2
        return scaled.sum(), eqco.sampled_negatives(pool, 5, seed=0, step=step).indices

    compiled = torch.compile(drawn, backend=counting)
    for step in range(3):
        assert torch.equal(compiled(pool.keys, step)[1], drawn(pool.keys, step)[1])
