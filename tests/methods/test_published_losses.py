"""BYOL, SwAV, MoCo v3 and SimCLR v2 against their published objectives, written out in loops."""

import copy
import io
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from together import Pictures, TinyBackbone, tiny
from torch import nn
from torch.testing import assert_close

from eqco.assembly import build_components, train
from eqco.assembly.heading import heading
from eqco.contrast import Objective
from eqco.data import Batch, DataSettings, source_from_dataset
from eqco.data.pipelines import BYOL, BYOL_SECOND
from eqco.encoders import Encoder, byol_head, simclrv2_head
from eqco.methods import (
    BYOLSettings,
    CPCSettings,
    MethodParts,
    MoCoV3Settings,
    SimCLRv2Settings,
    SwAVSettings,
)
from eqco.methods.swav import balanced_assignments
from eqco.report.assessment import print_assessment
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory
from eqco.training.display import summary

N, D, TOTAL = 6, 4, 10
CLOSE = {"rtol": 1e-11, "atol": 1e-11}


class Features(nn.Module):
    feature_dim = 8

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Tanh())

    def forward(self, images):
        return self.layers(F.adaptive_avg_pool2d(images, 2))


def made(settings, objective=None, head=byol_head, steps_per_epoch=1):
    def make_encoder(number=0):
        torch.manual_seed(number)
        return Encoder(Features(), head(8, D))

    parts = MethodParts(
        make_encoder=make_encoder,
        objective=objective or Objective(temperature=0.1),
        total_steps=TOTAL,
        seed=0,
        steps_per_epoch=steps_per_epoch,
    )
    return settings.build(parts).double().train()


def batch_of(settings, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = [view.size for view in settings.views(DataSettings(image_size=10))]
    views = [
        torch.randn(N, 3, size, size, dtype=torch.float64, generator=generator) for size in sizes
    ]
    return Batch(tuple(views), torch.arange(N))


def unit(vector):
    return vector / vector.square().sum().sqrt()


def assert_same_step(method, ours, published):
    """In value, and in the gradient of every parameter that is trained."""
    assert_close(ours, published, **CLOSE)
    trained = [parameter for parameter in method.parameters() if parameter.requires_grad]
    gradients = [
        torch.autograd.grad(each, trained, retain_graph=True) for each in (ours, published)
    ]
    for mine, theirs in zip(*gradients, strict=True):
        assert_close(mine, theirs, rtol=1e-9, atol=1e-10)


def step(method, output, rate=0.1):
    """One step of SGD, and what follows it."""
    method.zero_grad()
    output.loss.backward()
    with torch.no_grad():
        for parameter in method.parameters():
            if parameter.grad is not None:
                parameter -= rate * parameter.grad
    method.after_step(output)


def test_byol_is_the_sum_of_squared_distances_in_both_directions():
    settings = BYOLSettings(ema_decay=0.5)
    method = made(settings)
    step(method, method(batch_of(settings, 1), 0))  # else both networks would be the same
    batch, network = batch_of(settings), method.key_encoder.network
    published = 0
    for here, there in (batch.views, batch.views[::-1]):
        predictions = method.predictor(method.encoder(here))
        targets = network(there).detach()
        for n in range(N):
            published += (unit(predictions[n]) - unit(targets[n])).square().sum() / N
    assert_same_step(method, method(batch, 1).loss, published)


def test_the_momentum_of_byol_rises_from_its_first_value_to_one():
    """1 − (1 − β)·(cos(πk/K) + 1)/2 after the k-th step, k from 0."""
    settings = BYOLSettings(ema_decay=0.9)
    method = made(settings)
    expected = [each.clone() for each in method.encoder.parameters()]
    for k in range(TOTAL):
        step(method, method(batch_of(settings, k), k))
        decay = 1 - (1 - 0.9) * (math.cos(math.pi * k / TOTAL) + 1) / 2
        own = method.encoder.parameters()
        expected = [
            decay * e + (1 - decay) * p.detach() for e, p in zip(expected, own, strict=True)
        ]
    assert_close(list(method.key_encoder.network.parameters()), expected)


def test_the_views_of_byol_differ_and_those_of_other_methods_follow_the_pipeline():
    first, second = BYOLSettings().views(DataSettings(pipeline="byol", image_size=32))
    assert (first.pipeline, second.pipeline) == (BYOL, BYOL_SECOND)
    first, second = BYOLSettings().views(DataSettings(pipeline="simclr", image_size=32))
    assert first == second


def published_sinkhorn(scores, epsilon=0.05, rounds=3):
    """Row by row and column by column, with exponentials."""
    Q = [[math.exp(s / epsilon) for s in row] for row in scores.t().tolist()]
    prototypes, samples = len(Q), len(Q[0])
    total = sum(map(sum, Q))
    Q = [[q / total for q in row] for row in Q]
    for _ in range(rounds):
        Q = [[q / sum(row) / prototypes for q in row] for row in Q]
        columns = [sum(row[b] for row in Q) for b in range(samples)]
        Q = [[row[b] / columns[b] / samples for b in range(samples)] for row in Q]
    found = [[row[b] * samples for row in Q] for b in range(samples)]
    return torch.tensor(found, dtype=torch.float64)


def random_scores(rows, columns, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(rows, columns, dtype=torch.float64, generator=generator) - 1


@pytest.mark.parametrize(("rows", "columns"), [(6, 5), (3, 7)])
def test_assignments_are_the_published_sinkhorn(rows, columns):
    scores = random_scores(rows, columns)
    found = balanced_assignments(scores, epsilon=0.05, rounds=3)
    assert_close(found, published_sinkhorn(scores), **CLOSE)


def test_many_rounds_use_all_prototypes_alike_and_every_row_sums_to_one():
    found = balanced_assignments(random_scores(12, 4), epsilon=0.5, rounds=200)
    assert_close(found.sum(dim=0), torch.full((4,), 3.0, dtype=torch.float64))
    assert_close(found.sum(dim=1), torch.ones(12, dtype=torch.float64))


def test_assignments_stay_finite_where_exponentials_overflow():
    found = balanced_assignments(random_scores(6, 5).float(), epsilon=1e-3, rounds=3)
    assert found.isfinite().all()
    assert_close(found.sum(dim=1), torch.ones(6))


def published_swav(method, batch, queue, temperature=0.1):
    """Each large crop's assignment, predicted by all other crops, image by image."""
    large, small = torch.cat(batch.views[:2]), torch.cat(batch.views[2:])
    embeddings = [*method.encoder(large).split(N), *method.encoder(small).split(N)]
    prototypes = method.prototypes.weight
    scores = [
        torch.stack([torch.stack([unit(z) @ p for p in prototypes]) for z in crop])
        for crop in embeddings
    ]
    total = 0
    for assigned in (0, 1):
        rows = scores[assigned].detach()
        if queue is not None:
            held = queue[:, assigned * D : (assigned + 1) * D]
            rows = torch.cat([held @ prototypes.detach().t(), rows])
        q = balanced_assignments(rows, epsilon=0.05, rounds=3)[-N:]
        others = [v for v in range(len(scores)) if v != assigned]
        part = 0
        for v in others:
            for n in range(N):
                logits = scores[v][n] / temperature
                part -= (q[n] * (logits - logits.exp().sum().log())).sum() / N
        total = total + part / len(others)
    return total / 2


SWAV = SwAVSettings(num_prototypes=5, small_views=2, queue_size=0, frozen_epochs=0)


def test_swav_is_the_published_swapped_prediction():
    method, batch = made(SWAV), batch_of(SWAV)
    assert [view.shape[-1] for view in batch.views] == [10, 10, 4, 4]
    assert_same_step(method, method(batch, 0).loss, published_swav(method, batch, None))


def test_the_queue_of_swav_begins_at_its_epoch_and_counts_once_it_is_full():
    settings = replace(SWAV, queue_size=2 * N, queue_epoch=2)
    method, held = made(settings, steps_per_epoch=2), []
    for number in range(8):
        batch = batch_of(settings, number)
        # two epochs of two steps, then two steps that fill it
        queue = torch.cat(held[-2:]) if number >= 6 else None
        output = method(batch, number)
        assert_close(output.loss, published_swav(method, batch, queue), **CLOSE)
        if number >= 4:
            crops = method.encoder(torch.cat(batch.views[:2])).detach().split(N)
            held.append(torch.cat([torch.stack([unit(z) for z in crop]) for crop in crops], dim=1))
        step(method, output)


def test_prototypes_are_frozen_at_first_and_of_length_one_always():
    method = made(replace(SWAV, frozen_epochs=1), steps_per_epoch=2)
    method.renormalise()  # in float64
    before = method.prototypes.weight.detach().clone()
    assert_close(before.norm(dim=1), torch.ones(5, dtype=torch.float64))
    for number in range(3):
        step(method, method(batch_of(SWAV, number), number))
        now = method.prototypes.weight.detach()
        assert_close(now.norm(dim=1), torch.ones(5, dtype=torch.float64))
        assert torch.allclose(now, before, rtol=0, atol=1e-12) == (number < 2)


def test_swav_has_two_large_crops_and_six_small_ones():
    views = SwAVSettings().views(DataSettings(pipeline="simclr"))
    assert [view.size for view in views] == [224] * 2 + [96] * 6
    scales = [view.pipeline.crop_scale for view in views]
    assert scales == [(0.14, 1.0)] * 2 + [(0.05, 0.14)] * 6


def published_moco_v3(method, batch, network, temperature):
    """Cross-entropy over the keys of all images, the query's own as its class, times 2τ."""
    total = 0
    for here, there in (batch.views, batch.views[::-1]):
        queries, keys = method.predictor(method.encoder(here)), network(there).detach()
        for n in range(N):
            logits = [unit(queries[n]) @ unit(keys[j]) / temperature for j in range(N)]
            total += 2 * temperature * (torch.stack(logits).logsumexp(0) - logits[n]) / N
    return total


def test_moco_v3_is_the_published_loss_with_the_momentum_moved_before_the_keys():
    """Three steps: β of step t moves the key encoder before the keys of step t are made."""
    settings, objective = MoCoV3Settings(ema_decay=0.6), Objective(temperature=0.7)
    method = made(settings, objective)
    network = copy.deepcopy(method.encoder)
    for t in range(3):
        decay = 1 - (1 - 0.6) * (1 + math.cos(math.pi * t / TOTAL)) / 2
        with torch.no_grad():
            for key, query in zip(network.parameters(), method.encoder.parameters(), strict=True):
                key.copy_(key * decay + query * (1 - decay))
        batch = batch_of(settings, t)
        output = method(batch, t)
        assert_same_step(method, output.loss, published_moco_v3(method, batch, network, 0.7))
        step(method, output)


def published_simclr_v2(method, batch, memory, temperature, alpha):
    """SimCLR's two directions with the memory's keys beside the batch, as α negatives."""
    first, second = map(method.encoder, batch.views)
    total = 0
    for queries, others in ((first, second), (second, first)):
        for n in range(N):
            keys = [view[j] for view in (others, queries) for j in range(N) if j != n]
            keys += list(memory)
            assert len(keys) == 2 * N - 2 + len(memory)
            odds = [torch.exp(unit(queries[n]) @ unit(k) / temperature) for k in keys]
            positive = torch.exp(unit(queries[n]) @ unit(others[n]) / temperature)
            total -= torch.log(positive / (positive + alpha / len(keys) * sum(odds))) / N
    return total


@pytest.mark.parametrize("alpha", [2 * N - 2 + 9, 500])
def test_simclr_v2_has_the_batch_with_gradient_and_the_memory_without(alpha):
    settings = SimCLRv2Settings(queue_size=9, ema_decay=0.5)
    method = made(settings, Objective(temperature=0.3, alpha=alpha), simclrv2_head)
    for number in range(2):
        method.warm_up(batch_of(settings, 10 + number), number)
    batch = batch_of(settings)
    output = method(batch, 0)
    published = published_simclr_v2(method, batch, method.queue.keys, 0.3, alpha)
    assert_same_step(method, output.loss, published)
    own = method.key_encoder.network(batch.views[1])
    step(method, output)
    latest = method.queue.keys.roll(-method.queue.cursor, 0)[-N:]
    assert_close(latest, torch.stack([unit(key) for key in own]))


CROPPED = DataSettings(image_size=12)  # large enough for small crops of it


def backbone():
    torch.manual_seed(0)
    return TinyBackbone()


@pytest.mark.parametrize(
    "settings",
    [BYOLSettings(), SwAVSettings(num_prototypes=8, small_views=1, queue_size=0)],
    ids=["byol", "swav"],
)
def test_a_training_without_negatives_shows_the_rank_and_no_information(settings, tmp_path):
    recipe = tiny(settings, data=CROPPED)
    recipe = replace(recipe, training=replace(recipe.training, log_every=1, diagnose_every=4))
    reports, begun = [], []
    how = {"show": reports.append, "on_start": begun.append}
    train(Pictures(), recipe, out=tmp_path / "run", encoder=backbone(), **how)
    assert "N = 16, no negatives, " in heading(begun[0], "run")[1]
    lines = RunDirectory(tmp_path / "run").read_metrics()
    assert not any("information" in line or "num_negatives" in line for line in lines)
    ranks = [line["embedding_rank"] for line in lines if "embedding_rank" in line]
    assert len(ranks) == len(reports) // 4
    assert all(1 < rank <= 4 for rank in ranks)
    assert f"embedding rank {ranks[-1]:.1f}, lr" in summary(reports[-1])


def test_prototypes_frozen_for_an_epoch_count_the_steps_of_the_loader():
    recipe = tiny(SwAVSettings(num_prototypes=8, queue_size=0), data=CROPPED)
    method = build_components(recipe, source_from_dataset(Pictures()), backbone=backbone()).method
    assert method.steps_per_epoch == 96 // 16


@pytest.mark.parametrize(
    ("settings", "remedy", "changed"),
    [
        (
            SwAVSettings(num_prototypes=110, queue_size=100),
            r"Give --method\.queue-size 80 and --method\.num-prototypes 96 or less\.",
            {"queue_size": 80, "num_prototypes": 96},
        ),
        (
            SwAVSettings(num_prototypes=90, queue_size=100),
            r"Give --method\.queue-size 80\.",
            {"queue_size": 80},
        ),
    ],
)
def test_a_queue_without_negatives_has_a_rule_of_its_own_whose_remedy_works(
    settings, remedy, changed
):
    """Of 96 images, 80 come before the same ones do again; a batch of 16 more shares prototypes."""
    source = source_from_dataset(Pictures())
    with pytest.raises(InputError, match=f"features of an image of the batch, .*{remedy}"):
        build_components(tiny(settings, data=CROPPED), source, backbone=backbone())
    recipe = tiny(replace(settings, **changed), data=CROPPED)
    build_components(recipe, source, backbone=backbone())


KNOWN = {"information": 1.25, "information_kind": "bound", "alignment": 0.5}


@pytest.mark.parametrize(
    ("settings", "line", "words"),
    [
        (BYOLSettings(), {}, "fill 3.5 dimensions (at step 9); byol has no negatives"),
        (
            CPCSettings(grid=3, similarity="dot"),
            {},
            "(at step 9); cpc compares no cosines, so that there",
        ),
        (BYOLSettings(), KNOWN, "1.25 nats of the other (at step 9)"),
    ],
)
def test_the_end_of_an_unlabelled_training_says_what_is_known(settings, line, words, tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        json.dumps({"step": 9, "embedding_rank": 3.5, **line}) + "\n"
    )
    began = {"source": "photos", "data": "photos", "images": 64}
    (tmp_path / "environment.json").write_text(json.dumps(began))
    console = Console(file=io.StringIO(), width=500)
    begun = SimpleNamespace(
        recipe=tiny(settings, data=CROPPED), source=SimpleNamespace(splits={}), backbone=None
    )
    print_assessment(console, None, begun, tmp_path)
    assert words in console.file.getvalue()
