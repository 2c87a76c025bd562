"""Annotated images are read as they are meant, and what cannot be meant is refused by name."""

import json

import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from eqco.detection.annotations import clip
from eqco.detection.batches import TrainingBatches, example, read_image
from eqco.detection.folders import open_annotated, splits_of
from eqco.detection.squares import write_squares
from eqco.runtime.errors import InputError


@pytest.fixture
def coco(tmp_path):
    """A folder in COCO's form, and a function that changes its annotations."""
    write_squares(tmp_path, images={"train": 4, "val": 2}, side=48)
    file = tmp_path / "instances_train.json"

    def change(edit):
        content = json.loads(file.read_text())
        edit(content)
        file.write_text(json.dumps(content))
        return tmp_path

    return change


def with_boxes(*boxes, **fields):
    """Replace all annotations by these boxes in the first image."""

    def edit(content):
        content["annotations"] = [
            {"id": 7 + n, "image_id": 0, "category_id": 1, "bbox": list(box), **fields}
            for n, box in enumerate(boxes)
        ]

    return edit


def test_boxes_are_corners_and_labels_count_from_one(coco):
    folder = coco(with_boxes([3, 4, 10, 20]))
    images = open_annotated(folder, "train")
    assert images.classes == ("square", "disc")
    objects = images.objects(0)
    assert_close(objects.boxes, torch.tensor([[3.0, 4.0, 13.0, 24.0]]))
    assert objects.labels.tolist() == [1]
    assert objects.areas.tolist() == [200.0]  # of the box, where the file tells none


def test_category_ids_may_have_gaps(coco):
    def edit(content):
        with_boxes([3, 4, 10, 20])(content)
        content["categories"] = [{"id": 90, "name": "last"}, {"id": 3, "name": "first"}]
        content["annotations"][0]["category_id"] = 90

    images = open_annotated(coco(edit), "train")
    assert images.classes == ("first", "last")
    assert images.objects(0).labels.tolist() == [2]


def test_an_image_without_boxes_is_legal(coco):
    images = open_annotated(coco(with_boxes()), "train")
    assert len(images) == 4
    image, target = example(images, 0, mirrored=True)
    assert image.shape == (3, 48, 48)
    assert target["boxes"].shape == (0, 4)


@pytest.mark.parametrize(
    ("box", "fault"),
    [
        ([3, 4, 0, 20], "empty or inverted"),
        ([3, 4, -5, 20], "empty or inverted"),
        ([3, 4, float("nan"), 20], "empty or inverted"),
        ([40, 4, 20, 20], "outside the image"),
        ([-9, 4, 20, 20], "outside the image"),
        ([60, 60, 5, 5], "outside the image"),
    ],
)
def test_a_box_that_cannot_be_meant_is_refused_by_name_and_count(coco, box, fault):
    folder = coco(with_boxes([1, 1, 5, 5], box, box))
    with pytest.raises(InputError, match=f"2 boxes are {fault}: annotation 8 of 0000.png"):
        open_annotated(folder, "train")
    left = open_annotated(folder, "train", on_bad_boxes="skip")
    assert len(left.objects(0).boxes) == 1
    assert left.left_out == 2


def test_a_box_that_rounding_puts_over_the_edge_is_cut_there(coco):
    folder = coco(with_boxes([-0.4, 0, 48.9, 20]))
    assert open_annotated(folder, "train").objects(0).boxes.tolist() == [[0, 0, 48, 20]]


def test_a_strip_beyond_the_edge_is_no_box():
    _, empty, outside = clip(torch.tensor([[48.0, 0.0, 48.9, 20.0]]), torch.tensor([[48, 48]]))
    assert (empty.item(), outside.item()) == (False, True)


def test_unknown_categories_are_refused_by_name_and_count(coco):
    folder = coco(with_boxes([1, 1, 5, 5], [2, 2, 5, 5], category_id=9))
    with pytest.raises(
        InputError, match="2 annotations are of unknown categories: annotation 7 of"
    ):
        open_annotated(folder, "train")


def test_annotations_of_unknown_images_are_refused(coco):
    folder = coco(with_boxes([1, 1, 5, 5], image_id=99))
    with pytest.raises(InputError, match="1 annotation is of images that are not there"):
        open_annotated(folder, "train")


def test_missing_images_are_refused_by_name_and_count(coco):
    folder = coco(with_boxes())
    (folder / "train" / "0001.png").unlink()
    with pytest.raises(InputError, match=r"1 image is missing: .*0001\.png"):
        open_annotated(folder, "train")


def test_many_faults_are_counted_and_the_first_named(coco):
    folder = coco(with_boxes(*[[3, 4, 0, 20]] * 9))
    with pytest.raises(InputError, match=r"9 boxes are empty or inverted: .* and 4 more"):
        open_annotated(folder, "train")


@pytest.mark.parametrize("text", ["", "[]", '{"images": []}', '{"images": 3}'])
def test_a_file_in_another_form_is_refused(coco, text):
    folder = coco(with_boxes())
    (folder / "instances_train.json").write_text(text)
    with pytest.raises(InputError, match="not in COCO's form"):
        open_annotated(folder, "train")


@pytest.mark.parametrize("bbox", [[1, 2, 3], "abcd", None])
def test_a_box_of_other_than_four_numbers_is_refused(coco, bbox):
    folder = coco(lambda content: content["annotations"][0].update(bbox=bbox))
    with pytest.raises(InputError, match="must be left, top, width, height"):
        open_annotated(folder, "train")


def test_an_image_of_another_size_than_annotated_is_refused(coco):
    folder = coco(with_boxes())
    Image.new("RGB", (20, 48)).save(folder / "train" / "0000.png")
    with pytest.raises(InputError, match=r"is 20 x 48, but .* says 48 x 48"):
        read_image(open_annotated(folder, "train"), 0)


def test_splits_are_found_with_and_without_a_year(tmp_path):
    write_squares(tmp_path, images={"train2017": 2, "val2017": 1}, side=32)
    (tmp_path / "annotations").mkdir()
    for file in tmp_path.glob("instances_*.json"):
        file.rename(tmp_path / "annotations" / file.name)
    assert len(open_annotated(tmp_path, "train")) == 2
    assert list(splits_of(tmp_path)) == ["train", "val"]
    with pytest.raises(InputError, match=r"no split 'test'. It has train, val"):
        open_annotated(tmp_path, "test")
    with pytest.raises(InputError, match="holds no annotations"):
        open_annotated(tmp_path / "train2017", "train")


VOC = """<annotation><size><width>40</width><height>30</height></size>{}</annotation>"""
OBJECT = (
    "<object><name>{}</name><difficult>{}</difficult><bndbox><xmin>{}</xmin><ymin>{}</ymin>"
    "<xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"
)


@pytest.fixture
def voc(tmp_path):
    """A folder in Pascal VOC's form with two images, the second without objects."""
    for name in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "ImageSets" / "Main" / "train.txt").write_text("a\nb\n")
    (tmp_path / "ImageSets" / "Main" / "cat_train.txt").write_text("a -1\nb 1\n")
    for name in "ab":
        Image.new("RGB", (40, 30)).save(tmp_path / "JPEGImages" / f"{name}.jpg")
        (tmp_path / "Annotations" / f"{name}.xml").write_text(VOC.format(""))

    def annotate(*objects):
        text = VOC.format("".join(OBJECT.format(*each) for each in objects))
        (tmp_path / "Annotations" / "a.xml").write_text(text)
        return tmp_path

    return annotate


def test_voc_counts_pixels_from_one_and_includes_the_last(voc):
    folder = voc(("cat", 0, 1, 1, 40, 30), ("ant", 1, 11, 11, 20, 30))
    images = open_annotated(folder, "train")
    assert images.classes == ("ant", "cat")
    objects = images.objects(0)
    assert objects.boxes.tolist() == [[0, 0, 40, 30], [10, 10, 20, 30]]
    assert objects.labels.tolist() == [2, 1]
    assert objects.areas.tolist() == [1200, 200]
    assert objects.crowd.tolist() == [False, True]
    assert len(images.objects(1).boxes) == 0


def test_difficult_objects_are_not_trained_on(voc):
    images = open_annotated(voc(("cat", 0, 1, 1, 9, 9), ("cat", 1, 1, 1, 40, 30)), "train")
    assert example(images, 0, mirrored=False)[1]["boxes"].tolist() == [[0, 0, 9, 9]]


def test_voc_refuses_bad_boxes_lists_and_files(voc):
    folder = voc(("cat", 0, 20, 1, 10, 30))
    with pytest.raises(InputError, match=r"1 box is empty or inverted: object 1 of a\.jpg"):
        open_annotated(folder, "train")
    (folder / "Annotations" / "a.xml").write_text("<annotation>")
    with pytest.raises(InputError, match=r"a\.xml is damaged"):
        open_annotated(folder, "train")
    (folder / "Annotations" / "a.xml").unlink()
    with pytest.raises(InputError, match="1 image is listed without a file in Annotations: a"):
        open_annotated(folder, "train")


def test_a_mirrored_image_has_mirrored_boxes(coco):
    images = open_annotated(coco(with_boxes([3, 4, 10, 20])), "train")
    plain, boxes = example(images, 0, mirrored=False)
    mirror, mirrored = example(images, 0, mirrored=True)
    assert_close(mirror, plain.flip(2))
    assert_close(mirrored["boxes"], torch.tensor([[35.0, 4.0, 45.0, 24.0]]))
    left, top, right, bottom = boxes["boxes"][0].int().tolist()
    inside = plain[:, top:bottom, left:right]
    left, top, right, bottom = mirrored["boxes"][0].int().tolist()
    assert_close(mirror[:, top:bottom, left:right].flip(2), inside)


def test_every_epoch_shows_each_image_once_in_an_order_of_its_own(coco):
    batches = TrainingBatches(open_annotated(coco(with_boxes()), "train"), num_images=2, seed=3)
    assert batches.steps_per_epoch == 2
    epochs = [
        [number for step in (2 * epoch, 2 * epoch + 1) for number, _ in batches.numbers(step)]
        for epoch in range(8)
    ]
    assert all(sorted(epoch) == [0, 1, 2, 3] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_can_be_had_from_any_step_with_and_without_workers(coco, workers):
    images = open_annotated(coco(lambda content: None), "train")
    whole = list(TrainingBatches(images, num_images=2, seed=3).iterate(0, 4))
    later = list(TrainingBatches(images, num_images=2, seed=3, workers=workers).iterate(2, 4))
    for one, other in zip(whole[2:], later, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_cannot_be_read_is_named(coco, workers):
    images = open_annotated(coco(with_boxes()), "train")
    images.files[2].write_bytes(b"no image")
    batches = TrainingBatches(images, num_images=4, seed=3, workers=workers)
    with pytest.raises(InputError, match=r"0002\.png cannot be read"):
        list(batches.iterate(0, 1))


def test_more_images_in_a_step_than_there_are_are_refused(coco):
    images = open_annotated(coco(with_boxes()), "train")
    with pytest.raises(InputError, match=r"num_images=5, but .* has 4 images"):
        TrainingBatches(images, num_images=5, seed=0)
