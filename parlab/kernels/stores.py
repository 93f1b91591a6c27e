"""Holds the stores of kernels, one by one and all together, with their addresses."""

import functools
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Store:
    """One store, or an atomic operation, whose `values` are None."""

    addresses: np.ndarray
    values: np.ndarray | None
    program: int
    launch: int


class AllStores:
    """All stores together, in the order of their addresses, and then of time.

    Attributes:
        count: the number of stores.
        addresses: the address of each stored element.
        values, sizes: its bits, and its size in bytes; zeros for an atomic operation.
        programs: the program that stored it.
    """

    def __init__(self, stores: list[Store]) -> None:
        self.count = len(stores)
        addresses = joined([store.addresses for store in stores])
        order = np.argsort(addresses, kind="stable")
        self.addresses = addresses[order]
        self.values = joined([bits_or_zeros(store) for store in stores])[order]

        def of_each_store(numbers: list[int]) -> np.ndarray:
            counts = [store.addresses.size for store in stores]
            return np.repeat(np.array(numbers, np.int64), counts)[order]

        self.sizes = of_each_store([0 if s.values is None else s.values.itemsize for s in stores])
        self.programs = of_each_store([store.program for store in stores])
        self._launches = of_each_store([store.launch for store in stores])

    def last(self, elements: np.ndarray) -> np.ndarray:
        """Return the index of the last store to each of these addresses, or −1."""
        place = np.searchsorted(self.addresses, elements, side="right") - 1
        if not self.addresses.size:
            return place
        return np.where(self.addresses[place] == elements, place, -1)

    @functools.cached_property
    def twice(self) -> int:
        """The number of addresses that more than one program of a launch has written."""
        by_launch = np.lexsort((self.programs, self.addresses, self._launches))
        launches, addresses, programs = (
            of_all[by_launch] for of_all in (self._launches, self.addresses, self.programs)
        )
        same = (launches[1:] == launches[:-1]) & (addresses[1:] == addresses[:-1])
        others = addresses[1:][same & (programs[1:] != programs[:-1])]
        of_launch = launches[1:][same & (programs[1:] != programs[:-1])]
        return len(set(zip(of_launch.tolist(), others.tolist(), strict=True)))


def bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(f"u{values.itemsize}").reshape(values.shape)


def bits_or_zeros(store: Store) -> np.ndarray:
    if store.values is None:
        return np.zeros(store.addresses.shape, np.uint64)
    return bits(store.values).astype(np.uint64)


def joined(addresses: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.uint64), *addresses])


def among(addresses: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return which addresses are among the others. np.isin is slower: it sorts `addresses`, too."""
    if not others.size:
        return np.zeros(addresses.shape, bool)
    ordered = np.sort(others, axis=None)
    place = np.minimum(np.searchsorted(ordered, addresses), ordered.size - 1)
    return ordered[place] == addresses
