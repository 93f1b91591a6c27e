"""parlab: a course in training large models in parallel, on real ranks."""

__version__ = "0.1.0"
