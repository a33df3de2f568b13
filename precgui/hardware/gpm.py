"""How busy the units of an NVIDIA GPU are (GPM): tensor cores by kind, vector units, memory. Hopper and newer.

The driver compares two samples; the counters are those of DCGM, so both cannot measure at once. HMMA is FP16, BF16,
TF32 and FP8 together: the hardware does not count them separately.
"""

from __future__ import annotations

import time
from typing import Any

from precgui.hardware import nvml
from precgui.hardware.readings import Missing, Reading
from precgui.sentences import L_

METRICS = {
    "sm": 2, "occupancy": 3, "tensor": 5, "tensor_fp64": 6, "tensor_half": 7, "tensor_int": 9, "dram": 10,
    "fp64": 11, "fp32": 12, "fp16": 13,
}  # fmt: skip
LEAST_S = 0.1  # between two samples


class GpmMeter:
    """Two samples of one GPU, taken in turn. Close it: the driver holds the samples' memory."""

    def __init__(self, gpu: nvml.Gpu) -> None:
        self._gpu = gpu
        self._samples: list[Any] = []
        self._taken_s = 0.0
        self.support = self._supported()

    def _supported(self) -> Reading[bool]:
        asked = self._gpu.ask("nvmlGpmQueryDeviceSupport")
        if isinstance(asked, Missing):
            return asked
        if not asked.isSupportedDevice:
            return Missing(L_("NVIDIA reports it from Hopper on, on GeForce from Blackwell on"), lasting=True)
        return True

    def read(self) -> Reading[dict[str, float]]:
        """Percent of time since the last read, by METRICS; Missing at first and when asked sooner than LEAST_S."""
        if isinstance(self.support, Missing) and not self.support.lasting:
            self.support = self._supported()  # the driver may have been busy the first time
        if isinstance(self.support, Missing):
            return self.support
        now = time.perf_counter()
        if self._samples and now - self._taken_s < LEAST_S:
            return Missing(L_("two samples must be 0.1 s apart"))
        sample = self._take()
        if isinstance(sample, Missing):
            return sample
        self._taken_s = now
        self._samples.append(sample)
        if len(self._samples) < 2:
            return Missing(L_("the first sample has just been taken"))
        before = self._samples.pop(0)
        result = self._between(before, sample)
        self._free(before)
        return result

    def close(self) -> None:
        while self._samples:
            self._free(self._samples.pop())

    def _take(self) -> Reading[Any]:
        sample = nvml.call(self._gpu.library, "nvmlGpmSampleAlloc")
        if isinstance(sample, Missing):
            return sample
        taken = self._gpu.ask("nvmlGpmSampleGet", sample)
        if isinstance(taken, Missing):
            self._free(sample)
        return taken

    def _free(self, sample: Any) -> None:
        nvml.call(self._gpu.library, "nvmlGpmSampleFree", sample)

    def _between(self, before: Any, after: Any) -> Reading[dict[str, float]]:
        library = self._gpu.library
        request = nvml.call(library, "c_nvmlGpmMetricsGet_t")
        if isinstance(request, Missing):
            return request
        request.version = library.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(METRICS)
        request.sample1, request.sample2 = before, after
        for place, number in enumerate(METRICS.values()):
            request.metrics[place].metricId = number
        answer = nvml.call(library, "nvmlGpmMetricsGet", request)
        if isinstance(answer, Missing):
            return answer
        rows = zip(METRICS, request.metrics[: len(METRICS)], strict=True)
        return {name: float(metric.value) for name, metric in rows if metric.nvmlReturn == 0}
