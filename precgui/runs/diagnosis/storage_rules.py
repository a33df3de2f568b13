"""Rules on the formats that a trained model is stored in: groups, scales, and parts that are computed as one."""

from __future__ import annotations

import re

from precgui.formats.checkpoints.tensor import line_length
from precgui.runs.diagnosis.findings import Evidence, RuledOut
from precgui.runs.diagnosis.scanned_model import Answer, ScannedModel, and_others, model_finding
from precgui.sanitize import visible_name
from precgui.sentences import L_, Sentence, together

_CACHE_SCALE = re.compile(r"(^|[._])(k|v|kv)_scale$")
_PACKED = ("weight_packed", "qweight")
_FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def odd_groups(model: ScannedModel) -> Answer:
    """Matrices whose rows are no multiple of the group of a scanned format."""
    misfits: dict[str, list[str]] = {}
    matrices = [name for name in model.surveys if len(model.rows[name]["shape"]) > 1]
    for fmt in model.scan.formats:
        for name in matrices:
            if fmt.misfit(line_length(tuple(model.rows[name]["shape"]))):
                misfits.setdefault(fmt.name, []).append(name)
    if not misfits:
        groups = sum(fmt.whole_groups for fmt in model.scan.formats)
        return RuledOut(
            "odd-groups",
            Sentence(
                "because all {matrice_count} matrices fit the groups of {groups} formats",
                matrice_count=len(matrices),
                groups=groups,
            ),
        )
    names = list(dict.fromkeys(name for group in misfits.values() for name in group))
    line = line_length(tuple(model.rows[names[0]]["shape"]))
    proof = Evidence(
        L_("inputs modulo group > 0"), {"tensors": len(names), "inputs": line, "formats": ", ".join(misfits)},
        Sentence(
            "Rows of {name} have {line} numbers; {name_count} of {matrice_count} matrices do not fit {misfits}.",
            name=visible_name(names[0]), line=line, name_count=len(names), matrice_count=len(matrices),
            misfits=", ".join(misfits),
        ),
    )  # fmt: skip
    return model_finding(
        "odd-groups", "info",
        Sentence(
            "Groups of {misfits} do not divide rows of {name}{names}",
            misfits=", ".join(misfits), name=visible_name(names[0]), names=and_others(names),
        ), proof,
        L_("Choose a group that divides the inputs, or leave these layers as they are."), names,
    )  # fmt: skip


def uncalibrated_scales(model: ScannedModel) -> Answer:
    """Scales of a key and value cache that are all 1: nothing was calibrated."""
    scales = [each for name, each in model.surveys.items() if _CACHE_SCALE.search(name)]
    if not scales:
        return None
    if any(not each.amax == each.amin_nonzero == 1.0 or each.zeros for each in scales):
        return RuledOut(
            "uncalibrated-scales",
            Sentence(
                "because {scale_count} scales of the cache are not all 1",
                scale_count=len(scales),
            ),
        )
    names = [each.name for each in scales]
    proof = Evidence(
        L_("all scales = 1"),
        {"scales": len(names)},
        Sentence(
            "All {name_count} scales of the cache are exactly 1.",
            name_count=len(names),
        ),
    )
    return model_finding(
        "uncalibrated-scales", "warning", L_("The scales of keys and values were never calibrated"), proof,
        L_(
            "Calibrate them on data of yours with the library that wrote the file, or leave the cache in 16 bits."
        ), names,
    )  # fmt: skip


def missing_scales(model: ScannedModel) -> Answer:
    """Packed codes whose scales are not in the file."""
    packed = [name for name in model.rows if name.rpartition(".")[2] in _PACKED]
    stems = {name: name.rpartition(".")[0] for name in packed}
    lost = [
        name
        for name, stem in stems.items()
        if not any(f"{stem}.{part}" in model.rows for part in ("weight_scale", "scales"))
    ]
    if not packed or not lost:
        return None
    proof = Evidence(
        L_("packed codes without weight_scale or scales"), {"tensors": len(lost), "packed": len(packed)},
        Sentence(
            "{lost_count} of {packed_count} packed tensors, first {lost}, have no scales beside them.",
            lost_count=len(lost), packed_count=len(packed), lost=visible_name(lost[0]),
        ),
    )  # fmt: skip
    return model_finding(
        "missing-scales", "error", Sentence(
            "Scales of {lost}{lost2} are missing",
            lost=visible_name(lost[0]), lost2=and_others(lost),
        ), proof,
        L_("Download all files of the model, or quantise it again."), lost,
    )  # fmt: skip


def unequal_parts(model: ScannedModel) -> Answer:
    """Projections that servers compute as one product, in unequal formats."""
    unequal, groups = [], 0
    for name in model.rows:
        for first, *rest in _FUSED:
            if first not in name.split("."):
                continue
            family = [name, *(other for part in rest if (other := name.replace(first, part)) in model.rows)]
            groups += len(family) > 1
            kinds = [model.rows[each]["dtype"] for each in family]
            if len(set(kinds)) > 1:
                unequal.append((family, kinds))
    if not groups:
        return None
    if not unequal:
        return RuledOut(
            "unequal-parts",
            Sentence(
                "because all {groups} groups of fused projections have one format each",
                groups=groups,
            ),
        )
    family, kinds = unequal[0]
    named = zip(family, kinds, strict=True)
    listed = together(
        *(Sentence("{name} in {format}", name=visible_name(name), format=kind) for name, kind in named), between=", "
    )
    proof = Evidence(
        L_("formats of q, k, v or of gate, up differ"), {"groups": len(unequal), "of": groups},
        Sentence(
            "{listed}; {unequal_count} of {groups} such groups are unequal.",
            listed=listed, unequal_count=len(unequal), groups=groups,
        ),
    )  # fmt: skip
    return model_finding(
        "unequal-parts", "warning", Sentence(
            "{family} and its siblings have unequal formats",
            family=visible_name(family[0]),
        ), proof,
        L_("Give them one format: vLLM computes them as one product. precgui quantize --as vllm plans so."), family,
    )  # fmt: skip
