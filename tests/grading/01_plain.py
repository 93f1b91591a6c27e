# %% [markdown]
# # A plain lab
#
# Exercises without ranks: what graders of all labs meet, in milliseconds.

# %%
# %%px
import json

from IPython.display import JSON, display

from parlab.units import sized as show_units


class check:
    """Stands for the module of checks."""

    @staticmethod
    def add(function) -> None:
        assert function(2, 3) == 5, "add: 2 and 3 are 5"
        print("✓ add: two numbers")

    @staticmethod
    def total(function) -> None:
        assert function([1, 2, 3]) == 6, "total: 1, 2 and 3 are 6"
        print("✓ total: three numbers")

    @staticmethod
    def mean(function) -> None:
        assert function([1.0, 2.0]) == 1.5, "mean: of 1 and 2 it is 1.5"
        print("✓ mean: two numbers")

    @staticmethod
    def show_values(**values) -> None:
        display(JSON(json.loads(json.dumps(values, default=str))))


# %%
class cluster:
    """Stands for `parlab.cluster`: it starts nothing."""

    ranks = 0

    @classmethod
    def start(cls, n: int) -> None:
        cls.ranks = n


cluster.start(3)

# %% tags=["raises-exception"]
raise RuntimeError("a lab shows an error, and no grader waits for it")


# %% tags=["exercise"] exercise="add"
# %%px
def add(a, b):
    """The sum of `a` and `b`."""
    # BEGIN SOLUTION
    result = a + b
    return result
    # END SOLUTION


# %% tags=["check"] exercise="add" points=2
# %%px --timeout 15
check.add(add)

# %% tags=["hidden-check"] exercise="add" points=1
# %%px --timeout 15
check.show_values(sums=[add(20, 3), add(-1, 4), add(0.5, 0.25)], text=show_units(add(20, 6)))


# %% tags=["exercise"] exercise="total"
# %%px
def total(values):
    """The sum of all `values`."""
    # BEGIN SOLUTION
    result = 0
    for value in values:
        result += value
    return result
    # END SOLUTION


# %% tags=["check"] exercise="total" points=3
# %%px --timeout 15
check.total(total)

# %% tags=["hidden-check"] exercise="total" points=1
# %%px --timeout 15
check.show_values(total=total([4, 7, 11]), count=3)


# %% tags=["exercise"] exercise="mean"
# %%px
def mean(values):
    """The mean of all `values`."""
    # BEGIN SOLUTION
    result = total(values)
    return result / len(values)
    # END SOLUTION


# %% tags=["check"] exercise="mean" points=2
# %%px --timeout 15
check.mean(mean)

# %% tags=["hidden-check"] exercise="mean" points=1
# %%px --timeout 15
check.show_values(mean=f"{mean([4, 7, 11]):.4f}", ranks=cluster.ranks)

# %%
print("what comes after the last check grades nothing")
