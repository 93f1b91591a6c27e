"""The labs' training data, MNIST and text. Loading it needs no internet access.

Both are NumPy arrays, the same on every call and on every rank. `torch.from_numpy` converts them
without a copy. Each rank can load its own data, because reading a few thousand images takes only
milliseconds.
"""

import hashlib
import os
import sysconfig
import zipfile
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

# Mean and standard deviation of all training pixels, as fractions of full brightness.
MNIST_MEAN = 0.1307
MNIST_STD = 0.3081

# Folders to leave out: installed packages, tests, tables of character sets, and modules that some
# systems package separately (Debian's Python lacks them).
_LEFT_OUT = {
    *("site-packages", "dist-packages", "test", "tests", "encodings"),
    *("ensurepip", "distutils", "lib2to3", "idlelib", "tkinter", "turtledemo"),
}
_VALIDATION_SHARE = 10  # one file in ten


def mnist(split: str = "train", limit: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return MNIST as float32 images (n, 1, 28, 28) and int64 labels (n,), in the original order.

    `split` is "train" (60,000 images) or "test" (10,000). With `limit`, only the first `limit`
    images are read. Images are normalized as (pixel / 255 − MNIST_MEAN) / MNIST_STD, so that the
    training set has mean 0 and standard deviation 1. One image takes 3,136 bytes. All 60,000 take
    188 MB on each rank that loads them, so use `limit` on several ranks.

    In the original order, the ten digits are already shuffled. Raises ValueError if the split is
    unknown, or if `limit` is less than 1 or more than the split has.

    Source: Y. LeCun, C. Cortes, C. J. C. Burges (see parlab/data/README.md).
    """
    if split not in ("train", "test"):
        raise ValueError(f"MNIST has no split {split!r}: choose 'train' or 'test'")
    with (
        as_file(files("parlab.data") / "mnist.npz") as path,
        zipfile.ZipFile(path) as arrays,
    ):
        pixels = _first_rows(arrays, f"{split}_images", limit)
        labels = _first_rows(arrays, f"{split}_labels", limit)
    images = pixels[:, None].astype(np.float32)  # (n, 1, 28, 28)
    images /= 255 * MNIST_STD
    images -= MNIST_MEAN / MNIST_STD
    return images, labels.astype(np.int64)


def _first_rows(arrays: zipfile.ZipFile, name: str, limit: int | None) -> np.ndarray:
    """Return the first `limit` rows (all if None) of a uint8 array in an .npz file.

    `numpy.load` would unpack the whole array first.
    """
    with arrays.open(f"{name}.npy") as file:
        np.lib.format.read_magic(file)
        (total, *row_shape), _, dtype = np.lib.format.read_array_header_1_0(file)
        rows = total if limit is None else limit
        if not 0 < rows <= total:
            raise ValueError(f"limit={limit}: {name} has {total:,}, take 1 to {total:,} of them")
        size = rows * int(np.prod(row_shape)) * dtype.itemsize
        return np.frombuffer(file.read(size), dtype).reshape(rows, *row_shape)


def text(split: str = "train", n_bytes: int | None = None) -> np.ndarray:
    """Return text for training a language model: the sources of Python's standard library, uint8.

    `split` is "train" or "validation" (about one file in ten). With `n_bytes`, only the first
    `n_bytes` are returned (by default all, about 10 MB for "train"). Each byte of the result (n,)
    is a token, so there are 256 tokens. The files are in the order of a hash of their names, so
    that the first bytes are a fair sample. The split of a file depends only on its name. The same
    Python always returns the same bytes. The library of another version differs.

    Raises ValueError if the split is unknown, or if `n_bytes` is less than 1 or more than the text
    has. Raises FileNotFoundError if this Python comes without its sources.
    """
    if split not in ("train", "validation"):
        raise ValueError(f"the text has no split {split!r}: choose 'train' or 'validation'")
    if n_bytes is not None and n_bytes < 1:
        raise ValueError(f"n_bytes={n_bytes}: take at least 1, or None for all")
    library = Path(sysconfig.get_path("stdlib"))
    content = bytearray()
    for path in _sources(library, split):
        content += path.read_bytes()
        if n_bytes is not None and len(content) >= n_bytes:
            return np.frombuffer(content, np.uint8)[:n_bytes]
    if not content:
        raise FileNotFoundError(f"no .py files in {library}: use a Python that has its sources")
    if n_bytes is not None:
        raise ValueError(
            f"n_bytes={n_bytes:,}: the {split} text of this Python has {len(content):,} bytes"
        )
    return np.frombuffer(content, np.uint8)


def _sources(library: Path, split: str) -> list[Path]:
    hashes = {}
    for folder, subfolders, names in os.walk(library):
        subfolders[:] = set(subfolders) - _LEFT_OUT
        for path in (Path(folder, name) for name in names if name.endswith(".py")):
            if not path.name.startswith("_sysconfigdata"):  # how this one Python was built
                name = path.relative_to(library).as_posix()
                hashes[path] = hashlib.md5(name.encode(), usedforsecurity=False).digest()
    wanted = [
        path
        for path, digest in hashes.items()
        if (digest[-1] % _VALIDATION_SHARE == 0) == (split == "validation")
    ]
    return sorted(wanted, key=hashes.__getitem__)
