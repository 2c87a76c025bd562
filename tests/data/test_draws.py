"""The drawn parameters have torchvision's distributions, and depend on (seed, step, view) alone."""

import math
from dataclasses import fields, replace

import pytest
import torch
from scipy import stats
from torchvision.transforms import v2

from eqco.data.parameters import Parameters, crop_boxes, draw_parameters
from eqco.data.pipelines import (
    LINEAR,
    MOCO_V1,
    MOCO_V2,
    SIMCLR,
    Pipeline,
    find_pipeline,
    pipeline_pair,
)
from eqco.runtime.errors import InputError

MANY = 20_000
SURE = 1e-4  # a true hypothesis is refused once in ten thousand seeds; the seeds are fixed


def equal(one: Parameters, other: Parameters) -> bool:
    return all(torch.equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))


@pytest.mark.parametrize(("height", "width"), [(32, 32), (100, 40), (20, 90)])
def test_crop_boxes_are_distributed_as_torchvisions(height, width):
    torch.manual_seed(0)
    transform = v2.RandomResizedCrop(32, scale=(0.2, 1.0))
    image = [torch.zeros(3, height, width)]
    theirs = [transform.make_params(image) for _ in range(4000)]
    ours = crop_boxes(draw_parameters(MOCO_V2, 4000, seed=1, step=0), height, width)
    for column, name in enumerate(("top", "left", "height", "width")):
        expected = [draw[name] for draw in theirs]
        assert stats.ks_2samp(ours[:, column].numpy(), expected).pvalue > SURE, name


@pytest.mark.parametrize(("height", "width"), [(1000, 10), (10, 1000), (1, 1), (1, 50)])
def test_crops_lie_inside_images_of_any_shape(height, width):
    boxes = crop_boxes(draw_parameters(SIMCLR, 500, seed=0, step=0), height, width)
    top, left, tall, wide = boxes.T
    assert bool((tall >= 1).all() and (wide >= 1).all() and (top >= 0).all() and (left >= 0).all())
    assert bool((top + tall <= height).all() and (left + wide <= width).all())


def test_hopeless_aspects_fall_back_to_the_centre_as_in_torchvision():
    # 10 x 1000: no crop of 20 % of the area fits; torchvision takes 10 x 13 from the middle
    boxes = crop_boxes(draw_parameters(MOCO_V2, 3, seed=0, step=0), 10, 1000)
    assert boxes.tolist() == [[0, (1000 - 13) // 2, 10, 13]] * 3


@pytest.mark.parametrize("pipeline", [MOCO_V1, MOCO_V2, SIMCLR])
def test_factors_are_uniform_over_torchvisions_ranges(pipeline):
    drawn = draw_parameters(pipeline, MANY, seed=0, step=0)
    jitter = v2.ColorJitter(
        pipeline.brightness, pipeline.contrast, pipeline.saturation, pipeline.hue
    )
    ranges = (jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue)
    for column, (low, high) in enumerate(ranges):
        uniform = stats.uniform(low, high - low)
        assert stats.kstest(drawn.factors[:, column].numpy(), uniform.cdf).pvalue > SURE
    low, high = pipeline.blur_sigma
    assert stats.kstest(drawn.sigma.numpy(), stats.uniform(low, high - low).cdf).pvalue > SURE


def test_all_24_orders_of_the_jitter_are_equally_likely():
    order = draw_parameters(MOCO_V2, MANY, seed=0, step=0).order
    assert torch.equal(order.sort(1).values, torch.arange(4).expand(MANY, 4))
    counts = torch.unique(order, dim=0, return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts.numpy()).pvalue > SURE


def test_events_happen_as_often_as_the_pipeline_says():
    drawn = draw_parameters(MOCO_V2, MANY, seed=0, step=0)
    for mask, probability in (
        (drawn.flipped, 0.5),
        (drawn.jittered, 0.8),
        (drawn.gray, 0.2),
        (drawn.blurred, 0.5),
    ):
        assert stats.binomtest(int(mask.sum()), MANY, probability).pvalue > SURE


def test_the_two_views_of_byol_are_made_in_different_ways():
    first, second = (draw_parameters(each, MANY, seed=0, step=0) for each in pipeline_pair("byol"))
    assert bool(first.blurred.all())
    assert not first.solarized.any()
    for mask, probability in ((second.blurred, 0.1), (second.solarized, 0.2)):
        assert stats.binomtest(int(mask.sum()), MANY, probability).pvalue > SURE
    assert pipeline_pair("mocov2") == (MOCO_V2, MOCO_V2)


def test_solarisation_moves_no_other_draw():
    plain, solarized = (
        draw_parameters(replace(MOCO_V2, solarize_probability=p), 8, seed=0, step=0) for p in (0, 1)
    )
    assert bool(solarized.solarized.all())
    assert equal(replace(solarized, solarized=plain.solarized), plain)


def test_pipelines_without_an_operation_never_draw_it():
    drawn = draw_parameters(LINEAR, 1000, seed=0, step=0)
    assert not torch.stack([drawn.jittered, drawn.gray, drawn.blurred]).any()
    assert bool(draw_parameters(MOCO_V1, 1000, seed=0, step=0).jittered.all())


def test_parameters_of_one_image_are_independent_of_each_other():
    drawn = draw_parameters(MOCO_V2, MANY, seed=0, step=0)
    columns = [
        drawn.area[:, 0],
        drawn.aspect[:, 0],
        *drawn.factors.T,
        drawn.sigma,
        *drawn.position.T,
    ]
    columns += [drawn.flipped, drawn.gray, drawn.blurred, drawn.jittered, drawn.order[:, 0]]
    correlation = torch.corrcoef(torch.stack([column.double() for column in columns]))
    off_diagonal = correlation - torch.eye(len(columns))
    assert off_diagonal.abs().max() < 5 / math.sqrt(MANY)


def test_views_steps_and_images_draw_independently():
    first = draw_parameters(MOCO_V2, MANY, seed=0, step=3, view=0).factors
    others = [
        draw_parameters(MOCO_V2, MANY, seed=0, step=3, view=1).factors,
        draw_parameters(MOCO_V2, MANY, seed=0, step=4, view=0).factors,
        draw_parameters(MOCO_V2, MANY, seed=1, step=3, view=0).factors,
        first.roll(1, 0),
    ]
    for other in others:
        for column in range(4):
            pair = torch.stack([first[:, column], other[:, column]])
            assert abs(float(torch.corrcoef(pair)[0, 1])) < 5 / math.sqrt(MANY)


def test_draws_are_a_function_of_seed_step_and_view():
    place = {"seed": 2, "step": 10**9, "view": 1}
    assert equal(draw_parameters(MOCO_V2, 8, **place), draw_parameters(MOCO_V2, 8, **place))
    other = draw_parameters(MOCO_V2, 8, **{**place, "view": 0})
    assert not equal(draw_parameters(MOCO_V2, 8, **place), other)


def test_the_published_tables_are_what_the_pipelines_say():
    # notes of the paper: crop, jitter b, c, s, h (p), blur p, grayscale p, flip p
    rows = {
        "mocov1": (0.2, (0.4, 0.4, 0.4, 0.4), 1.0, 0.0),
        "mocov2": (0.2, (0.4, 0.4, 0.4, 0.1), 0.8, 0.5),
        "simo": (0.2, (0.4, 0.4, 0.4, 0.1), 0.8, 0.5),
        "simclr": (0.08, (0.8, 0.8, 0.8, 0.2), 0.8, 0.5),
        "byol": (0.08, (0.4, 0.4, 0.2, 0.1), 0.8, 1.0),
        "byol-second": (0.08, (0.4, 0.4, 0.2, 0.1), 0.8, 0.1),
        "mocov3": (0.2, (0.4, 0.4, 0.2, 0.1), 0.8, 1.0),
        "mocov3-second": (0.2, (0.4, 0.4, 0.2, 0.1), 0.8, 0.1),
    }
    for name, (scale, factors, probability, blur) in rows.items():
        pipeline = find_pipeline(name)
        jitter = (pipeline.brightness, pipeline.contrast, pipeline.saturation, pipeline.hue)
        assert pipeline.crop_scale == (scale, 1.0)
        assert (jitter, pipeline.jitter_probability) == (factors, probability)
        assert (pipeline.blur_probability, pipeline.blur_sigma) == (blur, (0.1, 2.0))
        assert (pipeline.grayscale_probability, pipeline.flip_probability) == (0.2, 0.5)
    assert find_pipeline("mocov1").grayscale_first
    assert not find_pipeline("mocov2").grayscale_first


def test_impossible_pipelines_are_refused():
    with pytest.raises(InputError, match=r"hue=0.7; it must lie between 0 and 0.5"):
        replace(MOCO_V2, hue=0.7)
    with pytest.raises(InputError, match=r"crop_scale=\(0.5, 0.2\)"):
        Pipeline(crop_scale=(0.5, 0.2))
    with pytest.raises(InputError, match=r"pipeline='moco'; there are mocov1, mocov2"):
        find_pipeline("moco")
    with pytest.raises(InputError, match=r"seed=-1; it must lie between"):
        draw_parameters(MOCO_V2, 2, seed=-1, step=0)
