"""CMC, PIRL and InfoMin against their published objectives, written out with loops."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from methods.test_contract import NUM_IMAGES, D, N, made, tiny_batch
from torch.testing import assert_close

from eqco.contrast import Objective
from eqco.methods import CMCSettings, InfoMinSettings, MethodParts, PIRLSettings
from eqco.methods.jigsaw import jigsaw_patches
from eqco.runtime.errors import InputError

TEMPERATURE = 0.3
INDEX = torch.arange(N) * 3 % NUM_IMAGES  # the places of the batch's images, each once


def batch_of(settings):
    return replace(tiny_batch(settings), index=INDEX)


def made_with_bank(settings):
    method = made(settings, objective=Objective(temperature=TEMPERATURE))
    method.bank.rows = F.normalize(method.bank.rows, dim=2)  # drawn in float32
    return method


def drawn_rows(contrast, n):
    """The keys that query n is scored against."""
    negatives = contrast.negatives
    if negatives.indices is not None:
        return negatives.keys[negatives.indices[n]]
    return torch.stack(
        [key for k, key in enumerate(negatives.keys) if k not in negatives.excluded[n].tolist()]
    )


def softmax_loss(query, positive, negatives):
    """−log of the positive's share of e^{cosine/τ} over all keys."""
    exps = [(F.normalize(query, dim=0) @ key / TEMPERATURE).exp() for key in (positive, *negatives)]
    return -(exps[0] / sum(exps)).log()


def nce_loss(query, positive, negatives, normaliser):
    """Each key against noise of K/n, with p = e^{cosine/τ}/Z."""
    query, noise = F.normalize(query, dim=0), len(negatives) / NUM_IMAGES
    p = (query @ positive / TEMPERATURE).exp() / normaliser
    loss = -(p / (p + noise)).log()
    for key in negatives:
        p = (query @ key / TEMPERATURE).exp() / normaliser
        loss = loss - (noise / (p + noise)).log()
    return loss


def published(queries, positives, contrast, normaliser):
    """The mean over queries of one of the two losses."""
    losses = []
    for n in range(N):
        given = queries[n], positives[n], drawn_rows(contrast, n)
        losses.append(softmax_loss(*given) if normaliser is None else nce_loss(*given, normaliser))
    return sum(losses) / N


def compare(method, output, expected):
    """The same value, and the same gradient to every parameter."""
    assert_close(output.loss, expected, rtol=1e-11, atol=1e-11)
    parameters = [each for each in method.parameters() if each.requires_grad]
    for ours, theirs in zip(
        torch.autograd.grad(output.loss, parameters),
        torch.autograd.grad(expected, parameters),
        strict=True,
    ):
        assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


def first_normaliser(settings, which):
    """Z = n · mean of e^{cosine/τ} over all pairs of the batch that `made` warms up with."""
    contrast = made_with_bank(settings).contrasts(tiny_batch(settings, 50), 0)[which]
    total, count = 0.0, 0
    for n in range(N):
        query = F.normalize(contrast.queries[n].detach(), dim=0)
        for key in (contrast.positives[n], *drawn_rows(contrast, n)):
            total, count = total + math.exp(query @ key / TEMPERATURE), count + 1
    return NUM_IMAGES * total / count


SHARED = {"one draw": True, "a draw for each": False}


@pytest.mark.parametrize("shared", SHARED.values(), ids=SHARED)
@pytest.mark.parametrize("loss", ["softmax", "nce"])
def test_cmc_is_the_published_sum_of_both_directions(loss, shared):
    """Luminance meets the bank of colour, colour that of luminance; each row is then moved halfway
    to its own new embedding.
    """
    settings = CMCSettings(count=9, shared=shared, loss=loss)
    method = made_with_bank(settings)
    batch, banks = batch_of(settings), method.bank.rows.clone()
    output = method(batch, 2)
    luminance, chroma = method.encoder(batch.views[0]).split(D, dim=1)
    expected = 0.0
    for which, (queries, other) in enumerate(((luminance, banks[1]), (chroma, banks[0]))):
        contrast = output.contrasts[which]
        assert set(map(tuple, drawn_rows(contrast, 0).tolist())) <= set(map(tuple, other.tolist()))
        z = None if loss == "softmax" else first_normaliser(settings, which)
        expected = expected + published(queries, other[INDEX], contrast, z)
    compare(method, output, expected)

    method.after_step(output)
    for bank, new in ((0, luminance), (1, chroma)):
        for n, row in enumerate(INDEX.tolist()):
            mixed = 0.5 * banks[bank, row] + 0.5 * new[n].detach() / new[n].norm().detach()
            banks[bank, row] = mixed / mixed.norm()
    assert_close(method.bank.rows, banks, rtol=1e-12, atol=1e-12)


def jigsaw_embeddings(method, views, step):
    """A head on each of nine patches, in the drawn order, and a linear layer on all nine."""
    patches = jigsaw_patches(views, seed=0, step=step)
    features = method.encoder.features(patches.flatten(0, 1))
    parts = method.jigsaw.head(features).view(N, 9, D)
    rows = []
    for n in range(N):
        row = torch.cat([parts[n, place] for place in range(9)])
        rows.append(method.jigsaw.joint.weight @ row + method.jigsaw.joint.bias)
    return torch.stack(rows)


@pytest.mark.parametrize("loss", ["softmax", "nce"])
def test_pirl_is_the_published_mixture_and_only_images_move_the_bank(loss):
    settings = PIRLSettings(count=9, loss=loss, jigsaw_weight=0.3)
    method = made_with_bank(settings)
    batch, bank = batch_of(settings), method.bank.rows[0].clone()
    output = method(batch, 2)
    images = method.encoder(batch.views[0])
    expected = 0.0
    for which, (queries, weight) in enumerate(
        ((images, 0.7), (jigsaw_embeddings(method, batch.views[1], 2), 0.3))
    ):
        z = None if loss == "softmax" else first_normaliser(settings, which)
        part = published(queries, bank[INDEX], output.contrasts[which], z)
        expected = expected + weight * part
    compare(method, output, expected)

    method.after_step(output)
    for n, row in enumerate(INDEX.tolist()):
        mixed = 0.5 * bank[row] + 0.5 * images[n].detach() / images[n].norm().detach()
        bank[row] = mixed / mixed.norm()
    assert_close(method.bank.rows[0], bank, rtol=1e-12, atol=1e-12)


def test_infomin_is_half_the_loss_of_moco_and_half_that_of_the_jigsaw():
    settings = InfoMinSettings(queue_size=30)
    method = made(settings, objective=Objective(temperature=TEMPERATURE, alpha=200.0))
    batch, queue = tiny_batch(settings), method.queue.negatives().keys.clone()
    output = method(batch, 2)
    keys = F.normalize(method.key_encoder.network(batch.views[1]).detach(), dim=1)
    expected = 0.0
    for queries in (method.encoder(batch.views[0]), jigsaw_embeddings(method, batch.views[2], 2)):
        for n in range(N):
            query = F.normalize(queries[n], dim=0)
            positive = (query @ keys[n] / TEMPERATURE).exp()
            negative = sum((query @ key / TEMPERATURE).exp() for key in queue)
            # Eq. 12: α/K in front of the sum
            loss = -(positive / (positive + 200 / len(queue) * negative)).log()
            expected = expected + 0.5 * loss / N
    assert len(queue) == 30
    compare(method, output, expected)


def parts(**changes):
    def make_encoder(number=0, in_channels=None):
        raise AssertionError("refused before anything is built")

    given = {"objective": Objective(temperature=0.2), "total_steps": 1, "seed": 0}
    return MethodParts(make_encoder=make_encoder, **given, **changes)


@pytest.mark.parametrize("channels", [1, 4])
def test_cmc_refuses_images_that_have_no_colours(channels):
    with pytest.raises(InputError, match=f"method cmc splits red.* the images have {channels} ban"):
        CMCSettings(count=9).build(parts(num_images=50, channels=channels))


@pytest.mark.parametrize("settings", [CMCSettings(count=NUM_IMAGES), PIRLSettings()])
def test_more_negatives_than_the_bank_has_rows_are_refused(settings):
    with pytest.raises(
        InputError,
        match=rf"method.count={settings.count}, but a bank of 72 images offers 71 .*count 71 .*"
        rf"--objective.alpha {settings.count}",
    ):
        made(settings)
