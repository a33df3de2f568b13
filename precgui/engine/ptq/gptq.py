"""GPTQ for any format of weights (Frantar et al. 2023, arXiv 2210.17323), columns in the order as stored."""

from __future__ import annotations

import torch
from torch import Tensor

from precgui.engine.ptq.rounding import CodedRows, codes_of, scales_of, width_of_group
from precgui.formats.weight_formats import WeightFormat

DAMPING = 0.01  # of the mean of the diagonal
_BLOCK = 128  # columns; groups never cross a block


@torch.no_grad()
def gptq(rows: Tensor, hessian: Tensor, fmt: WeightFormat) -> CodedRows:
    """Rows [outputs, line] rounded one column after the other; the error of each is made good by the columns after it.

    hessian: the mean of x xT over inputs, [line, line]. The scale of a group is found when its first column comes.
    """
    weights, line = rows.detach().float().clone(), rows.shape[1]
    peak = weights.abs().amax()
    inverse, dead = _inverse_factor(hessian, line)
    weights[:, dead] = 0
    result, codes, group = torch.zeros_like(weights), torch.zeros_like(weights), width_of_group(fmt, line)
    found: list[Tensor] = []
    scales = scales_of(weights[:, :group], fmt, peak)
    for begin in range(0, line, _BLOCK):
        end = min(begin + _BLOCK, line)
        errors = torch.zeros(len(weights), end - begin, device=weights.device)
        for column in range(begin, end):
            if column % group == 0 and column:
                scales = scales_of(weights[:, column : column + group], fmt, peak)
            if column % group == 0:
                found.append(scales.back)
            codes[:, column] = codes_of(scales.scaled(weights[:, column : column + 1]), fmt)[:, 0]
            result[:, column] = codes[:, column] * scales.back[:, 0]
            error = (weights[:, column] - result[:, column]) / inverse[column, column]
            weights[:, column:end] -= error[:, None] * inverse[column, column:end]
            errors[:, column - begin] = error
        weights[:, end:] -= errors @ inverse[begin:end, end:]
    return CodedRows(result, codes, torch.cat(found, 1), peak)


def _inverse_factor(hessian: Tensor, line: int) -> tuple[Tensor, Tensor]:
    """The upper Cholesky factor of the inverse in FP32, and the columns whose inputs are always zero."""
    h = hessian.double().clone()
    diagonal = h.diagonal()
    dead = diagonal == 0
    diagonal[dead] = 1
    diagonal += DAMPING * float(diagonal.mean()) if line else 0.0
    lower = torch.linalg.cholesky(h)
    return torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True).float(), dead
