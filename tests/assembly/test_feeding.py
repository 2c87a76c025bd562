"""What an exported file says of its input gives the features of `eqco embed`, without eqco."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

from eqco.assembly import load, open_weights
from eqco.assembly.export import export_weights
from eqco.assembly.onnx_files import prepared
from eqco.cli.main import main
from eqco.runtime.errors import InputError

pytestmark = pytest.mark.end_to_end

SIZES = ((100, 140), (150, 73), (73, 73), (72, 90), (40, 30), (64, 64))  # of images of 64 pixels


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Photographs larger and smaller than the network's images, one of them turned by its EXIF."""
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for number, (width, height) in enumerate(SIZES):
        rough = Image.fromarray(random.integers(0, 256, (9, 9, 3), dtype=np.uint8))
        exif = Image.Exif()
        exif[0x0112] = 6 if number == 1 else 1
        rough.resize((width, height)).save(folder / f"{number}.jpg", exif=exif)
    Image.fromarray(random.integers(0, 256, (80, 90), dtype=np.uint8)).save(folder / "grey.png")
    return folder


@pytest.fixture(scope="module")
def run(make_run):
    return make_run(backbone="resnet18")


@pytest.fixture(scope="module")
def embedded(run, photos, tmp_path_factory):
    """What `eqco embed` gives."""
    out = tmp_path_factory.mktemp("embedded") / "features.npz"
    assert main(["embed", str(run), str(photos), "--out", str(out), "--device", "cpu"]) == 0
    with np.load(out) as content:
        return content["names"].tolist(), content["features"]


def without_eqco(code, folder, *arguments):
    """Run code in a process that has no eqco; what it prints, as JSON."""
    guard = "import sys; sys.modules['eqco'] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", guard + code, *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return np.array(json.loads(done.stdout))


CALLS = {
    "torchvision": "features = model(images).tolist()",
    "timm": "features = model(images).tolist()",
    "onnx": "features = session.run(None, {'images': images.numpy()})[0].tolist()",
}


@pytest.mark.parametrize("to", CALLS)
def test_the_code_of_the_card_gives_the_features_of_embed(to, run, photos, embedded, tmp_path):
    file = tmp_path / f"encoder.{'onnx' if to == 'onnx' else 'pth'}"
    assert main(["export", str(run), "--to", to, "--out", str(file)]) == 0
    card = file.with_suffix(".md").read_text()
    loading, images = re.findall(r"```(?:python)?\n(.*?)```", card, flags=re.DOTALL)[:2]
    loading = loading.replace("features = session.run", "# features = session.run")
    names, expected = embedded
    code = "\n".join(
        [
            "import json, sys, torch",
            loading,
            images,
            f"paths = [sys.argv[1] + '/' + name for name in {names!r}]",
            "images = torch.stack([preprocess(path) for path in paths])",
            "with torch.no_grad():",
            f"    {CALLS[to]}",
            "print(json.dumps(features))",
        ]
    )
    found = without_eqco(code, tmp_path, photos)
    assert np.abs(found - expected).max() <= 1e-5 * max(1, np.abs(expected).max())


def test_timms_own_transform_gives_the_features_of_embed(run, photos, embedded, tmp_path, capsys):
    assert main(["export", str(run), "--to", "timm", "--out", str(tmp_path / "a.pth")]) == 0
    said = capsys.readouterr().out
    assert f'checkpoint_path="{tmp_path / "a.pth"}"' in said  # loads from where it was written
    usage = "\n".join(line[4:] for line in said.splitlines() if line.startswith("    "))
    names, expected = embedded
    # timm has no rule of its own for images whose shorter side is below 73
    large = [number for number, name in enumerate(names) if name in ("0.jpg", "1.jpg", "2.jpg")]
    code = "\n".join(
        [
            "import json, torch",
            "from PIL import Image, ImageOps",
            usage,
            f"paths = [sys.argv[1] + '/' + name for name in {[names[n] for n in large]!r}]",
            "pictures = [ImageOps.exif_transpose(Image.open(path)) for path in paths]",
            "images = torch.stack([transform(picture) for picture in pictures])",
            "print(json.dumps(model(images).tolist()))",
        ]
    )
    found = without_eqco(code, tmp_path, photos)
    assert np.abs(found - expected[large]).max() <= 1e-5 * max(1, np.abs(expected).max())


@torch.no_grad()
def test_a_graph_with_preprocessing_takes_pictures_of_any_size(run, tmp_path):
    weights, file = open_weights(run), tmp_path / "encoder.onnx"
    usage = export_weights(weights, "onnx", file, preprocess=True).usage
    assert "# images: uint8 (N, height, width, 3), RGB, of one size each call" in usage
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    for width, height in (*SIZES, (301, 207)):
        pixels = random.integers(0, 256, (2, height, width, 3), dtype=np.uint8)
        theirs = session.run(None, {"images": pixels})[0]
        ours = weights.backbone(prepared(pixels, weights.image_size)).numpy()
        assert np.abs(theirs - ours).max() <= 1e-2 * np.abs(ours).max()
    with pytest.raises(InputError, match=r"only a graph \(--to onnx\) can hold"):
        export_weights(weights, "timm", tmp_path / "a.pth", preprocess=True)


def test_a_loaded_encoder_takes_paths_pictures_arrays_and_tensors(run, photos, embedded):
    names, expected = embedded
    encoder, place = load(run), names.index("0.jpg")
    path = photos / "0.jpg"
    picture = Image.open(path)
    array = np.asarray(picture)
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    for given in (path, str(path), picture, array, tensor, tensor[None], [path], array[None]):
        found = encoder.embed(given)
        assert found.shape == (1, 512)
        np.testing.assert_allclose(found[0].numpy(), expected[place], rtol=1e-5, atol=1e-6)
    floats = encoder.embed(array.astype(np.float32) / 255)  # resized without rounding to 8 bits
    assert np.abs(floats[0].numpy() - expected[place]).max() < 0.02 * np.abs(expected[place]).max()
    every = encoder.embed([photos / name for name in names], batch_size=3)
    np.testing.assert_allclose(every.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_picture_is_turned_upright_as_its_file_is(run, photos, embedded):
    names, expected = embedded
    found = load(run).embed(Image.open(photos / "1.jpg"))  # whose EXIF turns it
    place = names.index("1.jpg")
    np.testing.assert_allclose(found[0].numpy(), expected[place], rtol=1e-5, atol=1e-6)


def test_a_loaded_encoder_says_what_range_it_expects(run):
    encoder = load(run)
    loud = np.full((70, 70, 3), 255.0, dtype=np.float32)
    with pytest.raises(
        InputError, match=r"from 255 to 255; .* in \[0, 1\]. Divide by 255, or give uint8"
    ):
        encoder.embed(loud)
    with pytest.raises(InputError, match=r"values up to 255; .* normalised images.*embed"):
        encoder(torch.full((1, 3, 64, 64), 255.0))
    with pytest.raises(InputError, match="has 4 bands of 8 bits, and the encoder takes 3"):
        encoder.embed(np.zeros((70, 70, 4), dtype=np.uint8))
    with pytest.raises(InputError, match="there are no images"):
        encoder.embed([])
    with pytest.raises(InputError, match=r"nowhere\.jpg cannot be read"):
        encoder.embed(Path("nowhere.jpg"))
    assert not encoder.training


def test_an_encoder_in_training_mode_stays_so_where_an_image_is_refused(run, photos):
    encoder = load(run).train()
    with pytest.raises(InputError, match=r"nowhere\.jpg cannot be read"):
        encoder.embed([photos / "0.jpg", "nowhere.jpg"], batch_size=1)
    assert encoder.training
    assert encoder.backbone.training
