"""Our AP is pycocotools' on the file itself; hand-made cases give what the definition says."""

import contextlib
import io
import json

import numpy as np
import pytest
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from eqco.detection.average_precision import METRICS, Detections, average_precision
from eqco.detection.folders import open_annotated
from eqco.detection.squares import write_squares


def random_case(folder, seed):
    """Images of many sizes with gaps in the ids, crowds and empty images; detections near them."""
    rng = np.random.default_rng(seed)
    write_squares(folder, images={"val": 12}, side=320, objects=6, seed=seed)
    file = folder / "instances_val.json"
    content = json.loads(file.read_text())
    for entry in content["annotations"]:
        # objects from 6 to 106 pixels: small, medium and large ones
        side = int(rng.choice([8, 20, 50, 110]))
        left, top = (int(v) for v in rng.integers(0, 320 - side, 2))
        entry["bbox"], entry["area"] = [left, top, side, side], side * side * 0.8
        entry["iscrowd"] = int(rng.random() < 0.1)
        entry["category_id"] = int(rng.choice([3, 7]))
        entry["image_id"] = 5 * entry["image_id"] + 100
    for entry in content["images"]:
        entry["id"] = 5 * entry["id"] + 100
    content["categories"] = [{"id": i, "name": n} for i, n in [(3, "a"), (7, "b"), (9, "none")]]
    file.write_text(json.dumps(content))
    results = []
    for entry in content["annotations"]:
        for _ in range(int(rng.integers(0, 3))):
            jitter = rng.normal(0, 0.1 * entry["bbox"][2], 4)
            box = np.array(entry["bbox"]) + jitter
            box[2:] = box[2:].clip(2)
            wrong = rng.random() < 0.2
            category = int(rng.choice([3, 7, 9])) if wrong else entry["category_id"]
            results.append((entry["image_id"], category, box.round(2), float(rng.random())))
    return file, content, results


def by_pycocotools(file, results):
    """The reference: pycocotools on the annotation file, results in its own form."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(file))
        found = truth.loadRes(
            [
                {"image_id": i, "category_id": c, "bbox": box.tolist(), "score": score}
                for i, c, box, score in results
            ]
        )
        evaluation = COCOeval(truth, found, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation


def as_detections(content, results):
    label = {3: 1, 7: 2, 9: 3}
    for entry in content["images"]:
        mine = [each for each in results if each[0] == entry["id"]]
        boxes = torch.tensor(np.array([box for _, _, box, _ in mine]).reshape(-1, 4))
        boxes[:, 2:] += boxes[:, :2]
        yield Detections(
            boxes,
            torch.tensor([label[c] for _, c, _, _ in mine], dtype=torch.int64),
            torch.tensor([score for *_, score in mine], dtype=torch.float64),
        )


@pytest.mark.parametrize("seed", range(5))
def test_ap_equals_pycocotools_on_random_predictions(tmp_path, seed):
    file, content, results = random_case(tmp_path, seed)
    expected = by_pycocotools(file, results)
    images = open_annotated(tmp_path, "val")
    scores = average_precision(list(as_detections(content, results)), images)
    assert scores.overall == pytest.approx(
        {n: v for n, v in zip(METRICS, expected.stats[:6], strict=True) if v >= 0}, abs=1e-12
    )
    assert 0 < scores.overall["AP"] < 1
    assert set(scores.classes) == {"a", "b"}  # "none" has no objects to find
    for place, name in enumerate(("a", "b")):
        precision = expected.eval["precision"][:, :, place, 0, 2]
        assert scores.classes[name]["AP"] == pytest.approx(precision.mean(), abs=1e-12)
        assert scores.classes[name]["AP50"] == pytest.approx(precision[0].mean(), abs=1e-12)


def perfect(images):
    return [
        Detections(objects.boxes, objects.labels, torch.ones(len(objects.labels)))
        for objects in map(images.objects, range(len(images)))
    ]


@pytest.fixture
def images(tmp_path):
    write_squares(tmp_path, images={"val": 6}, side=96, seed=1)
    return open_annotated(tmp_path, "val")


def test_the_truth_itself_has_ap_one(images):
    scores = average_precision(perfect(images), images)
    assert scores.overall["AP"] == pytest.approx(1)
    assert scores.classes["disc"] == pytest.approx({"AP": 1, "AP50": 1})


def test_nothing_found_is_ap_zero(images):
    nothing = Detections(torch.empty(0, 4), torch.empty(0, dtype=torch.int64), torch.empty(0))
    scores = average_precision([nothing] * len(images), images)
    assert scores.overall["AP"] == 0


def test_boxes_of_three_quarters_overlap_count_below_that_alone(images):
    # cutting a quarter of the width leaves IoU 0.75: found at 0.50, 0.55, …, 0.75, which is 6 of 10
    found = [
        each._replace(
            boxes=torch.stack(
                [
                    each.boxes[:, 0],
                    each.boxes[:, 1],
                    each.boxes[:, 0] + 0.7501 * (each.boxes[:, 2] - each.boxes[:, 0]),
                    each.boxes[:, 3],
                ],
                dim=1,
            )
        )
        for each in perfect(images)
    ]
    scores = average_precision(found, images)
    assert scores.overall["AP50"] == scores.overall["AP75"] == pytest.approx(1)
    assert scores.overall["AP"] == pytest.approx(0.6)
