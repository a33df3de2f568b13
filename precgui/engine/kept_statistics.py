"""Norms in training mode that take nothing of a batch into their running statistics: a momentum of 0."""

from __future__ import annotations

from torch import Tensor

from precgui.engine.watcher import OperationCall, Watcher

# Of input, weight, bias, running mean, running variance, training, momentum, epsilon.
_NORMS = ("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "miopen_batch_norm")


class KeptStatistics(Watcher):
    """Told of each operation outside of the optimizer; reads the arguments of norms, not their numbers."""

    fact = "kept_statistics"

    def observe(self, call: OperationCall) -> None:
        if call.name not in _NORMS or call.module is None or len(call.args) < 7:
            return
        running, training, momentum = call.args[3], call.args[5], call.args[6]
        if not isinstance(running, Tensor) or training is not True or momentum != 0 or not self._has_room(call.module):
            return
        self._rows.setdefault(call.module, {"module": call.module, "step": self._step})
