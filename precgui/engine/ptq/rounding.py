"""Rounding of tensors to formats of weights in torch: the same numbers as `formats.weight_formats.round_weights`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from precgui.engine.quantize.elements import quantize
from precgui.formats.blocks import SCALE_RULES, mx_exponents
from precgui.formats.model import IntFormat
from precgui.formats.weight_formats import LEAST_PEAK, NVFP4_DIVIDED, NVFP4_LEAST, WeightFormat


@dataclass(frozen=True)
class GroupScales:
    """By what numbers are divided (multiplied, where scales are in FP16), and by what codes are multiplied; [n, 1]."""

    factor: Tensor
    back: Tensor
    multiplies: bool

    def scaled(self, rows: Tensor) -> Tensor:
        """The numbers before they become codes; zero where the scale is zero."""
        result = rows * self.factor if self.multiplies else rows / self.factor
        return torch.where(self.back == 0, torch.zeros_like(result), result)


def scales_of(rows: Tensor, fmt: WeightFormat, peak: Tensor) -> GroupScales:
    """The scales of groups in FP32, each a row of `rows` [n, group]; `peak` is the largest magnitude of the tensor."""
    own = rows.abs().amax(1, keepdim=True)
    if fmt.rule == "none":
        return GroupScales(torch.ones_like(own), torch.ones_like(own), False)
    if fmt.rule == "nvfp4":
        whole = peak / (448 * 6)
        if whole == 0:
            return GroupScales(torch.zeros_like(own), torch.zeros_like(own), False)
        scale = quantize(own / 6 / whole, "ue4m3", saturate=True) * whole
        return GroupScales(scale, scale, False)
    if fmt.rule == NVFP4_DIVIDED:
        factor = nvfp4_factor(peak)
        local = quantize(factor * (own / 6), "ue4m3", saturate=True)
        scale = torch.where(local == 0, torch.full_like(local, NVFP4_LEAST), local) / factor
        return GroupScales(scale, scale, False)
    if fmt.rule in SCALE_RULES:
        exponents = torch.from_numpy(mx_exponents(own.double().cpu().numpy(), fmt.element, fmt.rule)).to(own.device)
        power = torch.ldexp(torch.ones_like(own), exponents)
        return GroupScales(power, power, False)
    signed = rows.gather(1, rows.abs().argmax(1, keepdim=True)) if fmt.rule == "signed" else own
    scale = (peak.expand_as(own) if fmt.group == 0 else signed) / fmt.divisor
    if not fmt.half_scale:
        return GroupScales(scale, scale, False)
    return GroupScales(torch.where(scale == 0, scale, 1 / scale), scale.half().float(), True)


def nvfp4_factor(peak: Tensor) -> Tensor:
    """By what compressed-tensors divides the E4M3 scales of NVFP4, from the largest magnitude of a tensor."""
    return peak.reciprocal() * (448 * 6) if peak >= LEAST_PEAK else torch.ones_like(peak)


def codes_of(scaled: Tensor, fmt: WeightFormat) -> Tensor:
    """Numbers over their scale as the nearest values of the element, saturated."""
    element = fmt.element
    if not isinstance(element, IntFormat):
        return quantize(scaled, element, saturate=True)
    low, high = element.min_ordinal, element.max_ordinal
    if fmt.rounding == "away":
        whole = torch.copysign(torch.floor(scaled.abs() + 0.5), scaled)
    elif fmt.rounding == "up":
        whole = torch.trunc(scaled + (0.5 - low)) + low
    else:
        whole = torch.round(scaled)
    return whole.clamp(low, high)


def width_of_group(fmt: WeightFormat, line: int) -> int:
    """How many numbers of a row of `line` share a scale."""
    return fmt.group if fmt.group > 0 else line


def in_groups(rows: Tensor, fmt: WeightFormat) -> Tensor:
    """Rows cut into groups, [n, group], the last of each filled up with zeros."""
    group = width_of_group(fmt, rows.shape[1])
    return torch.nn.functional.pad(rows, (0, -rows.shape[1] % group)).reshape(-1, group)


@dataclass(frozen=True)
class CodedRows:
    """Rounded rows [outputs, line], the values of their codes [outputs, line], and what each group's are times.

    peak: the largest magnitude of the rows before.
    """

    values: Tensor
    codes: Tensor
    scales: Tensor
    peak: Tensor


@torch.no_grad()
def round_rows(rows: Tensor, fmt: WeightFormat) -> Tensor:
    """FP32 rows [n, line] rounded to a format, scales running along the rows. Raises ValueError for a misfit."""
    if why := fmt.misfit(rows.shape[1]):
        raise ValueError(why)
    return coded_rows(rows, fmt).values


@torch.no_grad()
def coded_rows(rows: Tensor, fmt: WeightFormat) -> CodedRows:
    """FP32 rows rounded to a format, with codes and scales [outputs, groups]."""
    source = rows.detach().float()
    groups, peak = in_groups(source, fmt), source.abs().amax()
    scales = scales_of(groups, fmt, peak)
    codes = codes_of(scales.scaled(groups), fmt)

    def whole(values: Tensor) -> Tensor:
        return values.reshape(len(source), -1)[:, : source.shape[1]]

    return CodedRows(whole(codes * scales.back), whole(codes), scales.back.reshape(len(source), -1), peak)


@dataclass(frozen=True)
class RowRounding:
    """A rounding of operands: weights by rows of their matrix, inputs along the summed axis.

    A row is what is multiplied at once: a token of an input of two or more axes, a whole sample of images, since a
    convolution sums over places, too. Groups run along the channels.
    """

    fmt: WeightFormat
    is_weight: bool = False
    axis_free = False

    def __call__(self, tensor: Tensor, axis: int) -> Tensor:
        if self.is_weight:
            return round_rows(tensor.flatten(1), self.fmt).view(tensor.shape)
        whole_rows = self.fmt.group <= 0 and axis not in (-1, tensor.dim() - 1)
        if whole_rows:
            return round_rows(tensor.flatten(1), self.fmt).view(tensor.shape)
        moved = tensor.movedim(axis, -1)
        return round_rows(moved.reshape(-1, moved.shape[-1]), self.fmt).view(moved.shape).movedim(-1, axis)
