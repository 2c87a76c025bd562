"""cached_backward gives the gradient of the whole batch, whatever the micro-batch is."""

import random

import pytest
import torch
from fake_cuda import needs_fake_cuda
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

import eqco
from eqco.contrast.caching import accelerators, check_place
from eqco.runtime.errors import InputError

N = 12


def views(dtype=torch.float64, count=2):
    return torch.randn(
        count, N, 6, dtype=dtype, generator=torch.Generator().manual_seed(0)
    ).unbind()


def network(*layers):
    torch.manual_seed(1)
    first, last = nn.Linear(6, 8), nn.Linear(8, 4)
    return nn.Sequential(first, *layers, nn.Tanh(), last).double()


def gradients(*modules):
    return [each.grad for module in modules for each in module.parameters()]


def by_one_graph(encoders, inputs, loss_fn, micro_batch):
    """The same micro-batches, all graphs alive at once: what the whole batch would need."""
    embedded = [
        torch.cat([encode(chunk) for chunk in each.split(micro_batch)])
        for encode, each in zip(encoders, inputs, strict=True)
    ]
    loss = loss_fn(*embedded)
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize("micro_batch", [1, 5, 12, 100])
@pytest.mark.parametrize("loss_fn", [eqco.EqCoLoss(alpha=64), eqco.NTXentLoss(alpha=64)])
def test_the_gradient_is_that_of_the_whole_batch(loss_fn, micro_batch):
    whole, ours = network(), network()
    expected = loss_fn(*(whole(view) for view in views()))
    expected.backward()
    loss = eqco.cached_backward(ours, views(), loss_fn, micro_batch=micro_batch)
    assert_close(loss, expected.detach(), rtol=1e-12, atol=1e-12)
    assert_close(gradients(ours), gradients(whole), rtol=1e-10, atol=1e-10)


def test_dropout_draws_the_same_in_both_passes():
    loss_fn = eqco.EqCoLoss(alpha=64)
    whole, ours = network(nn.Dropout(0.4)), network(nn.Dropout(0.4))
    torch.manual_seed(5)
    expected = by_one_graph([whole] * 2, views(), loss_fn, 5)
    after = torch.rand(3)
    torch.manual_seed(5)
    assert_close(eqco.cached_backward(ours, views(), loss_fn, micro_batch=5), expected)
    assert_close(gradients(ours), gradients(whole), rtol=1e-10, atol=1e-10)
    assert_close(torch.rand(3), after, rtol=0, atol=0)


def test_two_encoders_and_a_learning_temperature():
    loss_fns = [eqco.TwoTowerLoss(alpha=64).double() for _ in range(2)]
    whole, ours = ([network(), network(nn.ReLU())] for _ in range(2))
    expected = loss_fns[0](*(encode(view) for encode, view in zip(whole, views(), strict=True)))
    expected.backward()
    loss = eqco.cached_backward(tuple(ours), views(), loss_fns[1], micro_batch=5)
    assert_close(loss, expected.detach(), rtol=1e-12, atol=1e-12)
    assert_close(gradients(*ours, loss_fns[1]), gradients(*whole, loss_fns[0]), rtol=1e-10, atol=0)


def test_three_views_and_gradients_that_add_up():
    def loss_fn(first, second, third):
        return eqco.contrastive_loss(first, second) + eqco.contrastive_loss(first, third)

    whole, ours = network(), network()
    given = views(count=3)
    for _ in range(2):
        loss_fn(*(whole(view) for view in given)).backward()
        eqco.cached_backward(ours, given, loss_fn, micro_batch=5)
    assert_close(gradients(ours), gradients(whole), rtol=1e-10, atol=1e-10)


def test_texts_come_as_dicts():
    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, *, tokens, mask):
            return self.inner(tokens * mask)

    whole, ours = Text(), Text()
    first, second = views()
    mask = (torch.arange(6) < 4).double().expand(N, 6)
    loss_fn = eqco.EqCoLoss(alpha=64)
    given = [{"tokens": view, "mask": mask} for view in (first, second)]
    loss_fn(*(whole(**each) for each in given)).backward()
    eqco.cached_backward(ours, given, loss_fn, micro_batch=5)
    assert_close(gradients(ours), gradients(whole), rtol=1e-10, atol=1e-10)


def test_running_statistics_are_updated_once():
    """As by plain accumulation over the same micro-batches."""
    loss_fn = eqco.EqCoLoss(alpha=64)
    once, ours = network(nn.BatchNorm1d(8)), network(nn.BatchNorm1d(8))
    by_one_graph([once] * 2, views(), loss_fn, 6)
    eqco.cached_backward(ours, views(), loss_fn, micro_batch=6)
    assert_close(dict(ours.named_buffers()), dict(once.named_buffers()))
    assert_close(gradients(ours), gradients(once), rtol=1e-10, atol=1e-10)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = network(nn.BatchNorm1d(8))

    def encode(self, images):
        return self.inner(images)


def test_a_method_as_encoder_updates_the_statistics_of_its_module_once():
    once, ours = network(nn.BatchNorm1d(8)), Pair()
    by_one_graph([once] * 2, views(), eqco.EqCoLoss(), 6)
    eqco.cached_backward((ours.encode, ours.encode), views(), eqco.EqCoLoss(), micro_batch=6)
    assert_close(dict(ours.inner.named_buffers()), dict(once.named_buffers()))


@needs_fake_cuda
def test_random_numbers_of_all_devices_in_use_are_kept_or_the_device_is_named():
    with FakeTensorMode():
        far = nn.Linear(6, 4, device="cuda")
        embeddings = torch.empty(12, 4, device="cuda")
    (device,) = accelerators(views(), [far])
    assert device.type == "cuda"
    check_place(embeddings, [device], 0)
    with pytest.raises(InputError, match=r"inputs\[0\] are on cuda:0.*Move inputs to cuda:0"):
        check_place(embeddings, accelerators(views(), [lambda images: far(images)]), 0)


def test_autocast_gives_what_autocast_gives():
    loss_fn = eqco.EqCoLoss(alpha=64)
    whole, ours = network().float(), network().float()
    given = views(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        expected = by_one_graph([whole] * 2, given, loss_fn, 5)
        loss = eqco.cached_backward(ours, given, loss_fn, micro_batch=5)
    assert_close(loss, expected)
    assert all(each is not None for each in gradients(ours))
    for mine, theirs in zip(gradients(ours), gradients(whole), strict=True):
        assert_close(mine, theirs, rtol=0, atol=0.02 * theirs.abs().max().item())


def test_a_scaler_scales_the_gradient():
    class Scaler:
        def scale(self, loss):
            return 1024 * loss

    plain, ours = network(), network()
    eqco.cached_backward(plain, views(), eqco.EqCoLoss())
    loss = eqco.cached_backward(ours, views(), eqco.EqCoLoss(), scaler=Scaler())
    assert loss < 10
    scaled = [1024 * each for each in gradients(plain)]
    assert_close(gradients(ours), scaled, rtol=1e-10, atol=1e-10)


class Restless(nn.Module):
    """Draws from another generator than torch's."""

    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, images):
        return self.inner(images) * (1 + random.random())


class Twins(nn.Module):
    def forward(self, images):
        return images, images


@pytest.mark.parametrize(
    ("encoder", "inputs", "settings", "message"),
    [
        (Restless(), views(), {}, r"encoder of inputs\[0\] changed between the two passes.*numpy"),
        (Twins(), views(), {}, r"returned <class 'tuple'> for a micro-batch of 8"),
        (network(), views()[0], {}, "inputs is a Tensor; give a tuple"),
        (network(), (views()[0], views()[1][:5]), {}, "inputs of 12, 5 rows"),
        (network(), (views()[0], [1, 2]), {}, r"inputs\[1\] is a list"),
        (network(), views(), {"micro_batch": 0}, "micro_batch=0"),
        ((network(),), views(), {}, "1 encoders for 2 inputs"),
        (None, views(), {}, "encoder is a NoneType; give a module or function"),
        (nn.Flatten(), views(), {}, r"embeddings of inputs\[0\] carry no gradient"),
    ],
)
def test_bad_input_is_refused(encoder, inputs, settings, message):
    with pytest.raises(InputError, match=message):
        eqco.cached_backward(encoder, inputs, eqco.EqCoLoss(), **settings)


@pytest.mark.parametrize(
    ("loss_fn", "message"),
    [
        (eqco.EqCoLoss(reduction="none"), r"a loss of shape \(12,\); it must be one number"),
        (lambda first, second: 3.0, "a loss of float"),
        (lambda first, second: first.detach().sum(), "without gradient"),
        (lambda first, second: first.sum(), r"does not depend on the embeddings of inputs\[1\]"),
    ],
)
def test_a_loss_that_is_no_number_is_refused(loss_fn, message):
    with pytest.raises(InputError, match=message):
        eqco.cached_backward(network(), views(), loss_fn)


def test_a_loss_without_one_of_the_inputs_leaves_no_gradient():
    encoder = network()
    with pytest.raises(InputError, match="does not depend"):
        eqco.cached_backward(encoder, views(), lambda first, second: first.sum())
    assert gradients(encoder) == [None] * 4


def test_weights_that_change_between_the_passes_are_found():
    encoder = network()

    def loss_fn(first, second):
        with torch.no_grad():
            encoder[0].weight.mul_(1.5)
        return eqco.contrastive_loss(first, second)

    with pytest.raises(InputError, match="weights that loss_fn changes"):
        eqco.cached_backward(encoder, views(), loss_fn)
