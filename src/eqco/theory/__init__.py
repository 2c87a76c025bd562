"""The paper's equations as functions: tensors in, tensors out, no state."""

from eqco.theory.bounds import (
    expected_gradient_bound,
    gradient_bound,
    information_bound,
    is_guaranteed_bound,
    largest_overshoot,
)
from eqco.theory.gaussians import (
    approximate_gaussian_bound,
    best_critic_scale,
    exact_gaussian_bound,
    gaussian_correlation,
    gaussian_information,
    gaussian_log_ratio,
    gaussian_pairs,
)
from eqco.theory.infonce import info_nce, info_nce_gradient, posterior
from eqco.theory.nce import first_log_normaliser, noise_contrastive
from eqco.theory.rules import effective_alpha, eqco_margin, positive_prior, scaled_learning_rate

__all__ = [
    "approximate_gaussian_bound",
    "best_critic_scale",
    "effective_alpha",
    "eqco_margin",
    "exact_gaussian_bound",
    "expected_gradient_bound",
    "first_log_normaliser",
    "gaussian_correlation",
    "gaussian_information",
    "gaussian_log_ratio",
    "gaussian_pairs",
    "gradient_bound",
    "info_nce",
    "info_nce_gradient",
    "information_bound",
    "is_guaranteed_bound",
    "largest_overshoot",
    "noise_contrastive",
    "positive_prior",
    "posterior",
    "scaled_learning_rate",
]
