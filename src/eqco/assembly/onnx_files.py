"""A backbone as an ONNX graph, which onnxruntime must compute alike."""

import logging
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from eqco.assembly.weights import Weights
from eqco.data import find_pipeline
from eqco.runtime.atomic_files import atomic_write
from eqco.runtime.errors import InputError, MissingExtraError

__all__ = ["write_onnx"]

# relative to the largest feature: rounding in another order, not another network
TOLERANCE = 1e-4


def write_onnx(weights: Weights, out: Path, metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Write the graph `images` (N, in_channels, size, size) -> `features` (N, D) for any N.

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
        for key, value in metadata.items():
            entry = model.metadata_props.add()
            entry.key, entry.value = key, value
        onnx.save(model, str(partial))
        refuse_other_features(weights.backbone, partial, one)
    mean, std = find_pipeline("mocov2").normalisation(in_channels)
    kind = "RGB" if in_channels == 3 else f"{in_channels} bands"
    return (
        "import onnxruntime",
        f'session = onnxruntime.InferenceSession("{out.name}")',
        f"# images: float32 (N, {', '.join(map(str, one))}), {kind} in [0, 1], then normalised:",
        f"# (images - {mean}) / {std}",
        'features = session.run(None, {"images": images})[0]',
    )


@torch.no_grad()
def refuse_other_features(backbone: nn.Module, file: Path, one: tuple[int, int, int]) -> None:
    """onnxruntime must give the backbone's features, for one image and for several."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for count in (1, 3):
        images = torch.randn(count, *one, generator=torch.Generator().manual_seed(count))
        theirs = torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
        ours = backbone(images)
        same = theirs.shape == ours.shape
        gap = float((theirs - ours).abs().max()) if same else float("inf")
        if not gap <= TOLERANCE * float(ours.abs().max()):  # also when it is not a number
            raise InputError(
                f"onnxruntime gives features that differ by {gap:.2g} from the backbone's, of at "
                f"most {float(ours.abs().max()):.2g}; nothing was written. "
                f"Export it --to safetensors."
            )
