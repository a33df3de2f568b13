"""Write the bundled data set `resources/data/digits.npz` from scikit-learn's copy of the UCI digits.

Run it with `make digits`. The archive has fixed member dates and order, so that the same arrays give the same
bytes (with the same zlib); it is read with `numpy.load(path, allow_pickle=False)`.
"""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

TARGET = Path(__file__).parent.parent / "resources" / "data" / "digits.npz"
ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


def arrays() -> dict[str, NDArray[np.uint8]]:
    """`images` [1797, 8, 8] with values 0 to 16, and `labels` [1797] with values 0 to 9."""
    digits = load_digits()
    return {"images": digits.images.astype(np.uint8), "labels": digits.target.astype(np.uint8)}


def write(path: Path) -> None:
    """Write the arrays to `path` as a deflated .npz archive without dates."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays().items():
            member = zipfile.ZipInfo(f"{name}.npy", date_time=ZIP_EPOCH)
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, array, version=(1, 0), allow_pickle=False)
            archive.writestr(member, buffer.getvalue(), compress_type=zipfile.ZIP_DEFLATED, compresslevel=9)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
