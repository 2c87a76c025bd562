"""The lines for other libraries give the loss of this one: every one of them is run."""

import math

import pytest
import torch
import torch.nn.functional as F
from drawing import unit_vectors
from torch.testing import assert_close

import eqco
from eqco.planning.plan import plan
from eqco.planning.snippets import equivalent_snippets

N, D, QUEUE, TAU = 8, 6, 24, 0.2


def lines(library, method, *, alpha, num_negatives, offered):
    found = equivalent_snippets(
        symmetric=method == "simclr",
        num_queries=N,
        num_negatives=num_negatives,
        offered=offered,
        alpha=alpha,
        temperature=TAU,
        dim=D,
    )
    (one,) = [each for each in found if each.library == library]
    return one


def run(code, **names):
    """What is defined after the code has run; one namespace, as in a user's module."""
    scope = {"math": math, "torch": torch, "eqco": eqco, **names}
    exec(code, scope)
    return scope


def peer(name):
    pytest.importorskip(name, reason=f"{name} is not installed (pip install eqco[dev])")


views = unit_vectors(0, N, D).float(), unit_vectors(1, N, D).float()
queue = unit_vectors(2, QUEUE, D).float()


@pytest.mark.parametrize("alpha", [4.0, 65536.0, math.inf])
def test_moco(alpha):
    code = lines("MoCo's code", "moco", alpha=alpha, num_negatives=QUEUE, offered=None).code
    positive = (views[0] * views[1]).sum(dim=1, keepdim=True)
    logits = torch.cat([positive, views[0] @ queue.T], dim=1) / TAU
    scope = run(code, logits=logits)
    labels = torch.zeros(N, dtype=torch.long)
    theirs = scope["loss"] if alpha == math.inf else F.cross_entropy(logits, labels)
    assert_close(theirs, eqco.contrastive_loss(*views, queue, temperature=TAU, alpha=alpha))


def test_mocos_code_wants_a_multiple_of_n():
    remark = lines("MoCo's code", "moco", alpha=64.0, num_negatives=20, offered=None)
    assert "a multiple of N: 16, not 20" in remark.remark
    assert remark.code == "logits[:, 1:] += math.log(64 / 16)"
    small = lines("MoCo's code", "moco", alpha=64.0, num_negatives=2, offered=None)
    assert "a multiple of N: 8, not 2" in small.remark


@pytest.mark.parametrize("alpha", [4.0, 65536.0, math.inf])
def test_lightly_simclr(alpha):
    peer("lightly")
    code = lines("lightly", "simclr", alpha=alpha, num_negatives=5, offered=2 * N - 2).code
    loss_fn = run(code)["loss_fn"]
    ours = eqco.NTXentLoss(temperature=TAU, alpha=alpha)(*views)
    assert_close(loss_fn(*views), ours)


@pytest.mark.parametrize("alpha", [4096.0, math.inf])
def test_lightly_moco(alpha):
    peer("lightly")
    code = lines("lightly", "moco", alpha=alpha, num_negatives=QUEUE, offered=None).code
    loss_fn = run(code)["loss_fn"]
    loss_fn.memory_bank.bank = queue.clone()
    ours = eqco.contrastive_loss(*views, queue, temperature=TAU, alpha=alpha)
    assert_close(loss_fn(*views), ours)


@pytest.mark.parametrize("alpha", [4.0, 65536.0, math.inf])
def test_pytorch_metric_learning_simclr(alpha):
    peer("pytorch_metric_learning")
    given = {"alpha": alpha, "num_negatives": 2 * N - 2, "offered": 2 * N - 2}
    code = lines("pytorch-metric-learning", "simclr", **given).code
    loss_fn = run(code)["loss_fn"]
    assert_close(loss_fn(*views), eqco.NTXentLoss(temperature=TAU, alpha=alpha)(*views))


@pytest.mark.parametrize("alpha", [4.0, 65536.0, math.inf])
def test_pytorch_metric_learning_simo(alpha):
    peer("pytorch_metric_learning")
    given = {"alpha": alpha, "num_negatives": 3, "offered": N - 1}
    code = lines("pytorch-metric-learning", "simo", **given).code
    loss_fn = run(code)["loss_fn"]
    assert_close(loss_fn(*views), eqco.contrastive_loss(*views, temperature=TAU, alpha=alpha))


def test_pytorch_metric_learning_moco():
    peer("pytorch_metric_learning")
    code = lines(
        "pytorch-metric-learning", "moco", alpha=512.0, num_negatives=QUEUE, offered=None
    ).code
    loss_fn = run(code)["loss_fn"]
    loss_fn.embedding_memory = torch.cat([queue, queue[:1]])  # K + 1 places, all filled
    loss_fn.label_memory = torch.arange(QUEUE + 1) + 1000
    loss_fn.has_been_filled = True
    enqueue = torch.arange(2 * N) >= N
    theirs = loss_fn(torch.cat(views), torch.arange(N).repeat(2), enqueue_mask=enqueue)
    # the batch's keys have taken the first places of the memory
    memory = torch.cat([views[1], queue[N:], queue[:1]])
    negatives = eqco.Negatives(memory, excluded=torch.arange(N)[:, None])
    assert negatives.num_negatives == QUEUE
    assert_close(theirs, eqco.contrastive_loss(*views, negatives, temperature=TAU, alpha=512))


@pytest.mark.parametrize("alpha", [4.0, 0.5, math.inf])
@pytest.mark.parametrize(
    ("method", "num_negatives", "offered"),
    [("moco", QUEUE, None), ("simo", N - 1, N - 1), ("simo", 3, N - 1), ("simclr", 5, 2 * N - 2)],
)
def test_this_package(method, num_negatives, offered, alpha):
    found = lines("eqco", method, alpha=alpha, num_negatives=num_negatives, offered=offered)
    queries, keys = views
    given = {"queries": queries, "keys": keys, "first": queries, "second": keys, "step": 0}
    scope = run(found.code, **given, first_views=queue, encoder=torch.nn.Linear(D, D))
    assert torch.isfinite(scope["loss"])
    assert (scope["loss_fn"].temperature, scope["loss_fn"].alpha) == (TAU, alpha)
    if "drawn" in scope:
        assert scope["drawn"].num_negatives == num_negatives


def test_what_a_library_cannot_do_is_said_and_no_code_is_given():
    found = lines("lightly", "simo", alpha=64.0, num_negatives=5, offered=7)
    assert "not SiMo" in found.remark
    assert found.code == ""


@pytest.mark.parametrize("alpha", [4.0, math.inf])
def test_a_memory_bank(alpha):
    found = equivalent_snippets(
        symmetric=False,
        num_queries=N,
        num_negatives=5,
        offered=None,
        alpha=alpha,
        temperature=TAU,
        dim=D,
        bank_rows=30,
    )
    index = torch.arange(N) + 3
    scope = run(found[0].code, queries=views[0], index=index, step=7)
    bank = eqco.MemoryBank(30, dim=D)
    drawn = bank.negatives(index, 5, seed=0, step=7, shared=True)
    ours = eqco.contrastive_loss(
        views[0], bank.positives(index), drawn, temperature=TAU, alpha=alpha
    )
    assert_close(scope["loss"], ours)
    bank.update(views[0], index)
    assert torch.equal(scope["bank"].rows, bank.rows)
    assert [each.code for each in found[2:]] == ["", ""]


@pytest.mark.parametrize("alpha", [4.0, math.inf])
def test_two_memory_banks_are_crossed(alpha):
    """Each half is scored against the rows of the other, and moves its own."""
    found = equivalent_snippets(
        symmetric=False,
        num_queries=N,
        num_negatives=5,
        offered=None,
        alpha=alpha,
        temperature=TAU,
        dim=D,
        bank_rows=30,
        num_banks=2,
    )
    index = torch.arange(N) + 3
    scope = run(found[0].code, first=views[0], second=views[1], index=index, step=7)
    bank = eqco.MemoryBank(30, dim=D, num_views=2)
    ours = 0
    for own, other in ((0, 1), (1, 0)):
        drawn = bank.negatives(index, 5, seed=0, step=14 + own, view=other, shared=True)
        positives = bank.positives(index, view=other)
        ours += eqco.contrastive_loss(views[own], positives, drawn, temperature=TAU, alpha=alpha)
    assert_close(scope["loss"], ours)
    bank.update(torch.cat(views, dim=1), index)
    assert torch.equal(scope["bank"].rows, bank.rows)


def eqco_lines(framework):
    (found,) = [each.code for each in plan(framework).snippets if each.library == "eqco"]
    return found


@pytest.mark.parametrize(
    ("framework", "part"),
    [("pirl", "# the image's part"), ("infomin", "# the view's part"), ("mocov3", "# one of two")],
)
def test_a_part_of_a_methods_loss_says_which_part_it_is(framework, part):
    assert eqco_lines(framework).startswith(part)
    assert max(map(len, eqco_lines(framework).splitlines())) <= 100


@pytest.mark.parametrize("framework", ["simo", "mocov2", "simclr", "cmc"])
def test_a_whole_loss_says_nothing(framework):
    assert not eqco_lines(framework).startswith("#")
