"""A backbone as an ONNX graph, which onnxruntime must compute alike."""

import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eqco.assembly.weights import Weights
from eqco.data import evaluation_view, find_pipeline
from eqco.data.bands import from_array
from eqco.data.cropping import as_tensor, centre_crop_image
from eqco.data.resize import bordered_side
from eqco.runtime.atomic_files import atomic_write
from eqco.runtime.errors import InputError, MissingExtraError

__all__ = ["write_onnx"]

# relative to the largest feature: rounding in another order, not another network
TOLERANCE = 1e-4
# onnxruntime's resize and Pillow's differ by 1 of 255 in up to a twentieth of the pixels
RESIZE_TOLERANCE = 1e-2


def write_onnx(
    weights: Weights, out: Path, metadata: Mapping[str, str], *, preprocess: bool = False
) -> tuple[str, ...]:
    """Write the graph `images` -> `features` (N, D) for any N.

    Images are prepared, (N, in_channels, size, size); with `preprocess` they are as they come,
    uint8 (N, height, width, in_channels), and the graph prepares them.

    Returns:
        Lines that show how to run it.
    """
    in_channels, image_size = weights.in_channels, weights.image_size
    try:
        import onnx
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "onnx", "export") from error
    one = (in_channels, image_size, image_size)
    images = torch.randn(2, *one, generator=torch.Generator().manual_seed(0))
    with atomic_write(out) as partial:
        with warnings.catch_warnings():  # torch's exporter tells of its own future
            warnings.simplefilter("ignore")
            logging.getLogger("torch.onnx").setLevel(logging.ERROR)
            program = torch.onnx.export(
                weights.backbone,
                (images,),
                dynamo=True,
                verbose=False,
                input_names=["images"],
                output_names=["features"],
                dynamic_shapes=({0: torch.export.Dim("count")},),
            )
        assert program is not None
        model = program.model_proto
        if preprocess:
            model = with_preprocessing(model, weights)
        for key, value in metadata.items():
            entry = model.metadata_props.add()
            entry.key, entry.value = key, value
        onnx.save(model, str(partial))
        refuse_other_features(weights, partial, preprocess=preprocess)
    given = f"float32 (N, {', '.join(map(str, one))}), prepared as the card shows"
    if preprocess:
        kind = "RGB" if in_channels == 3 else f"{in_channels} bands"
        given = f"uint8 (N, height, width, {in_channels}), {kind}, of one size each call"
    return (
        "import onnxruntime",
        f'session = onnxruntime.InferenceSession("{out}")',
        f"# images: {given}",
        'features = session.run(None, {"images": images})[0]',
    )


def with_preprocessing(model: Any, weights: Weights) -> Any:
    """The graph with resize, centre crop and normalisation in front, for uint8 (N, H, W, C)."""
    import onnx
    from onnx import helper, numpy_helper

    size, bands = weights.image_size, weights.in_channels
    mean, std = (
        np.array(each, dtype=np.float32).reshape(1, bands, 1, 1)
        for each in find_pipeline("mocov2").normalisation(bands)
    )
    constants = {
        "zero": np.array([0]), "two": np.array([2]), "three": np.array([3]),
        "half": np.array([0.5], dtype=np.float32), "full": np.float32(255),
        "size": np.array([size]), "border": np.array([bordered_side(size)]),
        "axes": np.array([2, 3]), "size_both": np.array([size, size]), "mean": mean, "std": std,
    }  # fmt: skip
    # as `resized_sides` and `centre_crop_image`: integers, and a half rounded to even
    steps: list[tuple[str, str, str, dict[str, Any]]] = [
        ("Transpose", "images", "planes", {"perm": [0, 3, 1, 2]}),
        ("Shape", "planes", "shape", {}),
        ("Slice", "shape zero two", "outer", {}),
        ("Slice", "shape two three", "height", {}),
        ("Gather", "shape three", "width", {}),
        ("Min", "height width", "shorter", {}),
        ("Less", "shorter border", "is_small", {}),
        ("Where", "is_small size border", "side", {}),
        ("Mul", "side height", "side_height", {}),
        ("Mul", "side width", "side_width", {}),
        ("Div", "side_height shorter", "new_height", {}),
        ("Div", "side_width shorter", "new_width", {}),
        ("Concat", "new_height new_width", "new_sides", {"axis": 0}),
        ("Concat", "outer new_sides", "new_shape", {"axis": 0}),
        (
            "Resize", "planes - - new_shape", "resized",
            {"mode": "linear", "antialias": 1, "exclude_outside": 1},
        ),
        ("Sub", "new_sides size_both", "room", {}),
        ("Cast", "room", "room_float", {"to": onnx.TensorProto.FLOAT}),
        ("Mul", "room_float half", "middle", {}),
        ("Round", "middle", "middle_whole", {}),
        ("Cast", "middle_whole", "start", {"to": onnx.TensorProto.INT64}),
        ("Add", "start size_both", "end", {}),
        ("Slice", "resized start end axes", "cut", {}),
        ("Cast", "cut", "values", {"to": onnx.TensorProto.FLOAT}),
        ("Div", "values full", "scaled", {}),
        ("Sub", "scaled mean", "centred", {}),
        ("Div", "centred std", "prepared", {}),
    ]  # fmt: skip
    nodes = [
        helper.make_node(
            kind, ["" if each == "-" else each for each in inputs.split()], [output], **options
        )
        for kind, inputs, output, options in steps
    ]
    uint8, float32 = onnx.TensorProto.UINT8, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "preprocessing",
        [helper.make_tensor_value_info("images", uint8, ["count", "height", "width", bands])],
        [helper.make_tensor_value_info("prepared", float32, ["count", bands, size, size])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    front = helper.make_model(graph, opset_imports=model.opset_import)
    front.ir_version = model.ir_version
    front = onnx.compose.add_prefix(front, "pre/", rename_inputs=False, rename_outputs=False)
    model = onnx.compose.add_prefix(model, "net/", rename_outputs=False)
    merged = onnx.compose.merge_models(front, model, io_map=[("prepared", "net/images")])
    onnx.checker.check_model(merged)
    return merged


@torch.no_grad()
def refuse_other_features(weights: Weights, file: Path, *, preprocess: bool) -> None:
    """onnxruntime must give the backbone's features, for one image and for several."""
    import onnxruntime

    size, bands = weights.image_size, weights.in_channels
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for count, height, width in (
        (1, 2 * size, 3 * size),
        (3, size + 1, size),
        (1, size // 2, size),
    ):
        generator = torch.Generator().manual_seed(count)
        if preprocess:
            shape = (count, height, width, bands)
            given = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
            images = prepared(given.numpy(), size)
        else:
            given = images = torch.randn(count, bands, size, size, generator=generator)
        theirs = torch.from_numpy(session.run(None, {"images": given.numpy()})[0])
        ours = weights.backbone(images)
        same = theirs.shape == ours.shape
        gap = float((theirs - ours).abs().max()) if same else float("inf")
        allowed = RESIZE_TOLERANCE if preprocess else TOLERANCE
        if not gap <= allowed * float(ours.abs().max()):  # also when it is not a number
            raise InputError(
                f"onnxruntime gives features that differ by {gap:.2g} from the backbone's, of at "
                f"most {float(ours.abs().max()):.2g}; nothing was written. "
                f"Export it --to safetensors."
            )


def prepared(pixels: np.ndarray, size: int) -> Tensor:
    """What `eqco embed` makes of images (N, H, W, C) in uint8, (N, C, size, size)."""
    cuts = [as_tensor(centre_crop_image(from_array(each), size, "an image")) for each in pixels]
    stacked = torch.stack(cuts).permute(0, 3, 1, 2)
    return evaluation_view(stacked, size, find_pipeline("mocov2"))
