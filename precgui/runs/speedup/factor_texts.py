"""The factors of a speed-up in words: their titles, what was measured of them, and what may be done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precgui.runs.speedup.slower_modules import slower_modules
from precgui.sentences import L_, Sentence, together


def _peak(profile: Mapping[str, Any]) -> str:
    peak = profile["peak"]
    if peak["ratio"] is None:
        return Sentence("Not measured: {reason}.", reason=peak["note"])
    values = {"size": peak["size"], "format": peak["format"]}
    if peak["ratio"] < 1:
        return Sentence(
            "This device multiplies two {size} x {size} matrices in {format} at {ratio:.2g} times the rate of FP32, so "
            "products cannot become faster by the format.",
            ratio=peak["ratio"], **values,
        )  # fmt: skip
    return Sentence(
        "A product of two {size} x {size} matrices in {format} against FP32, measured on this device.", **values
    )


def _amdahl(profile: Mapping[str, Any]) -> str:
    big = times_of(profile["fp32"])
    share = big["products"] / max(big["products"] + big["others"], 1e-12)
    return Sentence(
        "{share:.0%} of the time of operations in FP32 is products; only those become faster by the format.",
        share=share,
    )


def _products(profile: Mapping[str, Any]) -> str:
    r = profile["peak"]["ratio"] or 1.0
    rows = sorted(profile["layers"], key=lambda row: row["fp32_s"] / r - row["run_s"])
    named = [_layer(row) for row in rows[:3] if row["run_s"] > 1.1 * row["fp32_s"] / r]
    if not named:
        return L_("All products gain as much as the large square one.")
    return Sentence(
        "Products that gain less than the large square one: {layers}.", layers=together(*named, between="; ")
    )


def _layer(row: Mapping[str, Any]) -> Sentence:
    gain = row["fp32_s"] / max(row["run_s"], 1e-12)
    sizes = " x ".join(str(size) for size in row["sizes"][0][1:]) if row["sizes"] else row["kind"]
    return Sentence("{module} {phase} ({sizes}) {gain:.2f} times", sizes=sizes, gain=gain, **_of_module(row))


def _of_module(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"module": row["module"] or L_("(model)"), "phase": row["phase"]}


def _alignment(profile: Mapping[str, Any]) -> str:
    rows = profile["padding"]
    if not rows:
        return L_("No large product has sizes that are no multiple of 8.")
    return Sentence("Tried on this device: {changes}.", changes=together(*map(_gained, rows), between="; "))


def _padded(row: Mapping[str, Any]) -> Sentence:
    pairs = zip(row["sizes"], row["padded"], strict=True)
    return together(*(Sentence("{size} to {padded}", size=a, padded=b) for a, b in pairs if a != b), between=", ")


def _gained(row: Mapping[str, Any]) -> Sentence:
    values = {"sizes": _padded(row), **_of_module(row)}
    if row["gain"] > 0.01:
        return Sentence("{module} {phase}: {sizes} saves {gain:.0%} of its time", gain=row["gain"], **values)
    return Sentence("{module} {phase}: {sizes} saves nothing", **values)


def _others(profile: Mapping[str, Any]) -> str:
    big, small = profile["fp32"]["kinds"], profile["run"]["kinds"]
    names = [k for k in small if k not in ("product", "convolution", "attention", "recurrent", "cast")]
    largest = sorted(names, key=lambda k: -(small[k] - big.get(k, 0.0)))[:2]
    if not largest:
        return L_("No other operations.")
    changes = (
        Sentence("{kind} {before} to {after}", kind=k, before=_ms(big.get(k, 0.0)), after=_ms(small[k]))
        for k in largest
    )
    return Sentence(
        "Operations without products, FP32 to the run: {changes}.", changes=together(*changes, between=", ")
    )


def _casts(profile: Mapping[str, Any]) -> str:
    total = total_s(profile["run"])
    rows = [row for row in profile["operations"] if row["kind"] == "cast" and row["module"]]
    share = profile["run"]["casts_s"] / max(total, 1e-12)
    where = ", ".join(dict.fromkeys(f"{row['module']} ({row['format']})" for row in rows[:3]))
    if not where:
        return Sentence("{share:.1%} of the step converts between formats.", share=share)
    return Sentence("{share:.1%} of the step converts between formats: {modules}.", share=share, modules=where)


def _gaps(profile: Mapping[str, Any]) -> str:
    fp32, run = profile["fp32"], profile["run"]
    shares = [side["gaps_s"] / max(total_s(side), 1e-12) for side in (fp32, run)]
    return Sentence(
        "{share:.0%} of the step (FP32: {fp32_share:.0%}) passes between operations or in starting them: {calls} calls "
        "a step.",
        share=shares[1], fp32_share=shares[0], calls=run["calls"],
    )  # fmt: skip


def _data(profile: Mapping[str, Any]) -> str:
    shares = [side["data_s"] / max(total_s(side), 1e-12) for side in (profile["fp32"], profile["run"])]
    return Sentence(
        "{share:.0%} of the step (FP32: {fp32_share:.0%}) waits for the next batch.",
        share=shares[1], fp32_share=shares[0],
    )  # fmt: skip


def _unexplained(profile: Mapping[str, Any]) -> str:
    return L_("What the profiled step and the steps without the profiler do not agree on.")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _say(sentence: str) -> Any:
    return lambda _: sentence


def _slow_fix(profile: Mapping[str, Any]) -> str:
    return Sentence(
        "Train in fp32 here, or on a device with fast products in {format}.", format=profile["peak"]["format"]
    )


def _pad_fix(profile: Mapping[str, Any]) -> str:
    row = max(profile["padding"], key=lambda row: row["gain_s"], default=None)
    if row is None:
        return ""
    if not row["module"]:
        return Sentence("Pad this layer: {sizes}; the added rows are never chosen.", sizes=_padded(row))
    return Sentence("Pad {module}: {sizes}; the added rows are never chosen.", module=row["module"], sizes=_padded(row))


def _batch_fix(profile: Mapping[str, Any]) -> str:
    batch = profile["settings"]["batch_size"]
    if profile["settings"]["compile"]:
        return Sentence(
            "Give the device more work at once: a batch of {larger} instead of {batch}.", larger=4 * batch, batch=batch
        )
    return Sentence(
        "Give the device more work at once: a batch of {larger} instead of {batch}, or torch.compile.",
        larger=4 * batch, batch=batch,
    )  # fmt: skip


def _products_fix(profile: Mapping[str, Any]) -> str:
    slower = slower_modules(profile)
    return slower.remedy(profile["peak"]["format"]) if slower is not None else _batch_fix(profile)


def _fuse_fix(profile: Mapping[str, Any]) -> str:
    if profile["settings"]["compile"]:
        return L_("The step is compiled already: a wider model has a larger share of products.")
    return L_("Fuse what is not a product: torch.compile, channels_last, a fused optimizer; or a wider model.")


def _others_fix(profile: Mapping[str, Any]) -> str:
    if profile["settings"]["compile"]:
        return L_("Leave these operations in the format that is fast for them.")
    return L_("Leave these operations in the format that is fast for them, or fuse them with torch.compile.")


def _casts_fix(profile: Mapping[str, Any]) -> str:
    if profile["settings"]["compile"]:
        return L_("Convert once, outside of loops, or store weights in the format (bf16-pure, master weights).")
    return L_("Convert once, outside of loops; store weights in the format (bf16-pure, master weights) or compile.")


def _data_fix(profile: Mapping[str, Any]) -> str:
    return L_("Load in the background: more loader processes, pinned memory on a GPU, decoded data kept.")


# Title, description and fix of each factor; the last two take the profile.
TEXTS: dict[str, tuple[str, Any, Any]] = {
    "peak": (L_("Ratio of peaks"), _peak, _slow_fix),
    "amdahl": (L_("Share of products"), _amdahl, _fuse_fix),
    "products": (L_("Products below the peak"), _products, _products_fix),
    "alignment": (L_("Sizes that do not fit"), _alignment, _pad_fix),
    "others": (L_("Other operations"), _others, _others_fix),
    "casts": (L_("Casts"), _casts, _casts_fix),
    "gaps": (L_("Launches and gaps"), _gaps, _batch_fix),
    "data": (L_("Waiting for data"), _data, _data_fix),
    "unexplained": (L_("Unexplained"), _unexplained, _say(L_("Profile again on a quiet machine."))),
}  # fmt: skip


def times_of(side: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of the parts of a step in one precision."""
    return {
        "products": float(side["products_s"]), "casts": float(side["casts_s"]), "others": float(side["others_s"]),
        "gaps": float(side["gaps_s"]), "data": float(side["data_s"]),
    }  # fmt: skip


def total_s(side: Mapping[str, Any]) -> float:
    """Seconds of a step and of the wait for its data."""
    return float(side["step_s"]) + float(side["data_s"])
