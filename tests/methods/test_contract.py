"""What every framework of the catalog promises."""

import copy
import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from eqco.contrast import KeyQueue, NTXentLoss, Objective
from eqco.data import Views
from eqco.encoders import Encoder, normalised_head, split_batch_norm
from eqco.methods import METHODS, MoCo, SimCLR, SiMo
from eqco.training.diagnostics import diagnose

N, D = 8, 6


class TinyBackbone(nn.Module):
    feature_dim = 10

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(12, 10), nn.BatchNorm1d(10), nn.ReLU())

    def forward(self, images):
        return self.layers(images)


def tiny_encoder(seed=0):
    torch.manual_seed(seed)
    return Encoder(TinyBackbone(), normalised_head(10, D)).double()


def tiny_views(seed=0, count=N):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 3, 2, 2, dtype=torch.float64, generator=generator)
    noise = torch.randn(2, count, 3, 2, 2, dtype=torch.float64, generator=generator)
    return Views(images + 0.3 * noise[0], images + 0.3 * noise[1], torch.arange(count))


def queue(capacity, filled=0):
    made = KeyQueue(capacity, D).double()
    if filled:
        made.enqueue(torch.randn(filled, D, dtype=torch.float64))
    return made


@dataclass(frozen=True)
class Variant:
    make: object
    num_negatives: int
    num_contrasts: int = 1
    keys_learn: bool = False
    moves: bool = True


VARIANTS = {
    "simo": Variant(lambda e: SiMo(e, num_negatives=3), 3),
    "simo, all": Variant(lambda e: SiMo(e, num_negatives=None), N - 1),
    "simo, shared draw": Variant(lambda e: SiMo(e, num_negatives=3, shared=True), 3),
    "simo, queue": Variant(lambda e: SiMo(e, num_negatives=3, queue=queue(9, 9)), 12),
    "moco": Variant(lambda e: MoCo(e, queue=queue(20, 20)), 20),
    "moco, K < N": Variant(lambda e: MoCo(e, queue=queue(5, N)), 5),
    "simclr": Variant(SimCLR, 2 * N - 2, 2, True, False),
    "simclr, sampled": Variant(lambda e: SimCLR(e, num_negatives=4), 4, 2, True, False),
    "simclr, other view": Variant(lambda e: SimCLR(e, both_views=False), N - 1, 2, True, False),
}


@pytest.fixture(params=VARIANTS)
def variant(request):
    return VARIANTS[request.param]


def made(variant, seed=0):
    torch.manual_seed(seed)
    return variant.make(tiny_encoder(seed)).train()


def test_the_catalog_is_covered():
    kinds = {type(made(variant)) for variant in VARIANTS.values()}
    assert kinds == set(METHODS.values())


def test_shapes_and_k_counted(variant):
    output = made(variant)(tiny_views(), 0)
    assert len(output.contrasts) == variant.num_contrasts
    for contrast in output.contrasts:
        assert contrast.weight == 1
        assert contrast.queries.shape == contrast.positives.shape == (N, D)
        assert contrast.negatives.num_negatives == variant.num_negatives


def test_no_query_meets_a_key_of_its_own_instance(variant):
    """Neither its positive nor, where both views are keys, itself."""
    for contrast in made(variant)(tiny_views(), 0).contrasts:
        negatives = contrast.negatives
        for n in range(N):
            if negatives.indices is not None:
                met = negatives.keys[negatives.indices[n]]
            else:
                kept = torch.ones(len(negatives.keys), dtype=torch.bool)
                if negatives.excluded is not None:
                    kept[negatives.excluded[n]] = False
                met = negatives.keys[kept]
            assert len(met) == variant.num_negatives
            for own in (contrast.positives[n], contrast.queries[n]):
                assert (met - own).abs().sum(dim=1).min() > 1e-6


def test_gradient_reaches_the_encoder_and_nothing_else(variant):
    method = made(variant)
    Objective(temperature=0.2, alpha=64)(method(tiny_views(), 0).contrasts).backward()
    for name, parameter in method.named_parameters():
        if name.startswith("encoder."):
            assert parameter.grad is not None
        else:
            assert parameter.grad is None
            assert not parameter.requires_grad


def test_keys_carry_gradient_only_in_simclr(variant):
    for contrast in made(variant)(tiny_views(), 0).contrasts:
        assert contrast.positives.requires_grad == variant.keys_learn
        assert contrast.negatives.keys.requires_grad == variant.keys_learn


def test_forward_stores_nothing_but_batch_statistics(variant):
    method = made(variant)
    before = copy.deepcopy(method.state_dict())
    method(tiny_views(), 0)
    for name, value in method.state_dict().items():
        if "running" not in name and "num_batches" not in name:
            assert torch.equal(value, before[name]), name


def step(method, number):
    """One step of training; returns its loss."""
    optimiser = torch.optim.SGD(method.encoder.parameters(), lr=0.1)
    output = method(tiny_views(number), number)
    loss = Objective(temperature=0.2, alpha=64)(output.contrasts)
    loss.backward()
    optimiser.step()
    optimiser.zero_grad()
    method.after_step(output.fresh_keys)
    return loss.detach()


def test_after_the_step_the_key_encoder_moves_by_eq_16(variant):
    if not variant.moves:
        return
    method = made(variant)
    method.ema_decay = 0.75
    start = [p.clone() for p in method.key_encoder.network.parameters()]
    step(method, 0)
    queries = method.encoder.parameters()
    for before, query, key in zip(
        start, queries, method.key_encoder.network.parameters(), strict=True
    ):
        assert_close(key, 0.75 * before + 0.25 * query)


def test_saved_and_loaded_goes_on_like_never_saved(variant):
    method = made(variant)
    for number in range(3):
        step(method, number)
    loaded = made(variant, seed=1)
    loaded.load_state_dict(copy.deepcopy(method.state_dict()))
    for number in range(3, 6):
        assert torch.equal(step(method, number), step(loaded, number))


def test_the_same_step_draws_the_same(variant):
    first, second = (made(variant)(tiny_views(), 5).contrasts for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.queries, other.queries)
        if one.negatives.indices is not None:
            assert torch.equal(one.negatives.indices, other.negatives.indices)


def test_a_tiny_batch_is_overfitted(variant):
    method = made(variant)
    optimiser = torch.optim.Adam(method.encoder.parameters(), lr=0.02)
    objective, losses = Objective(temperature=0.2), []
    for number in range(80):
        output = method(tiny_views(0), number)
        loss = objective(output.contrasts)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if getattr(method, "ema_decay", None) is not None:
            method.ema_decay = 0.5
        # a memory of this very batch would hold each query's own key
        method.after_step(None)
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]


def test_eqco_and_plain_agree_when_alpha_is_k(variant):
    contrasts = made(variant)(tiny_views(), 0).contrasts
    plain = Objective(temperature=0.2)(contrasts)
    assert torch.equal(plain, Objective(temperature=0.2, alpha=variant.num_negatives)(contrasts))


def test_warm_up_puts_the_parts_of_a_batch_into_memory():
    for method in (
        MoCo(tiny_encoder(), queue=queue(20)),
        SiMo(tiny_encoder(), num_negatives=3, queue=queue(20)),
    ):
        method.warm_up_memory(tiny_views(1))
        assert method.queue.filled == N
        method.warm_up_memory(tiny_views(2), 1)
        assert method.queue.filled == 2 * N
        assert method(tiny_views(), 0).contrasts[0].negatives.num_negatives in (2 * N, 2 * N + 3)


def test_the_queue_holds_the_keys_of_the_step_before():
    method = MoCo(tiny_encoder(), queue=queue(N, N))
    output = method(tiny_views(), 0)
    method.after_step(output.fresh_keys)
    assert_close(method.queue.keys, output.fresh_keys)
    assert_close(output.fresh_keys, output.contrasts[0].positives)


def test_the_two_directions_of_simclr_draw_separately():
    contrasts = SimCLR(tiny_encoder(), num_negatives=4)(tiny_views(), 3).contrasts
    assert not torch.equal(contrasts[0].negatives.indices, contrasts[1].negatives.indices)


def published_simclr_objective(first, second, temperature):
    """SimCLR's code, query by query: the mean over N of the loss of each view's query, and the two
    means added. Keys are the other view first, then the same view without the query itself.
    """
    first, second = (view / view.norm(dim=1, keepdim=True) for view in (first, second))
    directions = []
    for queries, others in ((first, second), (second, first)):
        losses = []
        for n in range(len(queries)):
            logits = [queries[n] @ others[j] / temperature for j in range(len(others))]
            logits += [queries[n] @ queries[j] / temperature for j in range(len(queries)) if j != n]
            losses.append(torch.logsumexp(torch.stack(logits), 0) - logits[n])
        directions.append(sum(losses) / len(losses))
    return directions[0] + directions[1]


def test_simclr_is_the_published_sum_of_both_directions_in_value_and_gradient():
    method, views = SimCLR(tiny_encoder()).train(), tiny_views()
    parameters = list(method.parameters())
    ours = Objective(temperature=0.1)(method(views, step=0).contrasts)
    published = published_simclr_objective(
        method.encoder(views.first), method.encoder(views.second), 0.1
    )
    assert_close(ours, published, rtol=1e-11, atol=1e-11)
    for mine, theirs in zip(
        torch.autograd.grad(ours, parameters),
        torch.autograd.grad(published, parameters),
        strict=True,
    ):
        assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


def test_nt_xent_loss_is_half_of_simclrs_published_objective():
    found = []
    for loss in (
        lambda a, b: 2 * NTXentLoss(temperature=0.1)(a, b),
        lambda a, b: published_simclr_objective(a, b, 0.1),
    ):
        views = torch.randn(
            2, N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
        )
        views.requires_grad_()
        value = loss(views[0], views[1])
        found.append((value.detach(), torch.autograd.grad(value, views)[0]))
    for ours, published in zip(*found, strict=True):
        assert_close(ours, published, rtol=1e-11, atol=1e-11)


def test_information_is_a_mean_over_the_directions_whatever_their_weight():
    """f̂ and its ceiling are of one query: log(1 + K) − L, with L a mean and not a sum."""
    contrasts = SimCLR(tiny_encoder()).train()(tiny_views(), step=0).contrasts
    seen = diagnose(contrasts, temperature=0.1, alpha=None)
    mean = float(Objective(temperature=0.1)(contrasts).detach()) / 2
    assert seen.information == pytest.approx(math.log(2 * N - 1) - mean, rel=1e-6)
    assert seen.ceiling == pytest.approx(math.log(2 * N - 1))


def test_shuffling_changes_nothing_with_one_batch_norm_and_something_with_two():
    for groups, same in ((1, True), (2, False)):
        keys = []
        for shuffle in (False, True):
            encoder = split_batch_norm(tiny_encoder(), groups) if groups > 1 else tiny_encoder()
            method = SiMo(encoder, num_negatives=3, shuffle=shuffle).train()
            keys.append(method(tiny_views(), 0).contrasts[0].positives)
        assert torch.allclose(*keys) == same


def test_beta_zero_means_keys_of_the_same_weights():
    method = SiMo(tiny_encoder(), ema_decay=0.0, num_negatives=3).train()
    step(method, 0)
    views = tiny_views(4)
    contrast = method(Views(views.first, views.first, views.index), 1).contrasts[0]
    unit = contrast.queries / contrast.queries.norm(dim=1, keepdim=True)
    assert_close(contrast.positives, unit)
