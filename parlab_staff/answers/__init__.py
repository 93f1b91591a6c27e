"""Answers to exercises, and the verdicts of checks on them.

The reference is in `solutions/NN_topic.py`. Wrong answers, and right ones that differ from the
reference, are kept as tests of the checks, one file for each exercise:

    # tests/answers/mpi/ring_shift.py
    answers = Answers("ring_shift")

    @answers.wrong("no_wait")
    def isend_without_wait(x, comm): …

    answers.edit("wrong_source", "from_the_right", ("source=left", "source=right"))

    @answers.right
    def posted_receive(x, comm): …

`parlab try ring_shift` runs the check on the reference, `parlab try ring_shift no_wait` on the
wrong answers with that mistake, and `parlab try ring_shift my_file.py` on your own function.
"""

from parlab_staff.answers.answers import Answer, Answers

__all__ = ["Answer", "Answers"]
