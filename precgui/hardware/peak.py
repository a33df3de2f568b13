"""The theoretical dense peak of a GPU: SMs x clock x operations per clock and SM. Unknown parts make it unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from precgui.hardware.measured import number_text
from precgui.hardware.readings import Missing, Reading, known
from precgui.hardware.support import Peak, Support
from precgui.hardware.tables import Architecture, GpuModel, Unit
from precgui.sentences import L_, Sentence

# Datasheet keys that belong to a unit's key.
_SHEET = {"fp8_e4m3_tc": "fp8_tc", "fp8_e5m2_tc": "fp8_tc", "fp16_scalar": "fp16", "fp16_matrix": "fp16_matrix"}


def with_peaks(
    row: Mapping[str, Support],
    architecture: Architecture,
    product_class: str,
    sms: Reading[int],
    clock_mhz: Reading[float],
    sheet: GpuModel | None,
) -> dict[str, Support]:
    """The row with the peak of every format that the device computes natively or slowly.

    `clock_mhz` is the highest clock that the board allows: then no measurement can pass the peak.
    """
    return {
        name: replace(support, peak=_peak(support, architecture, product_class, sms, clock_mhz, sheet))
        for name, support in row.items()
    }


def _peak(
    support: Support,
    architecture: Architecture,
    product_class: str,
    sms: Reading[int],
    clock_mhz: Reading[float],
    sheet: GpuModel | None,
) -> Reading[Peak]:
    if support.support not in ("native", "slow"):
        return Missing(L_("the hardware has no unit for it"))
    on_sheet = sheet.peak_tops.get(_SHEET.get(support.unit, support.unit)) if sheet else None
    ops = _ops(support.unit, architecture.units, product_class)
    if _is_limited(support.unit, product_class):
        ops = Missing(L_("its maker limits this card below the rate of its architecture"))
    if isinstance(ops, Missing) or isinstance(sms, Missing) or isinstance(clock_mhz, Missing):
        if on_sheet is not None and sheet is not None:
            origin = f" ({sheet.note})" if sheet.note else ""
            return Peak(on_sheet, Sentence("datasheet of {name}{origin}", name=sheet.name, origin=origin), on_sheet)
        missing = next(part for part in (ops, sms, clock_mhz) if isinstance(part, Missing))
        return Missing(Sentence("peak unknown: {reason}", reason=missing.reason))
    tops = sms * clock_mhz * ops * 1e-6
    product = Sentence(
        "{sms} SMs x {clock_mhz:.0f} MHz x {ops} operations per clock and SM", sms=sms, clock_mhz=clock_mhz, ops=ops
    )
    formula = Sentence("{product} = {rate} x 10^12/s", product=product, rate=number_text(tops))
    return Peak(tops, formula, on_sheet)


def _is_limited(key: str, product_class: str) -> bool:
    """Whether a card of the class `limited_...` runs this unit below the rate of its architecture."""
    limited = {"limited_tensor": ("_tc",), "limited_fp64": ("fp64",), "limited": ("_tc", "fp64")}
    return any(part in key for part in limited.get(product_class, ()))


def _ops(key: str, units: Mapping[str, Unit], product_class: str) -> Reading[int]:
    """Operations per clock and SM; for FP8 those of the fastest path, because cuBLASLt takes it."""
    result = _class_ops(units.get(key), product_class)
    if key.startswith("fp8_"):
        faster = known(_class_ops(units.get("fp8_tc_f16acc"), product_class))
        if faster is not None and not isinstance(result, Missing):
            return max(result, faster)
    return result


def _class_ops(unit: Unit | None, product_class: str) -> Reading[int]:
    if unit is None or not unit.ops:
        return Missing(L_("no rate is known for this unit"))
    ops = unit.ops.get("all", unit.ops.get(product_class))
    return Missing(L_("it is not known whether this card runs at the full or the half rate")) if ops is None else ops
