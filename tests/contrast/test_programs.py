"""Whatever is put together, loss and gradients are those of Eq. 1 written out in float64."""

import math

import pytest
import torch
from drawing import seeds
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import eqco

SOURCES = ["batch", "tensor", "own", "excluded", "indices", "mask", "queue", "combined", "drawn"]
# of a loss and of its gradient; half precision is that of the gradient's own type
TOLERANCES = {
    torch.float64: (1e-9, 1e-7),
    torch.float32: (1e-4, 1e-3),
    torch.float16: (1e-4, 2e-2),
    torch.bfloat16: (1e-4, 5e-2),
}


def written_out(queries, positives, negatives, temperature, alpha, margin, similarity):
    """Eq. 1 with Eq. 5, query by query; `negatives` is a list of (K, D)."""
    losses = []
    for q, k0, k in zip(queries, positives, negatives, strict=True):
        if similarity == "cosine":
            q, k0, k = (v / v.norm(dim=-1, keepdim=True) for v in (q, k0, k))
        weight = 1.0 if alpha in (None, math.inf) else alpha / len(k)
        numerator = ((q @ k0 - (margin or 0.0)) / temperature).exp()
        others = weight * (k @ q / temperature).exp().sum()
        denominator = others if alpha == math.inf else numerator + others
        losses.append(denominator.log() - numerator.log())
    return torch.stack(losses)


def shuffled(generator, n, m, count):
    return torch.rand(n, m, generator=generator).argsort(dim=1)[:, :count]


def negatives_of(source, count, keys, positives, generator):
    """Negatives, and a function to the keys of each query among (keys, positives) in float64."""
    n, m = len(positives), len(keys)
    places = shuffled(generator, n, m, count)
    mask = torch.zeros(n, m, dtype=torch.bool).scatter_(1, places, True)
    others = [torch.arange(n) != i for i in range(n)]
    match source:
        case "batch":
            return None, lambda k, p: [p[other] for other in others]
        case "tensor":
            return keys, lambda k, p: [k] * n
        case "own":
            return keys[places], lambda k, p: list(k[places])
        case "excluded":
            barred = places[:, : min(2, m - 1)]
            left = [[i for i in range(m) if i not in row] for row in barred.tolist()]
            return eqco.Negatives(keys, excluded=barred), lambda k, p: [k[row] for row in left]
        case "indices":
            places[:, -1] = places[:, 0]  # counts twice
            return eqco.Negatives(keys, indices=places), lambda k, p: list(k[places])
        case "mask":
            return eqco.Negatives(keys, mask=mask), lambda k, p: [k[row] for row in mask]
        case "queue":
            queue = eqco.KeyQueue(m + 3, keys.shape[1], dtype=keys.dtype)
            queue.enqueue(keys)
            return queue.negatives(), lambda k, p: [k.detach()] * n
        case "combined":
            both = eqco.in_batch_negatives(positives), eqco.Negatives(keys, mask=mask)
            return eqco.combine_negatives(*both), lambda k, p: [
                torch.cat([p[other], k[row]]) for other, row in zip(others, mask, strict=True)
            ]
        case "drawn":
            pool = eqco.Negatives(keys, excluded=places[:, :1])
            drawn = eqco.sampled_negatives(pool, min(count, m - 1), seed=0, step=0)
            if drawn.indices is not None:
                return drawn, lambda k, p: list(k[drawn.indices])
            return drawn, lambda k, p: [k[row] for row in drawn.mask]


@settings(max_examples=150)
@given(
    seed=seeds,
    sizes=st.tuples(st.sampled_from([2, 5, 17]), st.sampled_from([2, 40, 2200])),
    part=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    source=st.sampled_from(SOURCES),
    dtype=st.sampled_from(list(TOLERANCES)),
    learns=st.sampled_from(["no", "parameter", "module"]),
    temperature=st.sampled_from([0.1, 0.7]),
    rule=st.sampled_from([{}, {"alpha": 7.5}, {"alpha": math.inf}, {"margin": 0.4}]),
    similarity=st.sampled_from(["cosine", "dot"]),
    reduction=st.sampled_from(["mean", "sum", "none"]),
)
def test_every_combination_is_eq_1_in_value_and_gradient(
    seed, sizes, part, source, dtype, learns, temperature, rule, similarity, reduction
):
    generator = torch.Generator().manual_seed(seed)
    (n, m), dim = sizes, 6
    shapes = (n, dim), (n, dim), (m, dim)
    leaves = [
        torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes
    ]
    queries, positives, keys = leaves
    count = max(1, int(part * m))
    negatives, keys_of_each = negatives_of(source, count, keys, positives, generator)
    given_temperature = {
        "no": temperature,
        "parameter": torch.nn.Parameter(torch.tensor(temperature)),
        "module": eqco.LearnableTemperature(initial=temperature),
    }[learns]
    loss_fn = eqco.EqCoLoss(
        temperature=given_temperature, similarity=similarity, reduction=reduction, **rule
    )
    loss = loss_fn(queries, positives, negatives)

    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    tau = torch.as_tensor(loss_fn.current_temperature(), dtype=torch.float64).detach()
    expected = written_out(
        *exact[:2], keys_of_each(exact[2], exact[1]), tau.requires_grad_(),
        rule.get("alpha"), rule.get("margin"), similarity,
    )  # fmt: skip
    expected = {"mean": expected.mean(), "sum": expected.sum(), "none": expected}[reduction]
    value, gradient = TOLERANCES[dtype]
    scale = 1 + expected.abs().max().item()
    assert_close(loss.double(), expected, rtol=value, atol=value * scale)

    upstream = torch.randn(expected.shape, generator=generator)
    loss.backward(upstream.to(loss.dtype))
    expected.backward(upstream.double())
    for ours, theirs in zip(leaves, exact, strict=True):
        if theirs.grad is None:
            assert ours.grad is None
            continue
        assert ours.grad.dtype == dtype
        scale = theirs.grad.abs().max().item() + 1e-3
        assert_close(ours.grad.double(), theirs.grad, rtol=gradient, atol=gradient * scale)
    if learns != "no":
        (learned,) = loss_fn.parameters()
        chain = 1.0 if learns == "parameter" else -tau.item()  # τ = e^−s
        found, wanted = learned.grad.item(), chain * tau.grad.item()
        assert found == pytest.approx(wanted, rel=1e-3, abs=1e-3 / temperature)


def test_a_margin_is_not_rounded_to_the_type_of_a_learning_temperature():
    """0.4/τ in float16 would be wrong by a thousandth."""
    queries, positives = torch.eye(4)[:2], torch.eye(4)[:2]
    tau = torch.tensor(0.07, dtype=torch.float16)
    loss = eqco.contrastive_loss(
        queries, positives, torch.eye(4).expand(2, 4, 4)[:, 2:],
        temperature=tau, margin=0.4, alpha=None, reduction="none",
    )  # fmt: skip
    gap = math.log(2) - (1 - 0.4) / tau.item()
    assert_close(loss, torch.full((2,), math.log1p(math.exp(gap))), rtol=1e-5, atol=0)
