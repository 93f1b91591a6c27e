"""What the labs train on, with no internet: MNIST and text.

Both are NumPy arrays, the same on every call and on every rank; `torch.from_numpy` takes them
without a copy. Every rank can load its own: reading a few thousand images takes milliseconds.
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

# Folders that are not the library's own text: installed packages, tests, tables of character sets,
# and what some systems package apart (a Debian Python lacks it).
_LEFT_OUT = {
    *("site-packages", "dist-packages", "test", "tests", "encodings"),
    *("ensurepip", "distutils", "lib2to3", "idlelib", "tkinter", "turtledemo"),
}
_VALIDATION_SHARE = 10  # one file in ten


def mnist(split: str = "train", limit: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """MNIST as (images, labels): float32 (n, 1, 28, 28) and int64 (n,), in the original order.

    `split` is "train" (60,000 images) or "test" (10,000); `limit` takes the first so many and
    reads no more than these. Images are normalized, (pixel / 255 − MNIST_MEAN) / MNIST_STD: over
    the training set their mean is 0 and their standard deviation 1. One image takes 3,136 bytes,
    all 60,000 take 188 MB on each rank that loads them: on several ranks, use `limit`.

    The original order is already shuffled over the ten digits. Raises ValueError for an unknown
    split and for a limit that the split does not have.

    Source: Y. LeCun, C. Cortes, C. J. C. Burges; see parlab/data/README.md.
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
    """The first `limit` rows (all of them for None) of a uint8 array in an .npz file.

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
    """Text to train a language model on: the Python standard library's own sources, as bytes.

    `split` is "train" or "validation" (about one file in ten); `n_bytes` takes the first so many
    bytes (by default all, some 10 MB for "train"). Returns uint8 (n,): one token a byte, 256
    tokens in all. Files follow each other in the order of a hash of their names, so that the
    first bytes are a fair sample; which split a file is in depends on its name alone. The same
    Python gives the same bytes; another version's library differs.

    Raises ValueError for an unknown split or more bytes than there are, FileNotFoundError where
    this Python comes without its sources.
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
