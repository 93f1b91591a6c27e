"""The handout that an instructor gives to students: one lab and everything it needs to run."""

from parlab_staff.release.writing import write_handout

__all__ = ["write_handout"]
