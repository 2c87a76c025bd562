"""A recipe trained by Lightning takes eqco's own steps; and the callback reads anyone's loss."""

from dataclasses import replace

import lightning_together
import pytest
import torch
from lightning_together import module_of, trainer_for
from together import CASES, Pictures, TinyBackbone, ended, start
from torch import nn
from torch.testing import assert_close

import eqco
from eqco.assembly import build_components
from eqco.data import source_from_dataset
from eqco.recipes import recipe_to_dict
from eqco.training.loop import optimise, warm_up

lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

from eqco.integrations.lightning import ContrastiveDiagnostics, EqCoModule  # noqa: E402

# Lightning asks torch's pytree in a way that warns
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")


def own_steps(recipe, count, precision="float32"):
    """What eqco's own loop holds after so many steps."""
    torch.manual_seed(0)
    components = build_components(recipe, source_from_dataset(Pictures()), backbone=TinyBackbone())
    components = replace(components, precision=precision)
    components.method.train()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    warm_up(components)
    for step in range(count):
        for group in components.optimiser.param_groups:
            group["lr"] = components.learning_rate(step)
        output = optimise(components, scaler, components.loader.micro_batches(step), step)
        components.method.after_step(output)
    return components.method.state_dict()


def assert_same_state(ours, expected):
    assert ours.keys() == expected.keys()
    for name in expected:
        assert_close(ours[name], expected[name], rtol=0, atol=0, msg=name)


@pytest.mark.parametrize(
    "case", ["simo", "simo, queue", "mocov2", "simclr", "simo, in two micro-batches", "toy"]
)
def test_a_step_is_eqcos_own_to_the_bit(case):
    recipe = CASES[case]
    module = module_of(recipe)
    trainer_for(recipe, max_steps=8).fit(module)  # into the second epoch of six steps
    assert_same_state(module.method.state_dict(), own_steps(recipe, 8))


def test_precision_is_the_trainers():
    recipe = CASES["simo"]
    module = module_of(recipe)
    trainer_for(recipe, max_steps=2, precision="bf16-mixed").fit(module)
    expected = own_steps(recipe, 2, precision="bfloat16")
    assert_same_state(module.method.state_dict(), expected)
    plain = own_steps(recipe, 2)
    name = "encoder.backbone.layers.0.weight"
    assert not torch.equal(plain[name], expected[name])


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.parametrize("case", ["simo, queue", "simo, in two micro-batches"])
def test_resumed_in_the_middle_of_an_epoch_it_is_as_never_stopped(case, tmp_path):
    recipe = CASES[case]
    saving = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=4, save_top_k=-1)
    first = trainer_for(recipe, max_steps=5, enable_checkpointing=True, callbacks=[saving])
    first.fit(module_of(recipe))
    resumed = module_of(recipe)
    trainer_for(recipe, max_steps=9).fit(resumed, ckpt_path=tmp_path / "step=4.ckpt")
    assert_same_state(resumed.method.state_dict(), own_steps(recipe, 9))


def test_a_checkpoint_opens_as_a_module_with_its_recipe(tmp_path):
    recipe = CASES["simo, queue"]
    module, trainer = module_of(recipe), trainer_for(recipe, max_steps=2)
    trainer.fit(module)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    opened = EqCoModule.load_from_checkpoint(
        tmp_path / "last.ckpt", data=source_from_dataset(Pictures()), encoder=TinyBackbone()
    )
    assert recipe_to_dict(opened.recipe) == recipe_to_dict(recipe)
    assert_same_state(opened.method.state_dict(), module.method.state_dict())
    assert opened.encoder(torch.zeros(2, 3, 8, 8)).shape == (2, 4)


def test_loss_and_diagnostics_are_logged():
    recipe = CASES["simo"]
    recipe = replace(recipe, training=replace(recipe.training, diagnose_every=2))
    trainer = trainer_for(recipe, max_steps=2)
    trainer.fit(module_of(recipe))
    seen = trainer.logged_metrics
    assert {"loss", "contrast/information", "contrast/positive_probability"} <= seen.keys()
    assert seen["contrast/num_negatives"] == 3


def test_what_lightning_cannot_do_as_the_recipe_says_is_refused():
    recipe = CASES["simo, in two micro-batches"]
    with pytest.raises(eqco.InputError, match=r"accumulate_grad_batches=1\), but the recipe has"):
        trainer_for(CASES["simo"], max_steps=1).fit(module_of(recipe))
    training = replace(recipe.training, accumulation="cached")
    with pytest.raises(eqco.InputError, match="accumulation=cached"):
        module_of(replace(recipe, training=training))
    opened = module_of(recipe)
    opened.configure_model()
    opened.built_for = 2
    with pytest.raises(eqco.InputError, match="built for 2 processes and is trained by 1"):
        trainer_for(recipe, max_steps=1).fit(opened)
    with pytest.raises(eqco.InputError, match="not built yet"):
        _ = module_of(recipe).encoder


@pytest.mark.end_to_end
def test_two_processes_under_ddp_are_one(warm, tmp_path):
    warm.load("eqco.integrations.lightning")
    workers = start(warm, [lightning_together.__file__, tmp_path], 2, NODE_RANK="0")
    for code, _, errors in ended(workers):
        assert code == 0, errors
    expected = own_steps(lightning_together.TOGETHER, 3)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert found.keys() == expected.keys()
        for name in expected:
            assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5, msg=name)


class Theirs(lightning.LightningModule):
    """Someone's SimCLR."""

    def __init__(self, criterion):
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.criterion = nn.Linear(6, 4), criterion

    def training_step(self, batch, batch_idx):
        return self.criterion(self.encoder(batch[0]), self.encoder(batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def batches():
    return [torch.randn(2, 8, 6, generator=torch.Generator().manual_seed(n)) for n in range(4)]


def loader():
    return torch.utils.data.DataLoader(batches(), batch_size=None)


class Kept(lightning.Callback):
    """Keeps what is logged in each step."""

    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.seen.append(dict(trainer.callback_metrics))


@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
def test_the_callback_logs_what_diagnose_says_of_anyones_loss():
    module, kept = Theirs(eqco.EqCoLoss(temperature=0.3, alpha=32)), Kept()
    callbacks = [ContrastiveDiagnostics("criterion", every=2), kept]
    trainer_for(CASES["simo"], max_steps=4, callbacks=callbacks).fit(module, loader())
    for step, metrics in enumerate(kept.seen):
        views = batches()[step // 2 * 2]  # of the last step that was looked at
        with torch.no_grad():
            pair = [module.encoder(each) for each in views]
        expected = eqco.diagnose(*pair, temperature=0.3, alpha=32)
        for name in ("information", "positive_probability", "effective_negatives"):
            assert float(metrics[f"contrast/{name}"]) == pytest.approx(getattr(expected, name))
    assert not module.criterion._forward_hooks


@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
def test_the_callback_refuses_what_it_cannot_read():
    module = Theirs(nn.CosineSimilarity())
    with pytest.raises(eqco.InputError, match="has the modules encoder, criterion"):
        trainer_for(CASES["simo"], max_steps=1, callbacks=[ContrastiveDiagnostics("loss")]).fit(
            module, loader()
        )
    with pytest.raises(eqco.InputError, match="CosineSimilarity has no attribute"):
        trainer_for(
            CASES["simo"], max_steps=1, callbacks=[ContrastiveDiagnostics("criterion")]
        ).fit(module, loader())
    with pytest.raises(eqco.InputError, match="every=0"):
        ContrastiveDiagnostics("criterion", every=0)
