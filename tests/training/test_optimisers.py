"""SGD with the published settings; LARS and AdamW against hand-worked steps and literal loops."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from eqco.runtime.errors import InputError
from eqco.training.optimisers import LARS, adamw, load_optimiser, sgd


def parameter(values):
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


def network():
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)).double()
    for each in net.parameters():
        each.data = torch.randn(each.shape, dtype=torch.float64, generator=generator)
    return net


def set_gradients(net, step):
    generator = torch.Generator().manual_seed(100 + step)
    for each in net.parameters():
        each.grad = torch.randn(each.shape, dtype=torch.float64, generator=generator)


def test_sgd_decays_biases_too_and_its_second_step_has_momentum():
    bias = parameter([2.0])
    optimiser = sgd([bias], 0.1, sgd_momentum=0.5, weight_decay=0.25)
    bias.grad = torch.ones_like(bias)
    # g = 1 + 0.25·2 = 1.5;  b = 2 − 0.1·1.5 = 1.85
    optimiser.step()
    assert_close(bias.data, torch.tensor([1.85], dtype=torch.float64))
    # g = 1 + 0.25·1.85 = 1.4625;  v = 0.5·1.5 + 1.4625 = 2.2125;  b = 1.85 − 0.22125
    optimiser.step()
    assert_close(bias.data, torch.tensor([1.62875], dtype=torch.float64))


def test_sgd_has_the_published_settings():
    defaults = sgd([parameter([1.0])], 0.03).defaults
    assert (defaults["lr"], defaults["momentum"], defaults["weight_decay"]) == (0.03, 0.9, 1e-4)
    assert not defaults["nesterov"]


def test_lars_takes_two_hand_worked_steps():
    weight = parameter([[3.0, 4.0]])
    optimiser = LARS([weight], 2.0, sgd_momentum=0.5, weight_decay=0.0, trust_coefficient=0.1)
    weight.grad = torch.tensor([[0.0, 10.0]], dtype=torch.float64)
    # ‖w‖ = 5, ‖g‖ = 10: factor 0.1·5/10 = 0.05; v = 2·0.05·(0, 10) = (0, 1)
    optimiser.step()
    assert_close(weight.data, torch.tensor([[3.0, 3.0]], dtype=torch.float64))
    # ‖w‖ = √18, g = (1, 0): factor 0.1·√18; v = 0.5·(0, 1) + 2·0.1·√18·(1, 0)
    weight.grad = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    optimiser.step()
    expected = torch.tensor([[3.0 - 0.2 * math.sqrt(18), 2.5]], dtype=torch.float64)
    assert_close(weight.data, expected)


def test_lars_adds_weight_decay_before_it_measures_the_gradient():
    weight = parameter([[3.0, 4.0]])
    weight.grad = torch.zeros_like(weight)
    LARS([weight], 1.0, weight_decay=0.5, trust_coefficient=0.1).step()
    # g = 0.5·w, ‖g‖ = 2.5: factor 0.1·5/2.5 = 0.2; v = 0.2·0.5·w = 0.1·w
    assert_close(weight.data, torch.tensor([[2.7, 3.6]], dtype=torch.float64))


def test_lars_leaves_biases_and_batch_norm_without_decay_and_adaptation():
    bias = parameter([3.0, 4.0])
    bias.grad = torch.tensor([1.0, -1.0], dtype=torch.float64)
    LARS([bias], 0.5, weight_decay=0.9).step()
    assert_close(bias.data, torch.tensor([2.5, 4.5], dtype=torch.float64))


def test_lars_moves_a_weight_of_zeros_by_the_plain_rate():
    weight = parameter([[0.0, 0.0]])
    weight.grad = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    LARS([weight], 0.5).step()
    assert_close(weight.data, torch.tensor([[-0.5, -1.0]], dtype=torch.float64))


def test_lars_is_the_literal_loop():
    net, rate, mu, decay, trust = network(), 0.3, 0.9, 1e-2, 0.02
    literal = [each.detach().clone() for each in net.parameters()]
    velocity = [torch.zeros_like(each) for each in literal]
    optimiser = LARS(
        net.parameters(), rate, sgd_momentum=mu, weight_decay=decay, trust_coefficient=trust
    )
    for step in range(6):
        set_gradients(net, step)
        for i, each in enumerate(net.parameters()):
            w, g, local = literal[i], each.grad.clone(), 1.0
            if w.dim() > 1:
                g = g + decay * w
                local = trust * math.sqrt((w * w).sum()) / math.sqrt((g * g).sum())
            velocity[i] = mu * velocity[i] + rate * local * g
            literal[i] = w - velocity[i]
        optimiser.step()
    for each, expected in zip(net.parameters(), literal, strict=True):
        assert_close(each.data, expected, rtol=1e-12, atol=1e-12)


def by_the_rate_outside(rates, gradients, start, trust=0.1, mu=0.9):
    """LARS as MoCo v3's code has it: the rate multiplies the momentum."""
    weight, velocity = start.clone(), torch.zeros_like(start)
    for rate, gradient in zip(rates, gradients, strict=True):
        velocity = mu * velocity + trust * weight.norm() / gradient.norm() * gradient
        weight = weight - rate * velocity
    return weight


@pytest.mark.parametrize(("rates", "same"), [([0.3] * 3, True), ([0.3, 0.3, 0.1], False)])
def test_lars_differs_from_moco_v3s_by_how_a_falling_rate_acts_on_earlier_gradients(rates, same):
    generator = torch.Generator().manual_seed(0)
    start, *gradients = torch.randn(4, 2, 3, dtype=torch.float64, generator=generator)
    weight = nn.Parameter(start.clone())
    optimiser = LARS([weight], rates[0], weight_decay=0.0, trust_coefficient=0.1)
    for rate, gradient in zip(rates, gradients, strict=True):
        optimiser.param_groups[0]["lr"] = rate
        weight.grad = gradient
        optimiser.step()
    theirs = by_the_rate_outside(rates, gradients, start)
    assert torch.allclose(weight.data, theirs, rtol=1e-12, atol=1e-12) == same


def test_lars_ignores_the_scale_of_a_gradient_but_for_biases():
    one, other = network(), network()
    for net, scale in ((one, 1.0), (other, 1000.0)):
        set_gradients(net, 0)
        for each in net.parameters():
            each.grad *= scale
        LARS(net.parameters(), 0.1, weight_decay=0.0).step()
    assert_close(one[0].weight, other[0].weight)
    assert not torch.allclose(one[0].bias, other[0].bias)


def test_lars_passes_over_parameters_without_gradient_and_keeps_gradients():
    still, moved = parameter([[1.0]]), parameter([[1.0]])
    moved.grad = torch.ones_like(moved)
    LARS([still, moved], 0.1, weight_decay=0.5).step()
    assert still.item() == 1
    assert moved.grad.item() == 1


def test_lars_runs_a_closure_with_gradient():
    weight = parameter([[2.0]])
    optimiser = LARS([weight], 0.1)

    def closure():
        optimiser.zero_grad()
        loss = (weight**2).sum()
        loss.backward()
        return loss

    assert optimiser.step(closure).item() == 4
    assert weight.item() < 2


def test_adamw_is_the_literal_loop():
    """Loshchilov and Hutter: the decay is taken off the parameter, not added to the gradient."""
    net, rate, beta, decay = network(), 0.03, 0.8, 0.1
    literal = [each.detach().clone() for each in net.parameters()]
    first, second = ([torch.zeros_like(each) for each in literal] for _ in range(2))
    optimiser = adamw(net.parameters(), rate, sgd_momentum=beta, weight_decay=decay)
    for step in range(1, 6):
        set_gradients(net, step)
        for i, each in enumerate(net.parameters()):
            first[i] = beta * first[i] + (1 - beta) * each.grad
            second[i] = 0.999 * second[i] + 0.001 * each.grad**2
            mean, square = first[i] / (1 - beta**step), second[i] / (1 - 0.999**step)
            literal[i] = literal[i] - rate * decay * literal[i]
            literal[i] = literal[i] - rate * mean / (square.sqrt() + 1e-8)
        optimiser.step()
    for each, expected in zip(net.parameters(), literal, strict=True):
        assert_close(each.data, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("make", [sgd, LARS, adamw])
def test_saved_and_loaded_equals_never_saved(make):
    net = network()
    optimiser = make(net.parameters(), 0.1)
    for step in range(3):
        set_gradients(net, step)
        optimiser.step()
    other = network()
    other.load_state_dict(net.state_dict())
    resumed = make(other.parameters(), 0.7)
    resumed.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    for step in range(3, 6):
        for each, stepping in ((net, optimiser), (other, resumed)):
            set_gradients(each, step)
            stepping.step()
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("make", [sgd, LARS, adamw])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate=0.0; it must be a finite number greater than 0"),
        ({"learning_rate": math.inf}, "learning_rate=inf"),
        ({"sgd_momentum": 1.0}, "sgd_momentum=1.0; it must be at least 0 and less than 1"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0; it must be a finite number, 0 or more"),
    ],
)
def test_bad_settings_are_refused(make, settings, message):
    with pytest.raises(InputError, match=message):
        make([parameter([1.0])], **{"learning_rate": 0.1, **settings})


def test_lars_refuses_a_trust_coefficient_of_0():
    with pytest.raises(InputError, match=r"trust_coefficient=0\.0"):
        LARS([parameter([1.0])], 0.1, trust_coefficient=0.0)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_state_of_another_layout_and_another_way_of_computing_is_continued(layout):
    """Saved by torch's plain SGD in its default layout; continued with fused, in any."""
    torch.manual_seed(0)
    plain = torch.nn.Parameter(torch.randn(4, 3, 2, 2))
    theirs = torch.optim.SGD([plain], lr=0.1, momentum=0.9, foreach=True)
    gradients = torch.randn(3, 4, 3, 2, 2)
    plain.grad = gradients[0]
    theirs.step()
    ours = torch.nn.Parameter(plain.detach().clone(memory_format=layout))
    optimiser = sgd([ours], 0.1, weight_decay=0.0)
    load_optimiser(optimiser, theirs.state_dict())
    assert optimiser.param_groups[0]["fused"]
    for gradient in gradients[1:]:
        plain.grad, ours.grad = gradient.clone(), gradient.clone(memory_format=layout)
        theirs.step()
        optimiser.step()
    assert_close(ours, plain)
