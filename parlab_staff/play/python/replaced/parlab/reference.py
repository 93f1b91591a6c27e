"""References in a page: the page shows them itself."""


def use_reference(key: str) -> None:
    """Print where the reference is."""
    print(f"The page of exercise {key} has its reference solution, if this edition has solutions.")
