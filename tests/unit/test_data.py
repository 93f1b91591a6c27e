"""The data: its contents and shapes, which are the same for every load."""

import hashlib
import struct
import subprocess
import sys
from importlib.resources import files

import numpy as np
import pytest
import torch

from parlab import mpirun
from parlab.data import MNIST_MEAN, MNIST_STD, mnist, text

# The header of the original file train-images-idx3-ubyte: its kind and its three sizes.
IDX_HEADER = struct.pack(">4i", 0x803, 60000, 28, 28)
MD5_OF_TRAINING_IMAGES = "6bbc9ace898e44ae57da46a324031adb"


def test_the_committed_file_is_the_original_mnist() -> None:
    with np.load(str(files("parlab.data") / "mnist.npz")) as arrays:
        pixels = arrays["train_images"]
    digest = hashlib.md5(IDX_HEADER + pixels.tobytes(), usedforsecurity=False)
    assert digest.hexdigest() == MD5_OF_TRAINING_IMAGES


@pytest.mark.parametrize(("split", "size"), [("train", 60_000), ("test", 10_000)])
def test_mnist_has_the_documented_shapes_and_types(split: str, size: int) -> None:
    images, labels = mnist(split)
    assert (images.shape, images.dtype) == ((size, 1, 28, 28), np.float32)
    assert (labels.shape, labels.dtype) == ((size,), np.int64)
    assert set(labels) == set(range(10))


def test_mnist_is_normalized_with_the_constants_that_parlab_names() -> None:
    images, _ = mnist("train")
    assert abs(images.mean(dtype=np.float64)) < 1e-3
    assert abs(images.std(dtype=np.float64) - 1) < 1e-3
    pixels = (images[:100].astype(np.float64) * MNIST_STD + MNIST_MEAN) * 255
    assert np.abs(pixels - pixels.round()).max() < 1e-3
    assert (pixels.min().round(), pixels.max().round()) == (0, 255)


def test_a_limit_reads_only_the_first_images() -> None:
    images, labels = mnist("test")
    some_images, some_labels = mnist("test", limit=7)
    assert np.array_equal(some_images, images[:7])
    assert np.array_equal(some_labels, labels[:7])


def test_torch_takes_both_without_a_copy() -> None:
    images, labels = mnist("test", limit=3)
    tensor = torch.from_numpy(images)
    tensor.zero_()
    assert not images.any()
    assert torch.from_numpy(labels).dtype == torch.int64
    assert torch.from_numpy(text("validation", 10)).dtype == torch.uint8


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: mnist("trian"), "no split 'trian'.*'train' or 'test'"),
        (lambda: mnist("validation"), "no split 'validation'"),
        (lambda: mnist("train", limit=60_001), "limit=60001: .* 1 to 60,000"),
        (lambda: mnist("train", limit=0), "limit=0"),
        (lambda: text("test"), "no split 'test': choose 'train' or 'validation'"),
        (lambda: text("train", 0), "n_bytes=0"),
        (lambda: text("validation", 10**9), "n_bytes=1,000,000,000: .* has .* bytes"),
    ],
)
def test_invalid_requests_are_clear_errors(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_a_python_without_its_sources_is_reported(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(FileNotFoundError, match="use a Python that has its sources"):
        text("train")


def test_text_is_python_and_enough_of_it_to_train_on() -> None:
    train, validation = text("train"), text("validation")
    for part in (train, validation):
        assert (part.ndim, part.dtype) == (1, np.uint8)
        assert b"def __init__(self" in part.tobytes()
    assert len(train) > 5_000_000
    assert 0.03 < len(validation) / len(train) < 0.3


def test_the_two_splits_of_the_text_share_no_file() -> None:
    # Modules of the library that are recognized by a unique line.
    train, validation = text("train").tobytes(), text("validation").tobytes()
    for line in (
        b"class JSONDecoder(",
        b"class ThreadPoolExecutor(",
        b"def urlsplit(",
        b"class Random(",
    ):
        assert train.count(b"\n" + line) + validation.count(b"\n" + line) == 1, line


def test_a_limited_text_is_the_start_of_the_whole() -> None:
    assert np.array_equal(text("train", 12_345), text("train")[:12_345])


def test_ranks_and_later_runs_load_the_same() -> None:
    program = (
        "import hashlib; from parlab.data import mnist, text; from mpi4py import MPI\n"
        "load = [*mnist('train', limit=50), text('train', 5000)]\n"
        "digest = hashlib.sha256(b''.join(a.tobytes() for a in load)).hexdigest()\n"
        "digests = set(MPI.COMM_WORLD.allgather(digest))\n"
        "if MPI.COMM_WORLD.rank == 0: print(*digests)"
    )
    ran = mpirun.run(2, "-c", program, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    arrays = [*mnist("train", limit=50), text("train", 5000)]
    expected = hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()
    assert ran.stdout.split() == [expected], sys.version
