"""What a setting means before any of it runs: margin, rate, bytes, steps, and what to expect."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from eqco.assembly.parts import check_queue
from eqco.methods import MethodSettings
from eqco.planning.counts import KeyCounts, count_keys, counts_within, whole_loss_bytes
from eqco.planning.footprint import logits_bytes, queue_bytes
from eqco.planning.snippets import Snippet, equivalent_snippets
from eqco.recipes import Recipe, named_recipe
from eqco.recipes.profiles import method_at
from eqco.runtime.errors import InputError
from eqco.theory import (
    eqco_margin,
    is_guaranteed_bound,
    largest_overshoot,
    positive_prior,
    scaled_learning_rate,
)
from eqco.theory.rules import require_positive

__all__ = ["IMAGENET", "ContrastPlan", "Plan", "own_key_share", "plan"]

IMAGENET = 1_281_167
# An estimate that may exceed the truth by less than this is not worth a warning.
NOTABLE_OVERSHOOT = 0.1
# Queries whose own older key is in the queue: from this share on it is worth a warning.
NOTABLE_OWN_KEYS = 0.1
FEWEST_FOR_BATCH_NORM = 16
LOW_TEMPERATURE = 0.1
# A batch like the smallest of study-small-batch, and what served it best there.
SMALL_BATCH = 32
FILLED_UP_TO = 255
ALPHA_FOR_SMALL_BATCHES = 4096


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A setting, worked out; bytes as integers. Of a method without negatives this is all."""

    framework: str
    num_queries: int
    learning_rate: float
    dim: int
    queue_bytes: int
    dataset_size: int
    epochs: int
    steps_per_epoch: int
    total_steps: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ContrastPlan(Plan):
    """The plan of a method with negatives; information in nats."""

    num_negatives: int
    negatives_offered: int | None
    """What the batch offers each query; None with a queue alone, which may have any length."""
    negatives_in_batch: int
    """Those of K that are of the batch."""
    negatives_in_queue: int
    """Those of K that are kept of earlier batches."""
    alpha: float
    temperature: float
    margin: float
    positive_prior: float
    ceiling: float
    information_kind: Literal["bound", "estimate"]
    largest_overshoot: float
    """By how much f̂ may exceed the truth; infinite where nothing limits it."""
    bank_bytes: int
    """Of the memory banks, with a row for each image."""
    logits_bytes: int
    """The matrix of similarities, which is not held here."""
    loss_bytes: int
    """What the loss holds instead, at the most, with what is drawn from banks."""
    snippets: tuple[Snippet, ...]
    """The same in other libraries; none has a memory beside the batch."""


def plan(
    framework: str = "simo",
    *,
    num_queries: int | None = None,
    num_negatives: int | None = None,
    queue_size: int | None = None,
    memory: int | None = None,
    alpha: float | None = None,
    temperature: float | None = None,
    base_learning_rate: float | None = None,
    dim: int | None = None,
    dataset_size: int = IMAGENET,
    epochs: int | None = None,
) -> Plan:
    """Work out a setting. What is not given is the published recipe's.

    Args:
        framework: a name of `eqco.recipes.RECIPES`, such as simo or mocov2.
        num_queries: N, queries per batch over all processes; for SimCLR, pairs.
        num_negatives: K, in the batch and in a queue.
        queue_size: those of K in a queue beside the batch.
        memory: bytes for queue and loss, in place of K: the longest queue that fits.
        alpha: the number of negatives imitated; math.inf: the decoupled loss; K: plain InfoNCE.
        temperature: τ.
        base_learning_rate: the rate for 256 queries.
        dim: D, the size of queries and keys.
        dataset_size: training images.
        epochs: passes over them.

    Returns:
        A `ContrastPlan`, or for a method without negatives a `Plan`, which has no K and no α.

    >>> worked_out = plan("simo", num_queries=512, num_negatives=16, alpha=256)
    >>> round(worked_out.margin, 4), worked_out.learning_rate, worked_out.steps_per_epoch
    (0.5545, 0.06, 2502)
    """
    recipe = named_recipe(framework)
    n = recipe.training.num_queries if num_queries is None else num_queries
    dim = recipe.encoder.embedding_dim if dim is None else dim
    epochs = recipe.training.epochs if epochs is None else epochs
    tau = recipe.objective.temperature if temperature is None else temperature
    base = recipe.optimiser.base_learning_rate if base_learning_rate is None else base_learning_rate
    check_numbers(n, dim, dataset_size, epochs, tau, base)
    settings, method = recipe.optimiser, recipe.method
    steps = dataset_size // n
    common: dict[str, Any] = {
        "framework": framework,
        "num_queries": n,
        "learning_rate": scaled_learning_rate(base, n, settings.reference, rule=settings.rule),
        "dim": dim,
        "dataset_size": dataset_size,
        "epochs": epochs,
        "steps_per_epoch": steps,
        "total_steps": steps * epochs,
    }
    chosen = {"num-negatives": num_negatives, "queue-size": queue_size, "memory": memory}
    if method.num_negatives(n) is None:
        refuse_negatives(framework, {**chosen, "alpha": alpha})
        check_without_negatives(method, n, temperature)
        check_published_queue(recipe, n, dataset_size)
        warnings = (no_negatives(framework), *warnings_on_batch(recipe, n))
        held = queue_bytes(method.queue_size, method.queue_width * dim)
        return Plan(**common, queue_bytes=held, warnings=warnings)

    published = method_at(recipe, n)
    chooses = num_negatives is not None and num_negatives != published.num_negatives(n)
    method = published.able_to_draw() if chooses else published
    if memory is None:
        counts = count_keys(
            method,
            n,
            num_negatives=num_negatives,
            queue_size=queue_size,
            dataset_size=dataset_size,
        )
    else:
        refuse_beside_memory(chosen)
        counts = counts_within(method, n, dim, memory)
    count, offered = counts.total, method.num_batch_negatives(n)
    alpha = recipe.objective.alpha if alpha is None else alpha
    plain = alpha is None
    alpha = float(count) if alpha is None else alpha
    decoupled = alpha == math.inf
    if not alpha > 0:
        raise InputError(
            f"--alpha={alpha}; it says how many negatives those present stand in for, and must be "
            f"greater than 0, or inf for the decoupled loss."
        )

    limited = method.independent_negatives and not decoupled
    guaranteed = limited and is_guaranteed_bound(alpha, count)
    overshoot = largest_overshoot(alpha, count) if limited else math.inf
    return ContrastPlan(
        **common,
        num_negatives=count,
        negatives_offered=offered,
        negatives_in_batch=counts.batch,
        negatives_in_queue=counts.queue,
        alpha=alpha,
        temperature=tau,
        margin=math.inf if decoupled else eqco_margin(alpha, count, tau),
        positive_prior=0.0 if decoupled else positive_prior(alpha),
        ceiling=math.log1p(alpha),
        information_kind="bound" if guaranteed else "estimate",
        largest_overshoot=overshoot,
        queue_bytes=queue_bytes(counts.queue, dim),
        bank_bytes=queue_bytes(method.num_banks * dataset_size, dim),
        logits_bytes=logits_bytes(n * method.queries_per_image, count),
        loss_bytes=whole_loss_bytes(method, n, dim, counts, bank_rows=dataset_size),
        warnings=(
            *notes_on_drawing(published, method, count, offered),
            *warnings_on_alpha(recipe, method, count, alpha, overshoot, plain),
            *warnings_on_sizes(recipe, n, counts, dataset_size),
            *advice_on_small_batches(method, n, counts),
        ),
        # a queue beside the batch, or many queries of one image, have no counterpart there
        snippets=()
        if (counts.batch and counts.queue) or method.queries_per_image > 2
        else equivalent_snippets(
            symmetric=method.symmetric and method.num_contrasts == 2,
            num_queries=n,
            num_negatives=count,
            offered=offered,
            alpha=alpha,
            temperature=tau,
            dim=dim,
            bank_rows=dataset_size if method.num_banks else 0,
            num_banks=method.num_banks,
            shown=method.one_contrast,
        ),
    )


def no_negatives(framework: str) -> str:
    """What is absent in the plan of a method without negatives."""
    return (
        f"{framework} has no negatives: there is no K, alpha, margin or f̂, and EqCo has nothing to "
        f"change. Training shows the rank of the embeddings, which falls if they collapse."
    )


def refuse_negatives(framework: str, given: Mapping[str, object]) -> None:
    """Refuse what is about negatives for a method that has none."""
    for name, value in given.items():
        if value is not None:
            raise InputError(
                f"--{name}={value}, but {framework} has no negatives. Leave it out, or choose "
                f"another --framework."
            )


def check_without_negatives(
    method: MethodSettings, num_queries: int, temperature: float | None
) -> None:
    """Refuse a batch that training refuses, and a temperature that plays no part."""
    if num_queries < 2:
        raise InputError(
            f"--num-queries={num_queries}, but {method.name} has batch norm, which needs 2 images. "
            f"Raise --num-queries."
        )
    if temperature is not None and not method.has_temperature:
        raise InputError(
            f"--temperature={temperature}, but the loss of {method.name} has none. Leave it out, "
            f"or choose another --framework."
        )


def check_published_queue(recipe: Recipe, num_queries: int, dataset_size: int) -> None:
    """Refuse a data set for which training refuses the recipe's queue."""
    training = replace(recipe.training, num_queries=num_queries)
    try:
        check_queue(replace(recipe, training=training), dataset_size // num_queries)
    except InputError as error:
        raise InputError(
            f"--dataset-size={dataset_size} with --num-queries={num_queries} is too small for "
            f"{recipe.method.name} as published, which eqco train refuses: {error} A plan is of "
            f"the published queue: raise --dataset-size."
        ) from error


def refuse_beside_memory(chosen: Mapping[str, int | None]) -> None:
    """Refuse what --memory chooses itself."""
    for name in ("num-negatives", "queue-size"):
        if chosen[name] is not None:
            raise InputError(
                f"--{name}={chosen[name]} and --memory were both given; --memory chooses K. Give "
                f"one of them."
            )


def check_numbers(
    num_queries: int, dim: int, dataset_size: int, epochs: int, temperature: float, base: float
) -> None:
    """Refuse what no training could have, in the words of the options."""
    counts = {"--num-queries": num_queries, "--dim": dim}
    counts |= {"--dataset-size": dataset_size, "--epochs": epochs}
    for name, count in counts.items():
        if count < 1:
            raise InputError(f"{name}={count}; it must be at least 1.")
    require_positive("--temperature", temperature)
    require_positive("--base-learning-rate", base)
    if num_queries > dataset_size:
        raise InputError(
            f"--num-queries={num_queries} from --dataset-size={dataset_size} images; a batch "
            f"cannot have more queries than there are images. Lower --num-queries."
        )


def notes_on_drawing(
    published: MethodSettings, method: MethodSettings, num_negatives: int, offered: int | None
) -> list[str]:
    """What else differs from the published settings where these draw no negatives.

    >>> from eqco.methods import CPCSettings
    >>> notes_on_drawing(CPCSettings(), CPCSettings(grid=4), 16, 4080)[0][-39:]
    'with --method.grid 4 --method.count 16.'
    """
    changed = [
        as_option(entry.name, getattr(method, entry.name))
        for entry in fields(method)
        if getattr(method, entry.name) != getattr(published, entry.name)
    ]
    if not changed:
        return []
    if num_negatives != offered:
        changed.append(as_option("count", num_negatives))
    return [
        f"{method.name} as published draws none of its negatives. This plan is of eqco train with "
        f"{' '.join(changed)}."
    ]


def as_option(name: str, value: object) -> str:
    """A setting of the method, as eqco train takes it.

    >>> as_option("four_directions", False), as_option("patch_share", 0.25)
    ('--method.no-four-directions', '--method.patch-share 0.25')
    """
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--method.{flag}" if value else f"--method.no-{flag}"
    return f"--method.{flag} {value}"


def warnings_on_alpha(
    recipe: Recipe,
    method: MethodSettings,
    num_negatives: int,
    alpha: float,
    overshoot: float,
    plain: bool,
) -> list[str]:
    """What the choice of α means for what is read off the training."""
    warnings = []
    if not method.independent_negatives:
        warnings.append(
            f"Negatives of {method.name} are partly of the query's own image, hence not "
            f"independent of it: alpha still shifts the logits by log(alpha/K), but EqCo's rule, "
            f"that loss and gradient do not depend on K, does not hold, and the information shown "
            f"while training is an estimate, not a bound, for any alpha. With "
            f"--method.other-images-only in eqco train the rule holds, and the information is a "
            f"bound for alpha ≤ K."
        )
    published = recipe.method.num_negatives(recipe.training.num_queries)
    fewer = published is not None and num_negatives < published
    if plain and fewer and method.independent_negatives:
        warnings.append(
            f"No alpha: plain InfoNCE, whose loss and gradient change with K. To let "
            f"{num_negatives} stand in for the published K = {published}, give --alpha {published}."
        )
    if alpha == math.inf:
        warnings.append(
            "alpha is infinite: the decoupled loss. The information shown while training is an "
            "estimate that may exceed the truth by any amount."
        )
    elif NOTABLE_OVERSHOOT <= overshoot < math.inf:
        warnings.append(
            f"alpha is {alpha / num_negatives:,.1f} times K: the information shown while training "
            f"is an estimate, not a bound, and may exceed the truth by up to "
            f"log((1+alpha)/(1+K)) = {overshoot:.2f} nats."
        )
    # Paper: MoCo v1, with its low temperature, is the exception: 6.1 points behind at K = 256
    # without the margin and 0.2 with.
    low_temperature = recipe.objective.temperature < LOW_TEMPERATURE
    if num_negatives >= 256 and alpha > num_negatives and not low_temperature:
        warnings.append(
            f"K = {num_negatives}: where 256 or more negatives are affordable, the paper finds "
            f"little to gain from a larger alpha (SiMo: alpha = 65536 adds 0.5 points over 256)."
        )
    return warnings


def warnings_on_sizes(
    recipe: Recipe, num_queries: int, counts: KeyCounts, dataset_size: int
) -> list[str]:
    """What the choice of N and K means, after the limits that the paper states."""
    warnings = []
    if counts.queue == counts.total <= 16:
        warnings.append(
            f"K = {counts.total} with a queue: the paper saw accuracy fall at K ≤ 16, even with "
            f"the margin. Use a longer queue, or SiMo, which does not need one."
        )
    warnings += warnings_on_batch(recipe, num_queries)
    share = own_key_share(counts.queue, dataset_size)
    if share >= NOTABLE_OWN_KEYS:
        warnings.append(
            f"A queue of {counts.queue} keys beside {dataset_size} images: for {share:.0%} of the "
            f"queries it holds an older key of their own image, as a negative. Use a shorter queue."
        )
    return warnings


def warnings_on_batch(recipe: Recipe, num_queries: int) -> list[str]:
    """What the choice of N means for batch norm, where there is any."""
    if num_queries >= FEWEST_FOR_BATCH_NORM or recipe.encoder.has_layer_norm:
        return []
    return [
        f"N = {num_queries} images are few for batch norm; from about {FEWEST_FOR_BATCH_NORM} on "
        f"its statistics are steady."
    ]


def advice_on_small_batches(
    method: MethodSettings, num_queries: int, counts: KeyCounts
) -> list[str]:
    """What to do with a small batch, as `eqco reproduce study-small-batch` found it."""
    takes_both = {"count", "queue_size"} <= {entry.name for entry in fields(method)}
    if not takes_both or counts.queue or num_queries > SMALL_BATCH:
        return []
    offered, alpha = method.num_batch_negatives(num_queries), ALPHA_FOR_SMALL_BATCHES
    assert offered is not None
    return [
        f"N = {num_queries} is a small batch. In study-small-batch (CIFAR-10, N = 16) a fixed "
        f"alpha of {alpha} gained over plain InfoNCE in both seeds, and with a short queue of keys "
        f"beside it was best in both: eqco train … --recipe {method.name} --method.count {offered} "
        f"--method.queue-size {FILLED_UP_TO - offered} --objective.alpha {alpha}."
    ]


def own_key_share(num_negatives: int, dataset_size: int) -> float:
    r"""The share of queries whose own image is in the queue, from the epoch before.

    .. math:: \Pr[p + D - p' \le K], \qquad p, p' \text{ uniform on } [0, D]

    An image at place p of this epoch was at place p' of the last one, in another order of D images:
    p + D − p' keys ago. Exact as D grows.

    >>> own_key_share(50, 100), own_key_share(100, 100), own_key_share(200, 100)
    (0.125, 0.5, 1.0)
    """
    ratio = num_negatives / dataset_size
    if ratio <= 1:
        return ratio * ratio / 2
    return 1 - max(0.0, 2 - ratio) ** 2 / 2
