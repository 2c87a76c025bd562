"""Alarms: raised after 100 steps in a row, once, again after they cleared; NaN stops."""

import math

import pytest
import torch

from eqco.training.alarms import Alarms, NonFiniteLossError, require_finite
from eqco.training.diagnostics import Diagnostics, EmbeddingDiagnostics, diagnose_embeddings


def look(information, ceiling=5.0):
    return Diagnostics(
        information=information,
        information_kind="bound",
        ceiling=ceiling,
        loss=ceiling - information,
        gradient_norm_mean=1.0,
        gradient_norm_std=0.1,
        gradient_bound=2.0,
        accuracy=0.01,
        accuracy_chance=0.004,
        alignment=0.5,
        uniformity=-2.0,
        embedding_rank=1.5,
        positive_probability=0.1,
        weight_ratio=1.0,
        effective_negatives=200.0,
        weight_bias=0.01,
        num_negatives=255,
        margin=0.0,
    )


def alarms_raised(values, *, every=1, warmup=0, alarms=None):
    """(step, message) for f̂ = values(step), diagnosed every so many steps of 0 … 1000."""
    alarms = alarms or Alarms()
    found = []
    for step in range(1001):
        seen = look(values(step)) if step % every == 0 else None
        found += [(step, message) for message in alarms.check(step, 1.0, seen, warmup)]
    return found


def test_collapse_is_reported_once_at_the_hundredth_step_in_a_row():
    ((step, message),) = alarms_raised(lambda step: 0.01)
    assert step == 99
    assert message.startswith("collapse at step 99: since step 0 ")
    for words in ("information 0.010 nats", "accuracy 1.0%", "chance is 0.4%", "1.5 dimensions"):
        assert words in message


def test_steps_between_two_looks_count():
    ((step, _),) = alarms_raised(lambda step: 0.01, every=30)
    assert step == 120
    ((step, _),) = alarms_raised(lambda step: 0.01, every=250)
    assert step == 250


def test_ninety_nine_steps_are_not_enough():
    assert alarms_raised(lambda step: 0.01 if step % 100 else 1.0) == []


def test_collapse_counts_after_the_warm_up_only():
    ((step, _),) = alarms_raised(lambda step: 0.01, warmup=400)
    assert step == 499


def test_a_cleared_alarm_is_reported_again():
    steps = [step for step, _ in alarms_raised(lambda step: 1.0 if step == 500 else -0.01)]
    assert steps == [99, 600]


def test_saturation_says_what_to_raise():
    ((step, message),) = alarms_raised(lambda step: 4.951)
    assert step == 99
    assert message.startswith("saturation at step 99: since step 0 ")
    assert "log(1+alpha) = 5.000" in message
    assert "Raise alpha or the number of negatives K=255" in message
    assert alarms_raised(lambda step: 4.949) == []


def test_the_decoupled_loss_never_saturates():
    alarms = Alarms()
    assert not [alarms.check(step, 1.0, look(50.0, math.inf), 0) for step in range(300)][-1]


def test_a_healthy_training_hears_nothing():
    assert alarms_raised(lambda step: 4 * step / 1000 + 0.06) == []


@pytest.mark.parametrize(
    ("rank", "uniformity", "collapsed"),
    [(1.9, -2.0, True), (40.0, -0.04, True), (2.1, -0.06, False), (0.0, 0.0, True)],
)
def test_without_negatives_collapse_is_read_from_the_embeddings(rank, uniformity, collapsed):
    """Their rank alone would miss embeddings that differ by noise of many dimensions."""
    alarms = Alarms()
    seen = EmbeddingDiagnostics(embedding_rank=rank, uniformity=uniformity)
    found = [message for step in range(300) for message in alarms.check(step, 1.0, seen, 0)]
    assert len(found) == collapsed
    for message in found:
        assert message.startswith("collapse at step 99: since step 0 the embeddings fill ")
        assert f"{rank:.1f} dimensions" in message


@pytest.mark.parametrize(("similarity", "collapsed"), [("dot", False), ("cosine", True)])
def test_an_offset_that_all_embeddings_share_is_no_collapse_to_dot_products(similarity, collapsed):
    """It leaves a softmax of dot products as it is; to a loss of cosines all are the same then."""
    patches = torch.randn(256, 36, 64, generator=torch.Generator().manual_seed(0)) + 1.5
    seen, alarms = diagnose_embeddings(patches.mean(dim=1)), Alarms(similarity)
    assert seen.embedding_rank > 50
    found = [message for step in range(300) for message in alarms.check(step, 1.0, seen, 0)]
    assert len(found) == collapsed


def test_a_loss_that_is_no_number_neither_counts_nor_clears():
    alarms = Alarms()
    for step in range(99):
        assert alarms.check(step, 1.0, look(0.0), 0) == []
    assert alarms.check(99, math.nan, look(math.nan), 0) == []
    assert len(alarms.check(100, 1.0, look(0.0), 0)) == 1


def test_saved_and_loaded_equals_never_saved(tmp_path):
    values = [0.01 if 40 < step < 700 else 1.0 for step in range(1001)]
    expected = [step for step, _ in alarms_raised(values.__getitem__)]
    alarms, steps = Alarms(), []
    for step in range(1001):
        if step in (90, 139, 141, 800):
            torch.save(alarms.state_dict(), tmp_path / "state.pt")
            alarms = Alarms()
            alarms.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        steps += [step for _ in alarms.check(step, 1.0, look(values[step]), 0)]
    assert steps == expected == [140]


def test_a_state_that_was_given_away_does_not_change():
    alarms = Alarms()
    state = alarms.state_dict()
    alarms.check(0, 1.0, look(0.0), 0)
    assert state == Alarms().state_dict()


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_stops_with_step_reason_and_checkpoint(loss):
    with pytest.raises(NonFiniteLossError) as stop:
        require_finite(17, loss, "runs/a/last.pt")
    message = str(stop.value)
    assert message.startswith(f"stopped at step 17: the loss is {loss}. Look for a learning rate")
    assert "The last good checkpoint is kept: runs/a/last.pt" in message


def test_before_the_first_checkpoint_there_is_none_to_resume_from():
    with pytest.raises(NonFiniteLossError, match="No checkpoint was written yet"):
        require_finite(1, math.nan)
    assert require_finite(1, 0.25, "x") == 0.25
