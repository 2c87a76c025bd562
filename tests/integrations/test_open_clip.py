"""open_clip's loss with one of its models: its numbers without α, two towers' with it."""

import pytest
import torch
from torch.testing import assert_close

import eqco

open_clip = pytest.importorskip("open_clip", reason="open_clip_torch is not installed")
from open_clip.model import CLIP  # noqa: E402

from eqco.integrations.open_clip import ClipLoss  # noqa: E402


@pytest.fixture(scope="module")
def model():
    """A model of open_clip with random weights, in float64."""
    torch.manual_seed(0)
    vision = {"layers": 1, "width": 16, "head_width": 8, "patch_size": 8, "image_size": 16}
    text = {"context_length": 6, "vocab_size": 50, "width": 16, "heads": 2, "layers": 1}
    made = CLIP(8, vision, text, output_dict=True, init_logit_bias=-1.0).double()
    made.logit_scale.data += 0.1
    return made


def step(model, loss_fn):
    """Loss and gradients of a batch."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(6, 3, 16, 16, dtype=torch.float64, generator=generator)
    texts = torch.randint(1, 50, (6, 6), generator=generator)
    found = loss_fn(**model(images, texts), output_dict=True)
    loss = found["contrastive_loss"]
    model.zero_grad()
    loss.backward()
    return loss.detach(), {name: each.grad for name, each in model.named_parameters()}


def test_without_alpha_it_is_theirs_in_every_parameter(model):
    ours, expected = step(model, ClipLoss()), step(model, open_clip.ClipLoss())
    assert_close(ours, expected, rtol=1e-9, atol=1e-11)
    assert ours[1]["logit_scale"].abs() > 1e-3
    assert ours[1]["logit_bias"] == 0


def test_with_alpha_and_ids_it_is_the_loss_of_two_towers(model):
    images, texts = torch.randn(2, 6, 8).unbind()
    ids = torch.tensor([0, 1, 2, 3, 4, 0])
    ours = ClipLoss(alpha=4096)(images, texts, torch.tensor(10.0), ids=ids)
    assert_close(ours, eqco.TwoTowerLoss(temperature=0.1, alpha=4096)(images, texts, ids=ids))


def test_several_processes_need_gradients_of_all_and_to_be_there():
    with pytest.raises(eqco.InputError, match="gather_with_grad=False with world_size=2"):
        ClipLoss(world_size=2)
    with pytest.raises(eqco.InputError, match="use_horovod"):
        ClipLoss(use_horovod=True)
    loss_fn = ClipLoss(gather_with_grad=True, world_size=2)
    with pytest.raises(eqco.InputError, match=r"torch\.distributed has 1"):
        loss_fn(*torch.randn(2, 4, 8).unbind(), torch.tensor(10.0))
