"""The same margin in other people's code: the import that has it, or a line to paste.

Written against MoCo's own code, lightly 1.6 and pytorch-metric-learning 2.9, none of which has a
margin as an option. tests/planning/test_snippets.py runs every line.
"""

import math
from dataclasses import dataclass, replace
from textwrap import dedent
from typing import Literal

__all__ = ["Snippet", "equivalent_snippets"]

# Where the negatives come from: SiMo's batch, MoCo's queue, SimCLR's two views.
Source = Literal["batch", "queue", "both views"]


@dataclass(frozen=True)
class Snippet:
    """How to get the same loss from one library."""

    library: str
    remark: str
    code: str
    """Python to use; empty where the library cannot do it."""


def equivalent_snippets(
    *,
    symmetric: bool,
    num_queries: int,
    num_negatives: int,
    offered: int | None,
    alpha: float,
    temperature: float,
    dim: int,
    bank_rows: int = 0,
    num_banks: int = 1,
    shown: str = "",
) -> tuple[Snippet, ...]:
    """This package first, then MoCo's code, lightly and pytorch-metric-learning.

    `offered` are the negatives that the batch offers; None where a queue does, or memory banks of
    `bank_rows` images. With `symmetric` both views are queries and keys. `shown` says what of a
    method's loss the code is, where it is not all.
    """
    if bank_rows:
        make = bank_snippet if num_banks == 1 else two_banks_snippet
        return (
            commented(make(bank_rows, num_negatives, alpha, temperature, dim), shown),
            moco_snippet("batch", num_queries, num_negatives, alpha, temperature),
            *(
                Snippet(library, "It has no memory with a row for each image.", "")
                for library in ("lightly", "pytorch-metric-learning")
            ),
        )
    source: Source = "both views" if symmetric else "queue" if offered is None else "batch"
    K = num_negatives if offered is None else offered
    return (
        commented(eqco_snippet(source, num_negatives, K, alpha, temperature, dim), shown),
        moco_snippet(source, num_queries, num_negatives, alpha, temperature),
        lightly_snippet(source, K, alpha, temperature, dim),
        metric_learning_snippet(source, K, alpha, temperature, dim),
    )


def eqco_snippet(
    source: Source, num_negatives: int, offered: int, alpha: float, temperature: float, dim: int
) -> Snippet:
    """The loss alone, in a training loop of one's own."""
    remark = "In your own loop; K is counted from what you pass."
    given = "first, second" if source == "both views" else "queries, keys"
    loss = f"loss = loss_fn({given})"
    if source == "queue":
        loss = f"""slow = eqco.SlowCopy(encoder, decay=0.99)  # or old keys mislead the queries
        queue = eqco.KeyQueue({num_negatives}, dim={dim})
        queue.enqueue(slow(first_views))  # of one batch, before the first step
        keys = slow(second)  # in every step
        loss = loss_fn(encoder(first), keys, queue.negatives())
        slow.update()  # after that of the optimiser
        queue.enqueue(keys)"""
    if source == "both views" and num_negatives < offered:
        remark += f" This one uses all {offered}; alpha makes them stand in for as many."
    if source == "batch" and num_negatives < offered:
        loss = f"""rows = torch.arange(len(keys))
        pool = eqco.in_batch_negatives(keys, index=rows)
        drawn = eqco.sampled_negatives(
            pool, {num_negatives}, seed=0, step=step, index=rows, num_queries=len(keys)
        )
        loss = loss_fn(queries, keys, drawn)"""
    code = f"""
        loss_fn = eqco.{"NTXentLoss" if source == "both views" else "EqCoLoss"}(
            temperature={temperature:g}, alpha={literal(alpha)}
        )
        {loss}
        """
    return Snippet("eqco", remark, tidy(code))


def bank_snippet(
    rows: int, num_negatives: int, alpha: float, temperature: float, dim: int
) -> Snippet:
    """The loss and a memory bank, in a training loop of one's own."""
    code = f"""
        loss_fn = eqco.EqCoLoss(temperature={temperature:g}, alpha={literal(alpha)})
        bank = eqco.MemoryBank({rows}, dim={dim})
        drawn = bank.negatives(index, {num_negatives}, seed=0, step=step, shared=True)
        loss = loss_fn(queries, bank.positives(index), drawn)  # in every step
        bank.update(queries, index)  # after it
        """
    remark = "In your own loop; `index` says which images the queries are."
    return Snippet("eqco", remark, tidy(code))


def two_banks_snippet(
    rows: int, num_negatives: int, alpha: float, temperature: float, dim: int
) -> Snippet:
    """Two kinds of embeddings, each scored against the bank of the other."""
    code = f"""
        loss_fn = eqco.EqCoLoss(temperature={temperature:g}, alpha={literal(alpha)})
        bank = eqco.MemoryBank({rows}, dim={dim}, num_views=2)
        loss = 0  # in every step
        for own, queries in enumerate((first, second)):
            drawn = bank.negatives(
                index, {num_negatives}, seed=0, step=2 * step + own, view=1 - own, shared=True
            )
            loss = loss + loss_fn(queries, bank.positives(index, view=1 - own), drawn)
        bank.update(torch.cat([first, second], dim=1), index)  # after it
        """
    remark = (
        "In your own loop; `first` and `second` are embeddings of the two halves of an image, and "
        "`index` says which images they are."
    )
    return Snippet("eqco", remark, tidy(code))


def commented(snippet: Snippet, line: str) -> Snippet:
    """The snippet with a comment before its code, if there is one."""
    return replace(snippet, code=f"# {line}\n{snippet.code}") if line else snippet


def moco_snippet(
    source: Source, num_queries: int, num_negatives: int, alpha: float, temperature: float
) -> Snippet:
    """One line, after the division by T."""
    if source == "queue":
        remark = f"In moco/builder.py after `logits /= self.T`, with T={temperature:g}."
        if num_negatives % num_queries:
            fitting = max(1, round(num_negatives / num_queries)) * num_queries
            remark += (
                f" That code asks for a K that is a multiple of N: {fitting}, not {num_negatives}."
            )
            num_negatives = fitting
    else:
        remark = "In any code whose logits have the positive in column 0, after dividing by T."
    if alpha == math.inf:
        remark += " In place of the cross-entropy:"
        code = "loss = (torch.logsumexp(logits[:, 1:], dim=1) - logits[:, 0]).mean()"
    else:
        code = f"logits[:, 1:] += {shift(alpha, num_negatives)}"
    return Snippet("MoCo's code", remark, code)


def lightly_snippet(
    source: Source, num_negatives: int, alpha: float, temperature: float, dim: int
) -> Snippet:
    """lightly's NTXentLoss with α, which `eqco.integrations.lightly` has."""
    library = "lightly"
    if source == "batch":
        return Snippet(
            library,
            "Its NTXentLoss always takes keys of both views as negatives, with gradient: not SiMo.",
            "",
        )
    memory = f"memory_bank_size=({num_negatives}, {dim}), " if source == "queue" else ""
    remark = "Its NTXentLoss with alpha, in the place of its own."
    if source == "both views":
        remark += f" It uses all {num_negatives} negatives of the batch, never fewer."
    code = f"""
        from eqco.integrations.lightly import NTXentLoss

        loss_fn = NTXentLoss(temperature={temperature:g}, {memory}alpha={literal(alpha)})
        """
    return Snippet(library, remark, tidy(code))


def metric_learning_snippet(
    source: Source, num_negatives: int, alpha: float, temperature: float, dim: int
) -> Snippet:
    """pytorch-metric-learning's NTXentLoss with α, in the wrapper that takes these negatives."""
    remark = "Its NTXentLoss with alpha, in the place of its own."
    if source == "both views":
        wrapped = "losses.SelfSupervisedLoss(loss)"
        remark += f" It uses all {num_negatives} negatives of the batch, never fewer."
    elif source == "batch":
        wrapped = "losses.SelfSupervisedLoss(loss, symmetric=False)"
        remark += f" It uses all {num_negatives} other keys, never fewer; detach the keys."
    else:
        wrapped = f"losses.CrossBatchMemory(loss, {dim}, memory_size={num_negatives + 1})"
        remark += (
            " Its memory takes the batch's keys in before the loss, so that the positive and the "
            "other keys of the batch are among them: one more place for the same K. Give every "
            "image a label of its own, and `enqueue_mask` for the keys."
        )
    code = f"""
        from pytorch_metric_learning import losses

        from eqco.integrations.metric_learning import NTXentLoss

        loss = NTXentLoss(temperature={temperature:g}, alpha={literal(alpha)})
        loss_fn = {wrapped}
        """
    return Snippet("pytorch-metric-learning", remark, tidy(code))


def shift(alpha: float, num_negatives: int) -> str:
    """log(α/K) as Python.

    >>> shift(65536.0, 16)
    'math.log(65536 / 16)'
    """
    return f"math.log({literal(alpha)} / {num_negatives})"


def literal(number: float) -> str:
    """A number as Python, whole ones without a point.

    >>> literal(256.0), literal(0.5), literal(math.inf)
    ('256', '0.5', 'math.inf')
    """
    if number == math.inf:
        return "math.inf"
    return str(int(number)) if number == int(number) else repr(number)


def tidy(code: str) -> str:
    """Code without the indentation it has in this file."""
    return dedent(code).strip()
