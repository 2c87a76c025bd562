"""Several processes fine-tune one detector."""

from pathlib import Path

import pytest
import torch
from together import ended, start
from torch.testing import assert_close

from eqco.detection import write_squares

SCRIPT = Path(__file__).with_name("detecting_together.py")


@pytest.mark.end_to_end
def test_processes_hold_the_same_weights_and_statistics_and_share_the_testing(warm, tmp_path):
    data = write_squares(tmp_path / "squares", images={"train": 4}, side=64)
    for code, _, errors in ended(start(warm, [SCRIPT, data, tmp_path], 2)):
        assert code == 0, errors
    one, two = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    # each saw other images: equal weights show averaged gradients, equal statistics Sync BN
    assert_close(one["trained"], two["trained"], rtol=0, atol=0)
    assert_close(one["precise"], two["precise"], rtol=0, atol=0)
    assert not torch.equal(
        one["trained"]["backbone.body.bn1.running_mean"],
        one["precise"]["backbone.body.bn1.running_mean"],
    )
    assert len(one["found"]) == 4
    assert_close(one["found"], two["found"], rtol=0, atol=0)
