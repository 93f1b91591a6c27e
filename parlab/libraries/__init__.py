"""The libraries that the labs compare your code with, one module for each topic.

Each wraps a library so that a lab can train with it in one line. Nothing here is an exercise.
"""
