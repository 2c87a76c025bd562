"""`eqco export`: take the encoder away, as a file that other programs load."""

from pathlib import Path
from typing import Annotated

import tyro

from eqco.assembly import push_to_hub
from eqco.assembly.export import SUFFIXES, Format, export_weights
from eqco.assembly.hub import card_header
from eqco.assembly.hub_files import HUB_CARD
from eqco.assembly.model_card import model_card, run_facts
from eqco.assembly.weights import half_of, unfinished_note
from eqco.cli.weights import AS_IN_WEIGHTS, Network
from eqco.encoders import Half
from eqco.runtime.atomic_files import (
    refuse_existing,
    refuse_existing_folder,
    refuse_unwritable,
    write_text,
)
from eqco.runtime.errors import InputError


def run(
    weights: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WEIGHTS")],
    /,
    *,
    to: Format,
    out: Path | None = None,
    preprocess: bool = False,
    half: Half | None = None,
    push: str | None = None,
    private: bool = False,
    overwrite: bool = False,
    network: Network = AS_IN_WEIGHTS,
) -> None:
    """Write a trained backbone as a plain file, checked as it is written, with a model card.

    torchvision and timm: a state dict that loads there with strict=True; onnx: a graph, compared in
    onnxruntime; safetensors: tensors and recipe, of every network; moco: a .pth in MoCo's form, for
    its scripts of linear evaluation and detection; hub: a folder for timm, huggingface_hub and
    `eqco.load`, of every network.

    Args:
        weights: a run directory, one of its checkpoints, or a file of weights.
        to: the format.
        out: the file, of hub the folder; the card goes beside it as .md, of hub into it. By default
            NAME-FORMAT in this folder.
        preprocess: of onnx: the graph takes uint8 images of any size, (N, height, width, bands),
            and resizes, cuts and normalises them itself (a few pixels differ by 1 of 255).
        half: of a run of cmc: the network for luminance or for chroma alone, which takes RGB images
            all the same; without it both, their features side by side.
        push: of hub: upload the folder as this repository, USER/NAME; log in first (hf auth login).
        private: of that repository: only for you.
        overwrite: replace files that are there.

    Examples:
        eqco export runs/simo --to safetensors
        eqco export runs/simo --to torchvision --out encoder.pth
        eqco export runs/simo --to onnx --out encoder.onnx --overwrite
        eqco export runs/simo --to onnx --preprocess
        eqco export moco_v2_800ep_pretrain.pth.tar --to onnx
        eqco export runs/simo --to hub --out my-encoder --push me/my-encoder
    """
    given = Path(weights).expanduser()
    place = given.resolve()
    name = place.name if place.is_dir() else place.stem  # a run may be called lr0.1
    file = out or Path(f"{name}-{to}{SUFFIXES[to]}")
    card = file / HUB_CARD if to == "hub" else file.with_suffix(".md")
    if card == file:
        raise InputError(f"--out {file} is the name of the card; give the weights another suffix.")
    if push is not None and to != "hub":
        raise InputError(f"--push {push} with --to {to}; only a folder of --to hub is uploaded.")
    if to == "hub":
        refuse_existing_folder(file, overwrite=overwrite)
    for each in (card,) if to == "hub" else (file, card):
        refuse_existing(each, overwrite=overwrite)
        refuse_unwritable(each)
    encoder = network.open(weights)
    if half is not None:
        encoder = half_of(encoder, half)
    facts = run_facts(encoder, given)
    exported = export_weights(
        encoder,
        to,
        file,
        epoch=facts.get("epochs", 0),
        preprocess=preprocess,
        overwrite=overwrite,
    )
    # the card lies beside the file
    usage = [line.replace(str(file), file.name) for line in exported.usage]
    text = model_card(encoder, facts, file=file.name, usage=usage, preprocess=not preprocess)
    write_text(card, card_header(encoder) + text if to == "hub" else text)
    files = file.rglob("*.safetensors") if to == "hub" else [file]
    size = sum(each.stat().st_size for each in files)
    print(f"written: {file} ({size / 1e6:.1f} MB) and {card}")
    if note := unfinished_note(encoder):
        print(note)
    print("load it with:")
    for line in exported.usage:
        print(f"    {line}")
    if not preprocess:
        print(f"{card} shows how images are prepared for it")
    if push is not None:
        print(f"uploaded to {push_to_hub(file, push, private=private)}")
