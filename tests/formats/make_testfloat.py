"""Write `testfloat.npz`: a sample of the cases of Berkeley TestFloat 3, whose results Berkeley SoftFloat computes.

    python tests/formats/make_testfloat.py PATH/TO/testfloat_gen

Build SoftFloat and TestFloat from https://github.com/ucb-bar/berkeley-softfloat-3 and berkeley-testfloat-3 as they say.
An array `f16_add_rmin` has one case a row: the bits of the operands, then those of the result. Of the cases of level 1,
those with a result of zero, where signs are most at stake, are kept more often than the others.
"""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np

DATA = Path(__file__).with_name("testfloat.npz")
ROUNDINGS = ("near_even", "minMag", "min", "max", "near_maxMag", "odd")
OPERATIONS = ("add", "sub", "mul", "div", "sqrt", "mulAdd")
CASES = {"f16": (np.uint16, 150), "f32": (np.uint32, 110), "f64": (np.uint64, 60)}  # of each operation and rounding
ZEROS = 12
FUSED_STRIDE = 307  # of the six million cases of `mulAdd`, one in so many is read


def cases(generator: str, function: str, rounding: str) -> list[list[int]]:
    """Operands and result of the cases of level 1 of a function, without the exception flags."""
    with subprocess.Popen([generator, f"-r{rounding}", function], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = list(islice(process.stdout, 0, None, FUSED_STRIDE if function.endswith("mulAdd") else 1))
    if process.returncode or not lines:
        raise RuntimeError(f"{generator} gave no cases of {function}")
    return [[int(word, 16) for word in line.split()[:-1]] for line in lines]


def main(generator: str) -> None:
    draw = random.Random(754)
    arrays = {}
    for kind, (word, count) in CASES.items():
        magnitude = np.iinfo(word).max >> 1  # type: ignore[type-var]
        for operation in OPERATIONS:
            for rounding in ROUNDINGS:
                every = cases(generator, f"{kind}_{operation}", rounding)
                zeros = [case for case in every if case[-1] & magnitude == 0]
                chosen = draw.sample(every, count) + draw.sample(zeros, min(ZEROS, len(zeros)))
                arrays[f"{kind}_{operation}_r{rounding}"] = np.array(sorted(chosen), word)
    np.savez_compressed(DATA, **arrays)
    print(f"{DATA}: {sum(map(len, arrays.values()))} cases, {DATA.stat().st_size} bytes")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
