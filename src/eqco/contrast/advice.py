"""What the diagnostics say about a setting, in plain words."""

import math

__all__ = ["SATURATED", "advice"]

# From here on plain InfoNCE counts as saturated: as much of its gradient is gone. The limit is read
# off recorded pairs of trainings, of which none below it gained clearly by the probe
# (docs/results.md, study-saturation).
SATURATED = 0.3
# What little α can add beyond this ratio is not worth a change.
NOTABLE_RATIO = 1.1
# The weights of few negatives are biased by about this much where it is worth a remedy.
NOTABLE_BIAS = 0.1
# With fewer negatives alpha gained in some trainings and cost accuracy in others (docs/results.md).
FEW = 16
# Fewer negatives than this that share the gradient: τ is too low for so few, or keys collapse.
FEW_EFFECTIVE = 2.0


def advice(
    *,
    positive_probability: float,
    weight_ratio: float,
    effective_negatives: float,
    weight_bias: float,
    num_negatives: int,
    margin: float,
) -> tuple[str, ...]:
    """What the fields of `Diagnostics` of these names say about the setting.

    >>> advice(positive_probability=0.05, weight_ratio=1.02, effective_negatives=180.0,
    ...     weight_bias=0.002, num_negatives=255, margin=1.1)
    ('Leave alpha as it is: plain InfoNCE is not saturated with 255 negatives (p₊ = 0.05).',)
    """
    found = []
    p, k = positive_probability, num_negatives
    if math.isnan(p):
        return (
            "Look at the embeddings first: they hold NaN or infinity, so nothing can be said of "
            "the setting. A learning rate that is too high does this "
            "(--optimiser.base-learning-rate).",
        )
    if p >= SATURATED and weight_ratio < NOTABLE_RATIO:
        found.append(
            f"Set alpha: the positive already has a probability of {p:.3f} among {k} negatives, so "
            f"plain InfoNCE's gradient is {1 - p:.3f} of its full size. alpha=4096 to 65536 gives "
            f"it back (--objective.alpha 65536). "
            + (
                "With so few negatives try both: it may cost accuracy."
                if k < FEW
                else "Compare on validation data: of such trainings in our records fewer than half "
                "gained."
            )
        )
    if weight_bias >= NOTABLE_BIAS and k <= 64:
        found.append(
            f"Score against more keys: with {k} negatives the weights are biased by about "
            f"{weight_bias:.2f}, which alpha does not mend. Take a larger batch by caching "
            f"(eqco.cached_backward; --training.num-queries 256 --training.accumulation-steps 16 "
            f"--training.accumulation cached) or, where the encoder moves slowly, as under SGD, a "
            f"queue filled by a slow copy of it (eqco.KeyQueue, eqco.SlowCopy; --recipe simo "
            f"--method.queue-size 4096)."
        )
    if effective_negatives < FEW_EFFECTIVE and k > 4:
        found.append(
            f"Raise the temperature: of {k} negatives only "
            f"{effective_negatives:.1f} share the gradient (--objective.temperature)."
        )
    if not found and margin > 0 and weight_ratio >= NOTABLE_RATIO:
        found.append(
            f"Keep alpha: it makes the gradient {weight_ratio:.2f} times that of plain InfoNCE, "
            f"which would be saturated (p₊ = {p:.2f})."
        )
    if not found:
        found.append(
            f"Leave alpha as it is: plain InfoNCE is not saturated with {k} negatives "
            f"(p₊ = {p:.2f})."
        )
    return tuple(found)
