"""What every method of the catalog promises; a new one is covered by being listed there."""

import copy
import math
import typing
from dataclasses import fields, replace

import pytest
import safetensors.torch as safetensors
import torch
import torch.nn.functional as F
from guide_method import guide_settings
from torch import nn
from torch.testing import assert_close
from toy_method import ToySettings

from eqco.contrast import NTXentLoss, Objective
from eqco.data import Batch, DataSettings
from eqco.encoders import Encoder, normalised_head, scheduled_ema_decay, split_batch_norm
from eqco.methods import (
    METHODS,
    BYOLSettings,
    CMCSettings,
    CPCSettings,
    InfoMinSettings,
    MethodParts,
    MoCoSettings,
    MoCoV3Settings,
    PIRLSettings,
    SimCLRSettings,
    SimCLRv2Settings,
    SiMoSettings,
    SwAVSettings,
)
from eqco.methods.base import KeyEncoderSettings
from eqco.recipes.profiles import scale_method
from eqco.runtime.errors import InputError
from eqco.training.diagnostics import diagnose, diagnose_embeddings

N, D, TOTAL_STEPS = 24, 6, 80
NUM_IMAGES = 3 * N
DATA = DataSettings(image_size=12)


class TinyBackbone(nn.Module):
    feature_dim = 10

    def __init__(self, in_channels):
        super().__init__()
        pooled = nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * in_channels, 10)
        self.layers = nn.Sequential(*pooled, nn.BatchNorm1d(10), nn.ReLU())

    def forward(self, images):
        return self.layers(images)


def tiny_encoder(seed=0, in_channels=None):
    torch.manual_seed(seed)
    return Encoder(TinyBackbone(in_channels or 3), normalised_head(10, D)).double()


def tiny_batch(settings, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(N, 3, 2, 2, dtype=torch.float64, generator=generator)
    views = []
    for view in settings.views(DATA):
        noise = torch.randn(N, 3, 2, 2, dtype=torch.float64, generator=generator)
        views.append(F.interpolate(images + 0.3 * noise, size=view.size))
    return Batch(tuple(views), torch.arange(N))


def variations(settings):
    """The settings, and each of their switches turned the other way."""
    yield "", settings
    hints = typing.get_type_hints(type(settings))
    for entry in fields(settings):
        now, choices = getattr(settings, entry.name), typing.get_args(hints[entry.name])
        if isinstance(now, bool):
            choices = (not now,)
        elif now is not None and type(None) in choices:
            choices = (None,)
        for value in choices:
            if isinstance(value, bool | str | None) and value != now:
                yield f", {entry.name}={value}", replace(settings, **{entry.name: value})


def small(kind):
    settings = scale_method(kind(), ema_decay=0.9, memory=N)
    return replace(settings, grid=2) if "grid" in vars(settings) else settings


VARIANTS = {
    kind.name + said: settings
    for kind in (*METHODS.values(), ToySettings, guide_settings())
    for said, settings in variations(small(kind))
} | {
    "simo, queue": SiMoSettings(count=3, queue_size=9),
    "simo, queue and all": SiMoSettings(count=None, queue_size=30),
    "moco, K < N": MoCoSettings(queue_size=5),
    "simclr, sampled": SimCLRSettings(count=4),
    "simclrv2, sampled": SimCLRv2Settings(count=4, queue_size=9),
    "simclrv2, no memory": SimCLRv2Settings(queue_size=0),
    "cpc, sampled": CPCSettings(grid=2, other_images_only=True, count=4),
    "swav, queue": SwAVSettings(num_prototypes=8, queue_size=30, queue_epoch=0, frozen_epochs=0),
}


CONTRASTING = {
    name: settings for name, settings in VARIANTS.items() if settings.num_negatives(N) is not None
}


@pytest.fixture(params=VARIANTS)
def settings(request):
    return VARIANTS[request.param]


@pytest.fixture(params=CONTRASTING)
def contrasting(request):
    """Settings of the methods that have negatives."""
    return CONTRASTING[request.param]


def made(settings, seed=0, objective=None):
    """The method, warmed up: a queue is full, a normaliser fixed."""
    parts = MethodParts(
        make_encoder=lambda number=0, in_channels=None: tiny_encoder(
            100 * seed + number, in_channels
        ),
        objective=objective or Objective(temperature=0.2, alpha=64),
        total_steps=TOTAL_STEPS,
        seed=0,
        num_images=NUM_IMAGES,
    )
    torch.manual_seed(seed)
    method = settings.build(parts).double().train()
    for number in range(2):
        method.warm_up(tiny_batch(settings, 50 + number), number)
    return method


def contrasts_of(settings, step=0):
    return made(settings)(tiny_batch(settings), step).contrasts


def test_every_switch_is_tried():
    """Else the variants above could be fewer than they seem."""
    assert {"simo, shared=True", "simo, count=None", "simo, shuffle_bn=True"} <= set(VARIANTS)
    assert {"simo, ema_schedule=cosine", "moco, shuffle_bn=False"} <= set(VARIANTS)
    assert {"simclr, both_views=False", "simclr, shared=True"} <= set(VARIANTS)
    assert {"toy", "one-way"} <= set(VARIANTS)
    assert {"cmc, loss=nce", "cmc, colours=ydbdr", "pirl, shared=False"} <= set(VARIANTS)


def test_the_settings_count_the_negatives_that_there_are(settings):
    settings.check(num_queries=N)
    contrasts = contrasts_of(settings)
    assert bool(contrasts) == (settings.num_negatives(N) is not None)
    for contrast in contrasts:
        assert contrast.queries.shape == contrast.positives.shape
        assert (len(contrast.queries) % N, contrast.queries.shape[1]) == (0, D)
        assert contrast.negatives.num_negatives == settings.num_negatives(N)


WITHOUT_MEMORY = {
    name: settings
    for name, settings in CONTRASTING.items()
    if not (settings.queue_size or settings.num_banks)
}


@pytest.mark.parametrize("name", WITHOUT_MEMORY)
def test_without_a_memory_the_settings_count_negatives_of_the_batch(name):
    """Else lists and plans would take them for those of a queue."""
    assert isinstance(WITHOUT_MEMORY[name].num_batch_negatives(N), int)


def test_the_encoder_gets_as_many_images_as_large_as_is_said(settings):
    method, got = made(settings), []
    method.encoder.backbone.register_forward_pre_hook(lambda module, given: got.append(given[0]))
    method(tiny_batch(settings), 0)
    count, size = settings.encoded_at_once(N, DATA)
    # SwAV passes two crops of each image at once
    assert len(got[0]) in (count, 2 * count)
    assert got[0].shape[2:] == (size, size)


def test_without_contrasts_of_cosines_there_are_embeddings_to_watch(settings):
    objective = Objective(temperature=10, similarity=settings.similarity)
    output = made(settings, objective=objective)(tiny_batch(settings), 0)
    if output.contrasts:
        sizes = [len(contrast.queries) for contrast in output.contrasts]
        assert sizes == [N * each for each in settings.contrast_queries]
        if settings.similarity == "cosine":
            assert output.embeddings is None
            return
    assert output.embeddings.shape == (N, D)
    assert not output.embeddings.requires_grad
    assert diagnose_embeddings(output.embeddings).embedding_rank > 1


def test_no_query_meets_a_key_of_its_own_instance(contrasting):
    """Neither its positive nor, where both views are keys, itself."""
    contrasts = contrasts_of(contrasting)
    assert contrasts
    for contrast in contrasts:
        negatives = contrast.negatives
        for n in range(len(contrast.queries)):
            met = met_keys(negatives, n)
            assert len(met) == contrasting.num_negatives(N)
            for own in (contrast.positives[n], contrast.queries[n]):
                assert (met - own).abs().sum(dim=1).min() > 1e-6


def met_keys(negatives, row):
    """The negatives of one query, (K, D)."""
    if negatives.indices is not None:
        return negatives.keys[negatives.indices[row]]
    kept = torch.ones(len(negatives.keys), dtype=torch.bool)
    if negatives.excluded is not None:
        kept[negatives.excluded[row]] = False
    return negatives.keys[kept]


def test_negatives_depend_on_the_querys_image_only_where_the_settings_say_so(contrasting):
    """With one image of the batch changed, its queries meet the same negatives as before: no patch
    or view of their own image is among them. Batch norm, which mixes images, is left out.
    """
    method, batch, changed = made(contrasting).eval(), tiny_batch(contrasting), 5
    other = Batch(tuple(view.clone() for view in batch.views), batch.index)
    for view in other.views:
        view[changed] = -view[changed]
    pairs = list(zip(method(batch, 3).contrasts, method(other, 3).contrasts, strict=True))
    assert pairs
    for before, after in pairs:
        each = len(before.queries) // N  # queries of one image lie side by side
        rows = range(changed * each, (changed + 1) * each)
        assert not torch.allclose(before.queries[rows], after.queries[rows])
        same = [
            torch.allclose(met_keys(before.negatives, row), met_keys(after.negatives, row))
            for row in rows
        ]
        assert all(same) if contrasting.independent_negatives else not any(same)
        assert before.independent == contrasting.independent_negatives


OF_THE_BATCH = {
    name: settings
    for name, settings in CONTRASTING.items()
    if settings.num_batch_negatives(N) is not None and not getattr(settings, "shared", False)
}


@pytest.mark.parametrize("name", OF_THE_BATCH)
def test_the_settings_count_the_keys_of_a_batch(name):
    settings = OF_THE_BATCH[name]
    pools = [len(contrast.negatives.keys) for contrast in contrasts_of(settings)]
    assert set(pools) == {settings.num_batch_keys(N) + settings.queue_size}


@pytest.mark.parametrize("kind", [SiMoSettings, SimCLRSettings, SimCLRv2Settings, MoCoV3Settings])
def test_a_count_of_all_that_a_batch_offers_draws_nothing(kind):
    """Neither indices nor a mask, and the same loss to the bit."""
    every = kind(count=None)
    outputs = [
        made(settings)(tiny_batch(settings), 0)
        for settings in (every, kind(count=every.num_batch_negatives(N)))
    ]
    pools = [contrast.negatives for contrast in outputs[1].contrasts]
    assert all(pool.indices is None and pool.mask is None for pool in pools)
    assert torch.equal(outputs[0].loss, outputs[1].loss)


def test_the_loss_is_the_objectives_where_there_are_contrasts(contrasting):
    objective = Objective(temperature=0.3, alpha=10)
    method = made(contrasting, objective=objective)
    output = method(tiny_batch(contrasting), 0)
    assert output.loss.shape == ()
    assert len(output.contrasts) == contrasting.num_contrasts
    same = objective(output.contrasts)
    if contrasting.takes_alpha:
        assert_close(output.loss, same)
    else:
        assert abs(output.loss - same) > 1e-3


def test_gradient_reaches_every_parameter_that_asks_for_it(settings):
    method = made(settings)
    method(tiny_batch(settings), 0).loss.backward()
    for name, parameter in method.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
    assert all(parameter.requires_grad for parameter in method.encoder.parameters())


def test_keys_carry_gradient_only_where_the_method_is_symmetric(contrasting):
    contrasts = contrasts_of(contrasting)
    assert contrasts
    for contrast in contrasts:
        assert contrast.positives.requires_grad == contrasting.symmetric
        assert contrast.negatives.keys.requires_grad == contrasting.symmetric


def test_forward_stores_nothing_but_batch_statistics(settings):
    method = made(settings)
    before = copy.deepcopy(method.state_dict())
    method(tiny_batch(settings), 0)
    for name, value in method.state_dict().items():
        if "_extra_state" in name:
            assert value == before[name]
        elif "running" not in name and "num_batches" not in name:
            assert torch.equal(value, before[name]), name


def step(method, settings, number):
    """One step of training; returns its loss."""
    trained = [parameter for parameter in method.parameters() if parameter.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=0.1)
    output = method(tiny_batch(settings, number), number)
    output.loss.backward()
    optimiser.step()
    optimiser.zero_grad()
    method.after_step(output)
    return output.loss.detach()


WITH_KEY_ENCODER = {
    name: settings
    for name, settings in VARIANTS.items()
    if isinstance(settings, KeyEncoderSettings) and made(settings).key_encoder is not None
}


@pytest.mark.parametrize("name", WITH_KEY_ENCODER)
def test_after_each_step_the_key_encoder_moves_by_eq_16(name):
    settings = replace(WITH_KEY_ENCODER[name], ema_decay=0.75)
    method = made(settings)
    first = method.key_encoder.updates
    for number in range(3):
        decay = scheduled_ema_decay(
            0.75, settings.ema_schedule, step=first + number, total_steps=TOTAL_STEPS
        )
        start = [p.clone() for p in method.key_encoder.network.parameters()]
        step(method, settings, number)
        keys = method.key_encoder.network.parameters()
        for before, query, key in zip(start, method.encoder.parameters(), keys, strict=True):
            assert_close(key, decay * before + (1 - decay) * query)


def test_saved_as_bare_tensors_and_loaded_it_continues_as_if_never_saved(settings):
    """The file format knows names and tensors alone: whatever is counted must be one of them."""
    method = made(settings)
    for number in range(3):
        step(method, settings, number)
    loaded = made(settings, seed=1)
    loaded.load_state_dict(safetensors.load(safetensors.save(method.state_dict())))
    for number in range(3, 6):
        assert torch.equal(step(method, settings, number), step(loaded, settings, number))


def test_extended_it_begins_with_all_that_was_trained_and_the_rest_anew(settings):
    method, extended = made(settings), made(settings, seed=1)
    for number in range(2):
        step(method, settings, number)
    anew = copy.deepcopy(extended.state_dict())
    extended.load_trained(method.state_dict())
    trained, keys = method.state_dict(), "key_encoder.network."
    for name, value in extended.state_dict().items():
        part = name.split(".")[0]
        if name.startswith(keys):
            assert torch.equal(value, trained["encoder." + name.removeprefix(keys)]), name
        elif part in ("key_encoder", "queue", "bank", "objective", "_extra_state"):
            assert torch.equal(value, anew[name]), name
        else:
            assert torch.equal(value, trained[name]), name


def test_the_same_step_draws_the_same(settings):
    first, second = (made(settings)(tiny_batch(settings), 5) for _ in range(2))
    assert torch.equal(first.loss, second.loss)


def test_a_tiny_batch_is_overfitted(settings):
    if isinstance(settings, KeyEncoderSettings):
        settings = replace(settings, ema_decay=0.5, ema_schedule="constant")
    method, batch = made(settings, objective=Objective(temperature=0.2)), tiny_batch(settings)
    patches = "grid" in vars(settings)
    if patches:  # few images have as many queries as others have images
        batch = Batch(tuple(view[:4] for view in batch.views), batch.index[:4])
    trained = [parameter for parameter in method.parameters() if parameter.requires_grad]
    optimiser = torch.optim.Adam(trained, lr=0.02)
    losses = []
    for number in range(TOTAL_STEPS):
        output = method(batch, 0 if patches else number)
        optimiser.zero_grad()
        output.loss.backward()
        optimiser.step()
        # a queue of this very batch would hold each query's own key; a bank leaves its row out
        method.after_step(replace(output, new_keys=None) if settings.queue_size else output)
        losses.append(float(output.loss.detach()))
    assert losses[-1] < 0.4 * losses[0]


def test_eqco_and_plain_agree_when_alpha_is_k(contrasting):
    contrasts = contrasts_of(contrasting)
    plain = Objective(temperature=0.2)(contrasts)
    same = Objective(temperature=0.2, alpha=contrasting.num_negatives(N))(contrasts)
    assert torch.equal(plain, same)


@pytest.mark.parametrize("settings", [MoCoSettings(queue_size=60), SiMoSettings(queue_size=60)])
def test_warm_up_fills_the_queue_micro_batch_by_micro_batch(settings):
    method = made(settings)  # which gave it two
    assert method.queue.filled == 2 * N
    method.warm_up(tiny_batch(settings, 2), 2)
    assert method.queue.filled == 60


def test_the_queue_holds_the_keys_of_the_step_before():
    settings = MoCoSettings(queue_size=N)
    method = made(settings)
    output = method(tiny_batch(settings), 0)
    method.after_step(output)
    held, new = (keys.sort(dim=0).values for keys in (method.queue.keys, output.new_keys))
    assert_close(held, new)
    assert_close(output.new_keys, output.contrasts[0].positives)


def test_the_two_directions_of_simclr_draw_separately():
    first, second = contrasts_of(SimCLRSettings(count=4), step=3)
    assert not torch.equal(first.negatives.indices, second.negatives.indices)


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
    settings = SimCLRSettings()
    method, batch = made(settings, objective=Objective(temperature=0.1)), tiny_batch(settings)
    parameters = list(method.parameters())
    ours = method(batch, step=0).loss
    published = published_simclr_objective(*map(method.encoder, batch.views), 0.1)
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
    contrasts = contrasts_of(SimCLRSettings())
    seen = diagnose(contrasts, temperature=0.1, alpha=None)
    mean = float(Objective(temperature=0.1)(contrasts).detach()) / 2
    assert seen.information == pytest.approx(math.log(2 * N - 1) - mean, rel=1e-6)
    assert seen.ceiling == pytest.approx(math.log(2 * N - 1))


@pytest.mark.parametrize(("groups", "same"), [(1, True), (2, False)])
def test_shuffling_matters_only_where_batch_norm_is_split(groups, same):
    def parts(number=0, in_channels=None):
        return split_batch_norm(tiny_encoder(), groups) if groups > 1 else tiny_encoder()

    keys = []
    for shuffle in (False, True):
        settings = SiMoSettings(count=3, shuffle_bn=shuffle)
        objective = Objective(temperature=0.2)
        built = settings.build(
            MethodParts(make_encoder=parts, objective=objective, total_steps=1, seed=0)
        )
        keys.append(built.train()(tiny_batch(settings), 0).contrasts[0].positives)
    assert torch.allclose(*keys) == same


def test_beta_zero_means_keys_of_the_same_weights():
    settings = SiMoSettings(count=3, ema_decay=0.0)
    method = made(settings)
    step(method, settings, 0)
    batch = tiny_batch(settings, 4)
    contrast = method(Batch((batch.views[0],) * 2, batch.index), 1).contrasts[0]
    assert_close(contrast.positives, F.normalize(contrast.queries, dim=1))


@pytest.mark.parametrize(
    ("settings", "num_queries", "message"),
    [
        (SiMoSettings(count=256), 256, "method.count=256, but .* offers 255 .*count None"),
        (SiMoSettings(count=0), 256, "method.count=0"),
        (SiMoSettings(), 1, "a micro-batch of 1 offers no negatives"),
        (SiMoSettings(queue_size=-1), 256, "method.queue_size=-1"),
        (SiMoSettings(ema_decay=1.5), 256, "method.ema_decay=1.5"),
        (SimCLRSettings(count=511), 256, "offers 510 negatives"),
        (SimCLRSettings(count=256, both_views=False), 256, "offers 255 negatives"),
        (MoCoSettings(queue_size=0), 256, "MoCo needs .*--method.queue-size 4096"),
        (MoCoSettings(ema_decay=-0.1), 256, "method.ema_decay=-0.1"),
        (CMCSettings(count=0), 256, "method.count=0; at least 1"),
        (PIRLSettings(bank_decay=1.0), 256, "method.bank_decay=1.0; .*less than 1"),
        (PIRLSettings(jigsaw_weight=1.0), 256, "method.jigsaw_weight=1.0; .*between 0 and 1"),
        (InfoMinSettings(jigsaw_weight=0.0), 256, "method.jigsaw_weight=0.0"),
        (InfoMinSettings(queue_size=0), 256, "needs .*--method.queue-size 4096"),
        (BYOLSettings(ema_decay=2.0), 256, "method.ema_decay=2.0"),
        (BYOLSettings(), 1, "a micro-batch of 1, but batch norm needs 2 images"),
        (MoCoV3Settings(count=256), 256, "offers 255 negatives"),
        (MoCoV3Settings(), 1, "a micro-batch of 1 offers no negatives"),
        (SimCLRv2Settings(count=511), 256, "offers 510 negatives"),
        (SimCLRv2Settings(queue_size=-1), 256, "method.queue_size=-1"),
        (
            SwAVSettings(queue_size=0),
            256,
            "num_prototypes=3000, but a batch of 256 and a queue of 0 give 256 features .*"
            "--method.num-prototypes 256 or less, or --method.queue-size 2744 or more",
        ),
        (SwAVSettings(num_prototypes=4097), 256, "give 4096 features"),
        (SwAVSettings(num_prototypes=1), 256, "num_prototypes=1; it must be at least 2"),
        (SwAVSettings(epsilon=0.0), 256, "method.epsilon=0.0"),
        (SwAVSettings(sinkhorn_rounds=0), 256, "method.sinkhorn_rounds=0"),
        (SwAVSettings(small_views=-1), 256, "method.small_views=-1"),
        (SwAVSettings(), 1, "batch norm needs 2 images"),
    ],
)
def test_settings_refuse_what_cannot_be_trained(settings, num_queries, message):
    with pytest.raises(InputError, match=message):
        settings.check(num_queries=num_queries)


@pytest.mark.parametrize(
    ("settings", "views", "least"),
    [
        (CPCSettings(grid=2), "patches", 12),  # 4/13 of it, rounded
        (SwAVSettings(), "small crops", 9),  # 3/7 of it, rounded
        (PIRLSettings(), "jigsaw patches", 12),
        (InfoMinSettings(), "jigsaw patches", 12),
    ],
)
def test_views_of_fewer_pixels_than_networks_take_are_refused_with_the_least_image(
    settings, views, least
):
    said = rf"data\.image_size={least - 1}, whose {views} would have 3 pixels .*--data\.image-size"
    with pytest.raises(InputError, match=f"{said} {least} or more"):
        settings.views(DataSettings(image_size=least - 1))
    assert min(settings.input_sizes(DataSettings(image_size=least))) == 4
    for tiny in (4, 8):
        with pytest.raises(InputError, match=r"--data\.image-size"):
            settings.views(DataSettings(image_size=tiny))


def test_swav_without_small_crops_takes_small_images():
    views = SwAVSettings(small_views=0).views(DataSettings(image_size=4))
    assert [view.size for view in views] == [4, 4]
