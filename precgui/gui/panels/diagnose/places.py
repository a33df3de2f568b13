"""Where each rule of the diagnosis leads: a tab of Inspect, or the kind of tensors at which Tensors opens."""

from __future__ import annotations

# The tab, '' for Tensors where the finding names a recorded tensor and else Live; and the kind of tensors.
PLACES: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        (
            "slow-format",
            "products-below-peak",
            "odd-sizes",
            "slower-operations",
            "cast-tax",
            "launch-bound",
            "data-wait",
        ),
        ("time", ""),
    ),
    **dict.fromkeys(("no-memory-saved", "ledger-residual"), ("memory", "")),
    **dict.fromkeys(
        ("rounded-products", "autocast-not-seen", "unused-scaler", "foreign-parameters", "failed"), ("overview", "")
    ),
    **dict.fromkeys(("stagnation", "weights-unchanged"), ("", "update")),
    **dict.fromkeys(("gradient-underflow", "zero-gradients", "vanishing-gradients"), ("", "gradient")),
    **dict.fromkeys(
        ("forward-overflow", "exponential-overflow", "overflowing-cast", "headroom", "hidden-overflow", "dead-units"),
        ("", "activation"),
    ),
    **dict.fromkeys(("epsilon-vanishes", "nonfinite-update", "weights-not-finite", "scale-collapse"), ("", "weight")),
    "frozen-moments": ("", "optimizer"),
    "frozen-average": ("", "ema"),
    "poisoned-buffers": ("", "buffer"),
}
