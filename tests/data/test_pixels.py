"""Each operation with fixed parameters is torchvision v2's, on a float tensor with antialiasing."""

import pytest
import torch
from torch.testing import assert_close
from torchvision.transforms.v2 import functional as reference

from eqco.data.augment import CPU_LARGE, Augment, evaluation_view
from eqco.data.blur import gaussian_blur_, gaussian_taps
from eqco.data.colour import blend_, grayscale_, hue_offsets, hue_shift
from eqco.data.parameters import Parameters, crop_boxes, draw_parameters
from eqco.data.pipelines import LINEAR, MOCO_V1, MOCO_V2, PIPELINES, Pipeline, blur_radius
from eqco.data.resize import resized_crop

CLOSE = {"rtol": 0.0, "atol": 1 / 255 / 10}  # ten times closer than asked


def some_images(count: int = 8, height: int = 32, width: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, height, width), generator=generator)
    pixels[0, :, :4] = 128  # grey, black, white and pure colours among them
    pixels[0, :, 4:8] = 0
    pixels[0, :, 8:12] = 255
    pixels[0, :, 12:14] = torch.tensor([0, 255, 255])[:, None, None]
    return pixels.to(torch.uint8)


def test_crops_equal_torchvision_for_smaller_and_larger_boxes():
    images = some_images(5, 40, 60).float() / 255
    boxes = torch.tensor(
        [[0, 0, 40, 60], [3, 5, 30, 20], [39, 59, 1, 1], [0, 0, 2, 60], [7, 9, 13, 11]]
    )
    for size in (8, 24, 32, 64):
        ours = resized_crop(images, boxes, size)
        for image, box, crop in zip(images, boxes.tolist(), ours, strict=True):
            assert_close(crop, reference.resized_crop(image, *box, [size, size]), **CLOSE)


def test_a_flipped_crop_is_the_mirrored_crop():
    images = some_images(2).float() / 255
    boxes = torch.tensor([[2, 3, 20, 25], [2, 3, 20, 25]])
    plain = resized_crop(images, boxes, 32)
    flipped = resized_crop(images, boxes, 32, torch.tensor([True, False]))
    assert_close(flipped[0], plain[0].flip(2), rtol=0, atol=1e-5)
    assert_close(flipped[1], plain[1])


@pytest.mark.parametrize("shift", [-0.5, -0.4, -0.1, 0.0, 1e-4, 0.1, 0.34, 0.5])
def test_hue_equals_torchvision(shift):
    images = some_images().float() / 255
    ours = hue_shift(images, hue_offsets(torch.full((len(images),), shift)))
    assert_close(ours, reference.adjust_hue(images, shift), **CLOSE)


@pytest.mark.parametrize("factor", [0.0, 0.6, 1.0, 1.4, 1.8])
def test_brightness_contrast_and_saturation_equal_torchvision(factor):
    images = some_images(3).float() / 255
    expected = torch.stack(
        [
            reference.adjust_brightness(images[0], factor),
            reference.adjust_contrast(images[1], factor),
            reference.adjust_saturation(images[2], factor),
        ]
    )
    kind = torch.arange(3)[:, None, None, None]
    blend_(images, torch.full((3, 1, 1, 1), factor), (kind == 1).float(), (kind == 2).float())
    assert_close(images, expected, **CLOSE)


def test_grayscale_equals_torchvision_and_leaves_the_others():
    images = some_images(3).float() / 255
    expected = images.clone()
    expected[1] = reference.rgb_to_grayscale(images[1], 3)
    grayscale_(images, torch.tensor([1]))
    assert_close(images, expected, **CLOSE)


@pytest.mark.parametrize(
    ("size", "sigma"), [(32, 0.1), (32, 2.0), (64, 1.3), (224, 0.7), (224, 2.0)]
)
def test_blur_equals_torchvision(size, sigma):
    images = some_images(2, size, size).float() / 255
    radius = blur_radius(size)
    expected = reference.gaussian_blur(images, [2 * radius + 1] * 2, [sigma] * 2)
    gaussian_blur_(images, gaussian_taps(torch.full((2,), sigma), radius))
    assert_close(images, expected, **CLOSE)


def by_torchvision(image: torch.Tensor, pipeline: Pipeline, drawn: Parameters, size: int):
    """The whole pipeline for one image, one operation after the other."""
    top, left, height, width = crop_boxes(drawn, *image.shape[1:])[0].tolist()
    if size < CPU_LARGE:  # from there on the crop is rounded to eight bits, as torchvision's
        image = image.float() / 255
    image = reference.resized_crop(image, top, left, height, width, [size, size])
    image = reference.to_dtype(image, torch.float32, scale=True)
    if drawn.gray and pipeline.grayscale_first:
        image = reference.rgb_to_grayscale(image, 3)
    if drawn.jittered:
        for operation in drawn.order[0].tolist():
            name = ("brightness", "contrast", "saturation", "hue")[operation]
            factor = float(drawn.factors[0, operation])
            image = getattr(reference, f"adjust_{name}")(image, factor)
    if drawn.gray and not pipeline.grayscale_first:
        image = reference.rgb_to_grayscale(image, 3)
    if drawn.blurred:
        side = 2 * blur_radius(size) + 1
        image = reference.gaussian_blur(image, [side, side], [float(drawn.sigma)] * 2)
    if drawn.solarized:
        image = reference.solarize(image, 0.5)
    if drawn.flipped:
        image = reference.horizontal_flip(image)
    return reference.normalize(image, list(pipeline.mean), list(pipeline.std))


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize(("height", "width", "size"), [(32, 32, 32), (64, 64, 32), (50, 40, 64)])
def test_whole_pipelines_equal_torchvision_image_by_image(name, height, width, size):
    pipeline = PIPELINES[name]
    images = some_images(48, height, width)
    drawn = draw_parameters(pipeline, len(images), seed=3, step=7)
    ours = Augment(pipeline, size)(images, drawn)
    for i, image in enumerate(images):
        expected = by_torchvision(image, pipeline, drawn[i : i + 1], size)
        assert_close(ours[i], expected, rtol=0, atol=1 / 255)


def test_after_crop_is_the_rest_of_the_pipeline():
    images = some_images(40, 48, 48)
    drawn = draw_parameters(MOCO_V2, len(images), seed=0, step=0)
    boxes = crop_boxes(drawn, 48, 48)
    crops = resized_crop(images.float() / 255, boxes, 32)
    augment = Augment(MOCO_V2, 32)
    assert_close(augment.after_crop(crops, drawn), augment(images, drawn), rtol=0, atol=1e-3)


def test_large_images_go_through_in_chunks_of_any_length():
    images = some_images(7, 224, 224)
    drawn = draw_parameters(MOCO_V1, 7, seed=0, step=0)
    together = Augment(MOCO_V1, 224).after_crop(images, drawn)
    for i in range(7):
        alone = Augment(MOCO_V1, 224).after_crop(images[i : i + 1], drawn[i : i + 1])
        assert_close(together[i : i + 1], alone)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_the_rounded_result(dtype):
    images = some_images(16)
    drawn = draw_parameters(MOCO_V2, 16, seed=0, step=0)
    half = Augment(MOCO_V2, 32, dtype)(images, drawn)
    assert half.dtype == dtype
    assert_close(half, Augment(MOCO_V2, 32)(images, drawn).to(dtype))


def test_autocast_does_not_touch_the_arithmetic():
    images = some_images(16)
    drawn = draw_parameters(MOCO_V2, 16, seed=0, step=0)
    outside = Augment(MOCO_V2, 32)(images, drawn)
    with torch.autocast("cpu", torch.bfloat16):
        inside = Augment(MOCO_V2, 32)(images, drawn)
    assert_close(inside, outside)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_makes_the_same_views():
    images = some_images(64)
    drawn = draw_parameters(MOCO_V2, 64, seed=0, step=0)
    there = Augment(MOCO_V2, 32)(images.cuda(), drawn)
    assert_close(there.cpu(), Augment(MOCO_V2, 32)(images, drawn), rtol=0, atol=1e-3)


def test_the_input_is_not_changed():
    images = some_images(8).float() / 255
    before = images.clone()
    drawn = draw_parameters(MOCO_V2, 8, seed=0, step=0)
    Augment(MOCO_V2, 32)(images, drawn)
    Augment(MOCO_V2, 32).after_crop(images, drawn)
    evaluation_view(images, 32, MOCO_V2)
    assert torch.equal(images, before)


@pytest.mark.parametrize(
    ("height", "width", "size"), [(500, 375, 224), (64, 64, 32), (300, 300, 224)]
)
def test_evaluation_is_torchvisions_resize_and_centre_crop(height, width, size):
    image = some_images(1, height, width).float() / 255
    expected = reference.center_crop(reference.resize(image, [size * 256 // 224]), [size, size])
    expected = reference.normalize(expected, list(LINEAR.mean), list(LINEAR.std))
    assert_close(evaluation_view(image, size, LINEAR), expected, rtol=0, atol=1 / 255)


def test_evaluation_leaves_small_images_whole():
    image = some_images(1)
    expected = reference.normalize(image.float() / 255, list(LINEAR.mean), list(LINEAR.std))
    assert_close(evaluation_view(image, 32, LINEAR), expected)


def test_a_one_pixel_image_becomes_a_view_of_one_colour():
    image = torch.tensor([200, 30, 90], dtype=torch.uint8).view(1, 3, 1, 1)
    view = Augment(LINEAR, 32)(image, draw_parameters(LINEAR, 1, seed=0, step=0))
    assert_close(view, view[:, :, :1, :1].expand_as(view))
