"""Diagnostics are the paper's quantities: compared with literal loops in float64."""

import math
from dataclasses import asdict, replace

import pytest
import torch
import torch.nn.functional as F
from drawing import seeds, unit_vectors
from hypothesis import given, settings
from hypothesis import strategies as st

import eqco
from eqco.contrast import Contrast, Negatives
from eqco.contrast import diagnostics as module
from eqco.runtime.errors import InputError
from eqco.training.diagnostics import diagnose

TAU = 0.2
FORMS = ["queue", "excluded", "indices", "repeated", "mask"]


def contrast_of(form, seed, *, n=7, m=12, dim=6, weight=1.0):
    """Queries near their positives, and keys in one of the forms a source gives."""
    positives = unit_vectors(seed, n, dim)
    queries = (positives + 0.5 * unit_vectors(seed + 1, n, dim)) * 3
    keys = unit_vectors(seed + 2, m, dim) * 2
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(n, m, generator=generator).argsort(dim=1)
    negatives = {
        "queue": Negatives(keys),
        "excluded": Negatives(keys, excluded=order[:, :2]),
        "indices": Negatives(keys, indices=order[:, :5]),
        "mask": Negatives(keys, mask=order < 5),
        "repeated": Negatives(keys, indices=order[:, [0, 1, 1, 2, 0, 1]]),
    }[form]
    return Contrast(queries, positives, negatives, weight)


def met(contrast, row):
    """The unit keys that one query meets, one by one."""
    negatives = contrast.negatives
    keys = [key / math.sqrt(float(key @ key)) for key in negatives.keys]
    if negatives.indices is not None:
        return [keys[column] for column in negatives.indices[row].tolist()]
    if negatives.mask is not None:
        return [key for key, here in zip(keys, negatives.mask[row], strict=True) if here]
    barred = [] if negatives.excluded is None else negatives.excluded[row].tolist()
    return [key for place, key in enumerate(keys) if place not in barred]


def literal(contrast, alpha):
    """Every quantity by its definition, query by query."""
    unit = [F.normalize(each, dim=0) for each in contrast.queries]
    losses, norms, bounds, correct, distances = [], [], [], [], []
    certain, ratios, effective, biases = [], [], [], []
    for row, q in enumerate(unit):
        k0, keys = F.normalize(contrast.positives[row], dim=0), met(contrast, row)
        w = (len(keys) if alpha is None else alpha) / len(keys)
        leaf = q.clone().requires_grad_()
        positive, total = torch.exp(leaf @ k0 / TAU), sum(torch.exp(leaf @ k / TAU) for k in keys)
        if alpha == math.inf:
            loss, bound = torch.log(total / positive), 2 / TAU
        else:
            posterior = positive / (positive + w * total)
            loss, bound = -torch.log(posterior), 2 / TAU * (1 - posterior.item())
        loss.backward()
        losses.append(loss.item())
        norms.append(float(leaf.grad.norm()))
        scores = [math.exp(float(q @ k) / TAU) for k in keys]
        x = sum(scores) / len(keys) / math.exp(float(q @ k0) / TAU)
        plain, imitated = len(keys) * x, len(keys) * w * x
        certain.append(1 / (1 + plain))
        weight = 1.0 if alpha == math.inf else imitated / (1 + imitated)
        ratios.append(weight / (plain / (1 + plain)))
        squares = sum((score / sum(scores)) ** 2 for score in scores)
        effective.append(1 / squares)
        mean = sum(scores) / len(scores)
        variance = sum((score - mean) ** 2 for score in scores) / len(scores)
        biases.append(variance / mean**2 / len(keys))
        bounds.append(bound)
        correct.append(all(float(q @ k0) > float(q @ k) for k in keys))
        distances.append(float(((q - k0) ** 2).sum()))
    pairs = [
        math.exp(-2 * float(((unit[i] - unit[j]) ** 2).sum()))
        for i in range(len(unit))
        for j in range(i)
    ]
    centred = torch.stack(unit) - torch.stack(unit).mean(dim=0)
    values = torch.linalg.eigvalsh(centred.T @ centred).clamp_min(0).sqrt()
    shares = [float(v / values.sum()) for v in values if v > 1e-6]
    K, n = len(met(contrast, 0)), len(unit)
    alpha = K if alpha is None else alpha
    mean = sum(norms) / n
    ceiling = math.log(1 + alpha)
    return {
        "information": (math.log(K) if alpha == math.inf else ceiling) - sum(losses) / n,
        "ceiling": ceiling,
        "loss": sum(losses) / n,
        "gradient_norm_mean": mean,
        "gradient_norm_std": math.sqrt(sum((x - mean) ** 2 for x in norms) / n),
        "gradient_bound": sum(bounds) / n,
        "accuracy": sum(correct) / n,
        "accuracy_chance": 1 / (K + 1),
        "alignment": sum(distances) / n,
        "uniformity": math.log(sum(pairs) / len(pairs)),
        "embedding_rank": math.exp(-sum(p * math.log(p) for p in shares)),
        "positive_probability": sum(certain) / n,
        "weight_ratio": sum(ratios) / n,
        "effective_negatives": sum(effective) / n,
        "weight_bias": sum(biases) / n,
        "num_negatives": K,
        "margin": TAU * math.log(alpha / K) if alpha < math.inf else math.inf,
    }


def numbers(seen):
    return {name: value for name, value in asdict(seen).items() if name != "information_kind"}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("alpha", [None, 3.0, 4096.0, math.inf])
def test_every_number_is_its_definition(form, alpha):
    for seed in range(3):
        contrast = contrast_of(form, seed)
        seen = numbers(diagnose([contrast], temperature=TAU, alpha=alpha))
        assert seen == pytest.approx(literal(contrast, alpha), rel=1e-8, abs=1e-8)


@given(seed=seeds, form=st.sampled_from(FORMS), alpha=st.one_of(st.none(), st.floats(0.5, 1e6)))
@settings(max_examples=25)
def test_the_loss_is_the_objectives_and_the_gradient_keeps_its_bound(seed, form, alpha):
    contrast = contrast_of(form, seed)
    seen = diagnose([contrast], temperature=TAU, alpha=alpha)
    loss = eqco.Objective(temperature=TAU, alpha=alpha)([contrast])
    assert seen.loss == pytest.approx(float(loss), rel=1e-9)
    assert seen.gradient_norm_mean <= seen.gradient_bound * (1 + 1e-9)
    assert seen.information <= seen.ceiling


@pytest.mark.parametrize("form", FORMS)
def test_chunks_of_queries_change_nothing(form, monkeypatch):
    contrast = contrast_of(form, 3)
    whole = numbers(diagnose([contrast], temperature=TAU, alpha=64))
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 25)
    assert numbers(diagnose([contrast], temperature=TAU, alpha=64)) == pytest.approx(whole)


def test_two_contrasts_give_the_mean_by_weight():
    first, second = contrast_of("excluded", 0, weight=3.0), contrast_of("excluded", 9, weight=1.0)
    a, b = (numbers(diagnose([each], temperature=TAU, alpha=64)) for each in (first, second))
    both = numbers(diagnose([first, second], temperature=TAU, alpha=64))
    spread = both.pop("gradient_norm_std")
    for name, value in both.items():
        assert value == pytest.approx((3 * a[name] + b[name]) / 4, abs=1e-9), name
    # the variance of a mixture: the mean variance and the variance of the means
    between = 3 / 16 * (a["gradient_norm_mean"] - b["gradient_norm_mean"]) ** 2
    within = (3 * a["gradient_norm_std"] ** 2 + b["gradient_norm_std"] ** 2) / 4
    assert spread == pytest.approx(math.sqrt(within + between))


def test_contrasts_with_different_k_have_margins_of_their_own():
    few, many = contrast_of("indices", 0), contrast_of("queue", 0)
    seen = diagnose([few, many], temperature=TAU, alpha=64)
    apart = [diagnose([each], temperature=TAU, alpha=64).loss for each in (few, many)]
    assert seen.loss == pytest.approx(sum(apart) / 2)
    assert seen.num_negatives == 5
    assert seen.margin == pytest.approx(TAU * math.log(64 / 5))


@pytest.mark.parametrize(
    ("alpha", "kind"),
    [(None, "bound"), (12.0, "bound"), (12.5, "estimate"), (math.inf, "estimate")],
)
def test_information_is_a_bound_only_up_to_alpha_equal_to_k(alpha, kind):
    seen = diagnose([contrast_of("queue", 0)], temperature=TAU, alpha=alpha)
    assert seen.information_kind == kind


@pytest.mark.parametrize("alpha", [None, 5.0])
def test_negatives_that_depend_on_the_query_make_an_estimate(alpha):
    """The proof draws them independently, whatever α and K are."""
    dependent = replace(contrast_of("queue", 0), independent=False)
    contrasts = [contrast_of("queue", 0), dependent]
    assert diagnose(contrasts, temperature=TAU, alpha=alpha).information_kind == "estimate"
    assert diagnose(contrasts[:1], temperature=TAU, alpha=alpha).information_kind == "bound"


def test_one_estimate_among_bounds_makes_an_estimate():
    contrasts = [contrast_of("indices", 0), contrast_of("queue", 0)]
    assert diagnose(contrasts, temperature=TAU, alpha=8).information_kind == "estimate"
    assert diagnose(contrasts, temperature=TAU, alpha=5).information_kind == "bound"


@pytest.mark.parametrize("alpha", [None, 16.0, 65536.0, math.inf])
@pytest.mark.parametrize("form", FORMS)
def test_collapse_shows_as_no_information_chance_accuracy_and_no_dimensions(form, alpha):
    healthy = contrast_of(form, 0)
    same = unit_vectors(5, 6).float()
    pool = Negatives(same.repeat(12, 1), healthy.negatives.indices, healthy.negatives.excluded)
    contrast = Contrast(same.repeat(7, 1), same.repeat(7, 1), pool)
    seen = diagnose([contrast], temperature=TAU, alpha=alpha)
    assert seen.information == pytest.approx(0, abs=1e-5)
    assert seen.accuracy == pytest.approx(seen.accuracy_chance)
    assert seen.uniformity == pytest.approx(0, abs=1e-5)
    assert seen.alignment == pytest.approx(0, abs=1e-5)
    assert seen.embedding_rank == 0


def test_orthogonal_queries_fill_their_dimensions():
    # ± three axes: centred already, three equal singular values, entropy log 3
    queries = torch.cat([torch.eye(3), -torch.eye(3)]).double()
    seen = diagnose([Contrast(queries, queries, Negatives(queries))], temperature=1.0, alpha=None)
    assert seen.embedding_rank == pytest.approx(3)
    # 3 opposite pairs at distance² 4 and 12 pairs at 2: log((3e⁻⁸ + 12e⁻⁴)/15)
    expected = math.log((3 * math.exp(-8) + 12 * math.exp(-4)) / 15)
    assert seen.uniformity == pytest.approx(expected)
    assert seen.alignment == 0


def test_few_queries_of_a_long_batch_are_diagnosed_but_all_their_keys():
    contrast = contrast_of("excluded", 1, n=40)
    rows = torch.arange(10) * 4
    part = Contrast(
        contrast.queries[rows],
        contrast.positives[rows],
        Negatives(contrast.negatives.keys, excluded=contrast.negatives.excluded[rows]),
    )
    seen = diagnose([contrast], temperature=TAU, alpha=64, max_queries=10)
    assert numbers(seen) == pytest.approx(literal(part, 64), rel=1e-8, abs=1e-8)


def test_many_keys_lower_the_queries_of_the_loss_but_not_those_of_the_rank():
    contrast = contrast_of("queue", 1, n=20, m=64)
    seen = diagnose([contrast], temperature=TAU, alpha=64, max_queries=16, max_keys=8)
    rows = torch.arange(16) * 20 // 16  # 16 queries; 16·8/64 = 2 of them meet the keys
    queries, positives = contrast.queries[rows], contrast.positives[rows]
    two = Contrast(queries[[0, 8]], positives[[0, 8]], contrast.negatives)
    assert seen.loss == pytest.approx(literal(two, 64)["loss"])
    wide = literal(Contrast(queries, positives, contrast.negatives), 64)
    assert seen.embedding_rank == pytest.approx(wide["embedding_rank"])
    assert seen.alignment == pytest.approx(wide["alignment"])


def test_half_precision_and_autocast_are_computed_in_float32():
    contrast = contrast_of("excluded", 0, n=32, m=40)
    half = Contrast(
        contrast.queries.bfloat16(),
        contrast.positives.bfloat16(),
        Negatives(contrast.negatives.keys.bfloat16(), excluded=contrast.negatives.excluded),
    )
    single = Contrast(
        half.queries.float(),
        half.positives.float(),
        Negatives(half.negatives.keys.float(), excluded=contrast.negatives.excluded),
    )
    expected = diagnose([single], temperature=0.07, alpha=65536)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert diagnose([half], temperature=0.07, alpha=65536) == expected


def test_looking_leaves_no_graph_and_changes_nothing():
    contrast = contrast_of("queue", 0)
    queries = contrast.queries.clone().requires_grad_()
    before = contrast.negatives.keys.clone()
    diagnose([Contrast(queries, contrast.positives, contrast.negatives)], temperature=1, alpha=4)
    assert queries.grad is None
    assert torch.equal(contrast.negatives.keys, before)


def test_numbers_are_plain_python():
    seen = diagnose([contrast_of("queue", 0)], temperature=TAU, alpha=None)
    kinds = {name: type(value) for name, value in asdict(seen).items()}
    assert kinds.pop("information_kind") is str
    assert kinds.pop("num_negatives") is int
    assert set(kinds.values()) == {float}


def test_nan_embeddings_give_nan_and_no_crash():
    contrast = contrast_of("queue", 0)
    broken = Contrast(contrast.queries * math.nan, contrast.positives, contrast.negatives)
    seen = diagnose([broken], temperature=TAU, alpha=64)
    assert math.isnan(seen.information)
    assert math.isnan(seen.embedding_rank)


def test_a_single_query_has_no_pairs():
    seen = diagnose([contrast_of("queue", 0, n=1)], temperature=TAU, alpha=None)
    assert math.isnan(seen.uniformity)
    assert seen.embedding_rank == 0


@pytest.mark.parametrize(
    ("given_contrasts", "arguments", "message"),
    [
        (0, {}, "0 contrasts of total weight 0"),
        (1, {"max_queries": 0}, "max_queries=0; it must be at least 1"),
        (1, {"max_keys": 0}, "max_keys=0; it must be at least 1"),
        (1, {"alpha": 0.0}, r"alpha=0\.0; it says how many negatives those present stand in for"),
        (1, {"temperature": 0.0}, r"temperature=0\.0"),
    ],
)
def test_what_cannot_be_read_is_refused(given_contrasts, arguments, message):
    contrasts = [contrast_of("queue", 0)] * given_contrasts
    with pytest.raises(InputError, match=message):
        diagnose(contrasts, **{"temperature": TAU, "alpha": None, **arguments})


def test_one_call_in_any_loop_sees_what_the_trainer_sees():
    contrast = contrast_of("queue", 0)
    given = contrast.queries, contrast.positives
    expected = diagnose([contrast], temperature=TAU, alpha=64)
    keys = contrast.negatives.keys
    own = keys.expand(len(given[0]), *keys.shape)
    for negatives in (keys, contrast.negatives, own):
        seen = eqco.diagnose(*given, negatives, temperature=TAU, alpha=64)
        assert numbers(seen) == pytest.approx(numbers(expected), rel=1e-9)


@pytest.mark.parametrize("temperature", [0.1, 0.01, 0.002])
def test_a_positive_far_ahead_is_saturated_in_float32_too(temperature):
    """Opposite keys: W_K = σ(log K − 2/τ) is 0 in float32, and W_α/W_K is α/K all the same."""
    views = torch.tensor([[1.0, 0.0]]).expand(3, 2)
    plain, imitating = (
        eqco.diagnose(views, views, -views, temperature=temperature, alpha=alpha)
        for alpha in (None, 300)
    )
    assert plain.weight_ratio == pytest.approx(1)
    assert plain.advice()[0].startswith("Set alpha")
    assert imitating.weight_ratio == pytest.approx(100, rel=1e-3)
    assert imitating.advice()[0].startswith("Keep alpha")


def test_nan_is_refused_or_named_and_never_advised_on():
    views = torch.eye(4)
    with pytest.raises(InputError, match="queries holds 16 NaN"):
        eqco.diagnose(views * math.nan, views, temperature=TAU)
    broken = Contrast(views * math.nan, views, Negatives(views))
    seen = diagnose([broken], temperature=TAU, alpha=64)
    assert seen.advice()[0].startswith("Look at the embeddings first")


def test_the_gradient_is_w_times_a_part_that_alpha_does_not_change():
    """Hence the ratio of the norms of one query is its W_α/W_K."""
    contrast = contrast_of("queue", 0, n=1)
    plain = diagnose([contrast], temperature=TAU, alpha=None)
    imitating = diagnose([contrast], temperature=TAU, alpha=4096)
    ratio = imitating.gradient_norm_mean / plain.gradient_norm_mean
    assert imitating.weight_ratio == pytest.approx(ratio, rel=1e-9)
    assert plain.weight_ratio == 1


@pytest.mark.parametrize(
    ("changes", "beginning"),
    [
        ({"positive_probability": 0.68, "weight_ratio": 1.0, "margin": 0.0}, "Set alpha"),
        ({"weight_bias": 0.3, "num_negatives": 4}, "Score against more keys"),
        ({"effective_negatives": 1.2, "num_negatives": 16}, "Raise the temperature"),
        ({"positive_probability": 0.68, "weight_ratio": 2.9}, "Keep alpha"),
        ({}, "Leave alpha as it is"),
    ],
)
def test_advice_in_plain_words(changes, beginning):
    calm = {
        "positive_probability": 0.1, "weight_ratio": 1.05, "effective_negatives": 9.0,
        "weight_bias": 0.01, "num_negatives": 255, "margin": 0.2,
    }  # fmt: skip
    assert module.advice(**{**calm, **changes})[0].startswith(beginning)
