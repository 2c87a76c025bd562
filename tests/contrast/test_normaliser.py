"""RunningNormaliser: EqCo without memory, SogCLR as α → ∞, and nearer to the full gradient."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import eqco
from eqco.runtime.errors import InputError

DOUBLE = torch.float64


def drawn(seed, *shape):
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def with_gradient(loss_fn, *leaves, **given):
    leaves = [each.detach().clone().requires_grad_() for each in leaves]
    loss = loss_fn(*leaves, **given)
    return loss.detach(), torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("alpha", [None, 64, math.inf])
def test_without_memory_it_is_eqco(alpha):
    """decay=0, no index, and the first visit alike."""
    given = drawn(0, 6, 4), drawn(1, 6, 4), drawn(2, 9, 4)
    expected = with_gradient(eqco.EqCoLoss(alpha=alpha, temperature=0.3), *given)
    for decay, index in ((0.0, torch.arange(6)), (0.9, None), (0.9, torch.arange(6))):
        ours = eqco.RunningNormaliser(10, alpha=alpha, temperature=0.3, decay=decay)
        assert_close(with_gradient(ours, *given, index=index), expected, rtol=1e-9, atol=1e-10)
    # and with no memory also at the second visit
    forgetful = eqco.RunningNormaliser(10, alpha=alpha, temperature=0.3, decay=0.0)
    forgetful(drawn(3, 6, 4), drawn(4, 6, 4), index=torch.arange(6))
    assert_close(with_gradient(forgetful, *given, index=torch.arange(6)), expected)


def weights_written_out(query, positive, keys, u, tau, alpha):
    """dL/dq of one query at unit vectors, from the weights as the module's docstring has them."""
    s0 = math.exp(query @ positive / tau)
    gradient = torch.zeros_like(query)
    for key in keys:
        s = math.exp(query @ key / tau)
        share = s / u / len(keys) if alpha == math.inf else alpha / len(keys) * s / (s0 + alpha * u)
        gradient += share * key / tau
    pull = 1.0 if alpha == math.inf else alpha * u / (s0 + alpha * u)
    return gradient - pull * positive / tau


@pytest.mark.parametrize("alpha", [5.0, math.inf])
def test_three_visits_are_the_literal_update_and_its_weights(alpha):
    """α = ∞ is SogCLR's: u ← β u + (1−β) g, the gradient −∇s₀/τ + ∇g/u."""
    tau, decay = 0.4, 0.8
    loss_fn = eqco.RunningNormaliser(7, alpha=alpha, temperature=tau, decay=decay).double()
    remembered = {}
    index = torch.tensor([5, 0, 3])
    for visit in range(3):
        queries, positives, keys = (
            F.normalize(drawn(10 * visit + i, n, 4), dim=1) for i, n in enumerate((3, 3, 6))
        )
        leaf = queries.clone().requires_grad_()
        (3 * loss_fn(leaf, positives, keys, index=index)).backward()
        for row, place in enumerate(index.tolist()):
            mean = sum(math.exp(queries[row] @ key / tau) for key in keys) / len(keys)
            old = remembered.get(place)
            remembered[place] = mean if old is None else decay * old + (1 - decay) * mean
            expected = weights_written_out(
                queries[row], positives[row], keys, remembered[place], tau, alpha
            )
            # of the vector before it is scaled to length one: what is along it is lost
            expected = expected - queries[row] * (queries[row] @ expected)
            assert_close(leaf.grad[row], expected, rtol=1e-9, atol=1e-9)
            assert math.isclose(loss_fn.log_mean[place].exp().item(), remembered[place])


def test_keys_of_a_queue_enter_u_without_gradient():
    tau = 0.4
    queries, positives, keys = (F.normalize(drawn(i, n, 4), dim=1) for i, n in enumerate((2, 2, 5)))
    memory = F.normalize(drawn(9, 30, 4), dim=1).requires_grad_()
    leaf = queries.clone().requires_grad_()
    loss_fn = eqco.RunningNormaliser(1, alpha=5.0, temperature=tau)
    (2 * loss_fn(leaf, positives, keys, memory=eqco.Negatives(memory))).backward()
    assert memory.grad is None
    for row in range(2):
        everyone = torch.cat([keys, memory.detach()])
        u = sum(math.exp(queries[row] @ key / tau) for key in everyone) / 35
        expected = weights_written_out(queries[row], positives[row], keys, u, tau, 5.0)
        expected = expected - queries[row] * (queries[row] @ expected)
        assert_close(leaf.grad[row], expected, rtol=1e-9, atol=1e-9)


def test_what_a_memory_excludes_does_not_enter_u():
    given, pool = (drawn(0, 4, 6), drawn(1, 4, 6)), drawn(2, 9, 6)
    memory = eqco.Negatives(pool, excluded=torch.full((4, 1), 8))
    mine, theirs = (
        eqco.RunningNormaliser(4, alpha=64)(*given, memory=each) for each in (memory, pool[:8])
    )
    assert_close(mine, theirs, rtol=1e-12, atol=0)


def test_with_memory_the_mean_gradient_is_nearer_to_that_of_the_full_pool():
    """10,000 draws of K = 4 from a pool of 256: EqCo's is off by more than ten times as much."""
    tau, alpha, k, draws = 0.1, 256.0, 4, 10_000
    query, positive, pool = (F.normalize(drawn(i, n, 8), dim=1) for i, n in enumerate((1, 1, 256)))
    full = query.clone().requires_grad_()
    eqco.contrastive_loss(full, positive, pool, temperature=tau, alpha=alpha).backward()
    generator = torch.Generator().manual_seed(0)

    def draw(count):
        return pool[torch.rand(count, 256, generator=generator).argsort(dim=1)[:, :k]]

    remembering = eqco.RunningNormaliser(1, temperature=tau, alpha=alpha, decay=0.995).double()
    for negatives in draw(3000):
        remembering(query, positive, negatives, index=torch.zeros(1).long())
    negatives, distance = draw(draws), {}
    for name, loss_fn, given in (
        ("eqco", eqco.EqCoLoss(temperature=tau, alpha=alpha), {}),
        ("history", remembering.eval(), {"index": torch.zeros(draws).long()}),
    ):
        leaf = query.expand(draws, -1).clone().requires_grad_()
        loss_fn(leaf, positive.expand(draws, -1), negatives, **given).backward()
        distance[name] = float((leaf.grad.sum(dim=0) - full.grad[0]).norm() / full.grad.norm())
    assert distance["eqco"] == pytest.approx(0.15, abs=0.02)
    assert distance["history"] < 0.02


def test_libauc_at_the_first_and_the_second_visit():
    """Its loss is τ times the sum of both directions; they share a history, the mean of both."""
    losses = pytest.importorskip("libauc.losses.contrastive", reason="libauc is not installed")
    tau, n, index = 0.3, 8, torch.arange(8) + 5
    theirs = losses.GCLoss_v1(N=20, tau=tau, gamma=0.4, device=torch.device("cpu"))
    theirs.u = theirs.u.double()
    for visit in range(2):
        views = [F.normalize(drawn(2 * visit + i, n, 6), dim=1) for i in range(2)]
        before = theirs.u.clone()
        leaves = [view.clone().requires_grad_() for view in views]
        theirs(*leaves, index).backward()
        mine = [view.clone().requires_grad_() for view in views]
        own = torch.arange(n)
        for first, second in (mine, mine[::-1]):
            loss_fn = eqco.RunningNormaliser(20, alpha=math.inf, temperature=tau, decay=0.6)
            loss_fn.log_mean = before[:, 0].log()
            keys, barred = torch.cat([second, first]), torch.stack([own, own + n], dim=1)
            negatives = eqco.Negatives(keys, excluded=barred)
            (tau * loss_fn(first, second, negatives, index=index)).backward()
        for each, leaf in zip(mine, leaves, strict=True):
            assert_close(each.grad, leaf.grad, rtol=1e-6, atol=1e-8)


IDS, KEY_IDS = torch.tensor([7, 8, 9, 7]), torch.tensor([8, 1, 7, 2, 7])


@pytest.mark.parametrize("alpha", [None, 64, math.inf])
@pytest.mark.parametrize("source", ["batch", "shared", "own"])
def test_without_memory_and_with_ids_it_is_eqco_with_ids(alpha, source):
    views, pool = (drawn(0, 4, 6), drawn(1, 4, 6)), drawn(2, 5, 6)
    negatives, key_ids = {
        "batch": ((), None),
        "shared": ((pool,), KEY_IDS),
        "own": ((pool.repeat(4, 1, 1),), KEY_IDS.repeat(4, 1)),
    }[source]
    settings = {"alpha": alpha, "temperature": 0.3}
    given = {"ids": IDS, "key_ids": key_ids}
    expected = with_gradient(eqco.EqCoLoss(**settings), *views, *negatives, **given)
    ours = eqco.RunningNormaliser(10, **settings)
    found = with_gradient(ours, *views, *negatives, **given, index=torch.arange(4))
    assert_close(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("alpha", [None, 64, math.inf])
def test_keys_of_the_querys_id_enter_neither_loss_nor_u(alpha):
    """Of the second visit; the third query has no key in the memory, which is all of its id."""
    ids, memory_ids = torch.tensor([7, 8, 9, 7]), torch.tensor([9, 9, 9])
    settings = {"alpha": alpha, "temperature": 0.3, "decay": 0.7}
    together = eqco.RunningNormaliser(4, **settings).double()
    alone = eqco.RunningNormaliser(4, **settings).double()
    for visit in range(2):
        queries, positives, pool, memory = (
            drawn(10 * visit + i, n, 6) for i, n in enumerate((4, 4, 5, 3))
        )
        held = eqco.Negatives(memory, ids=memory_ids)
        given = {"index": torch.arange(4), "memory": held, "ids": ids, "key_ids": KEY_IDS}
        loss, (found, *_) = with_gradient(together, queries, positives, pool, **given)
        each = []
        for row in range(4):
            own = slice(row, row + 1)
            left = memory[memory_ids != ids[row]]
            each.append(
                with_gradient(
                    alone, queries[own], positives[own], pool[ids[row] != KEY_IDS],
                    index=torch.tensor([row]), memory=left if len(left) else None,
                )
            )  # fmt: skip
        assert_close(loss, torch.stack([one for one, _ in each]).mean(), rtol=1e-9, atol=1e-10)
        expected = torch.cat([gradient for _, (gradient, *_) in each]) / 4
        assert_close(found, expected, rtol=1e-9, atol=1e-10)
        assert_close(together.log_mean, alone.log_mean)


def test_a_query_without_negatives_is_named_or_skipped_with_its_history():
    given = drawn(0, 3, 6), drawn(1, 3, 6), drawn(2, 2, 6)
    settings = {"index": torch.arange(3), "ids": torch.arange(3), "key_ids": torch.ones(2).long()}
    with pytest.raises(InputError, match="1 queries of 3 have no negatives: number 1"):
        eqco.RunningNormaliser(3)(*given, **settings)
    skipping = eqco.RunningNormaliser(3, alpha=64, on_empty="skip").double()
    loss, (gradient, *_) = with_gradient(skipping, *given, **settings)
    kept = torch.tensor([0, 2])
    plain = eqco.RunningNormaliser(3, alpha=64).double()
    assert_close(loss, plain(given[0][kept], given[1][kept], given[2], index=kept))
    assert gradient[1].eq(0).all()
    assert torch.equal(skipping.log_mean, plain.log_mean)
    assert skipping.skipped == 1


def test_a_memory_without_ids_is_refused_beside_ids():
    with pytest.raises(InputError, match=r"a memory that has none.*with_ids=True"):
        eqco.RunningNormaliser(3)(*drawn(0, 2, 3, 6), ids=torch.arange(3), memory=drawn(1, 4, 6))


def test_saved_and_loaded_equals_never_saved():
    settings = {"alpha": 64, "decay": 0.8, "schedule": "cosine", "total_steps": 10}
    batches = [(drawn(i, 4, 3), drawn(i + 50, 4, 3), torch.randperm(9)[:4]) for i in range(6)]
    whole, first, second = (eqco.RunningNormaliser(9, **settings) for _ in range(3))
    expected = [whole(q, k, index=index) for q, k, index in batches]
    for q, k, index in batches[:3]:
        first(q, k, index=index)
    second.load_state_dict(first.state_dict())
    resumed = [second(q, k, index=index) for q, k, index in batches[3:]]
    assert_close(resumed, expected[3:], rtol=0, atol=0)
    assert second.steps == 6
    assert second.current_decay() == pytest.approx(0.8 * (1 - math.cos(0.6 * math.pi)) / 2)


def test_eval_mode_stores_nothing():
    loss_fn = eqco.RunningNormaliser(5).eval()
    loss_fn(drawn(0, 3, 2), drawn(1, 3, 2), index=torch.arange(3))
    assert loss_fn.log_mean.eq(torch.finfo(torch.float32).min).all()
    assert loss_fn.steps == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decay": 1.0}, "decay=1.0; it must be at least 0"),
        ({"schedule": "linear"}, "schedule='linear'"),
        ({"schedule": "cosine"}, "'cosine' with total_steps=None"),
        ({"alpha": -1}, "alpha=-1"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        eqco.RunningNormaliser(5, **settings)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_history_of_half_precision_is_refused(dtype):
    given = drawn(0, 3, 2).to(dtype), drawn(1, 3, 2).to(dtype)
    loss_fn = eqco.RunningNormaliser(5).to(dtype)
    with pytest.raises(InputError, match=r"log_mean is torch\..*float16.*loss_fn.float\(\)"):
        loss_fn(*given, index=torch.arange(3))
    assert loss_fn.float()(*given, index=torch.arange(3)).dtype == torch.float32


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (torch.arange(2), r"index of shape \(2,\); it must be \(3,\)"),
        ([0, 1, 2], "index=.*it must be a tensor"),
        (torch.tensor([0, 1, 5]), "index holds 0 to 5, but num_instances=5"),
        (torch.arange(3, device="meta"), "index are on meta but queries on cpu"),
    ],
)
def test_bad_places_are_refused(index, message):
    with pytest.raises(InputError, match=message):
        eqco.RunningNormaliser(5)(drawn(0, 3, 2), drawn(1, 3, 2), index=index)


def test_of_an_instance_that_comes_twice_the_last_is_remembered():
    twice, once = (eqco.RunningNormaliser(5) for _ in range(2))
    queries, positives, keys = drawn(0, 3, 2), drawn(1, 3, 2), drawn(2, 7, 2)
    twice(queries, positives, keys, index=torch.tensor([1, 4, 1]))
    once(queries, positives, keys, index=torch.tensor([0, 4, 1]))
    assert torch.equal(twice.log_mean[1:], once.log_mean[1:])
    assert once.log_mean[0] != twice.log_mean[0]


def test_a_history_of_images_that_were_not_met_yet_can_be_saved():
    loss_fn = eqco.RunningNormaliser(5)
    loss_fn(drawn(0, 3, 2), drawn(1, 3, 2), index=torch.arange(3))
    assert all(value.isfinite().all() for value in loss_fn.state_dict().values())
