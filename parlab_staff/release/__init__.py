"""The handout that an instructor gives to students: one lab and all that it needs to run."""

from parlab_staff.release.writing import write_handout

__all__ = ["write_handout"]
