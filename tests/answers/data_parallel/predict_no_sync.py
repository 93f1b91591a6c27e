"""Answers to `predict_no_sync`."""

from types import MappingProxyType

from parlab_staff.answers import Answers

answers = Answers("predict_no_sync")

answers.edit("sent_each_time", "sent_each_time", ('"bytes_here": 1', '"bytes_here": 4'))
answers.edit("alike_here", "summed_all_the_same", ('"alike_here": 0', '"alike_here": 1'))
answers.edit("sent_once", "sent_once", ('"bytes_ddp": 4', '"bytes_ddp": 1'))
answers.edit("apart_ddp", "drifts_apart", ('"alike_ddp": 1', '"alike_ddp": 0'))
answers.edit(None, "nothing_sent", ('"bytes_here": 1', '"bytes_here": 0'), says="bytes_here")
answers.edit(None, "on_a_ring", ('"bytes_ddp": 4', '"bytes_ddp": 6'), says="bytes_ddp")
answers.edit("returns_none", "no_return", ("return {", "x = {"))
answers.edit("wrong_type", "words", ('"alike_ddp": 1', '"alike_ddp": "yes"'))


@answers.right
def with_truth_values():
    return {"bytes_here": 1, "alike_here": False, "bytes_ddp": 4, "alike_ddp": True}


@answers.right
def with_fractions():
    return {"bytes_here": 1.0, "alike_here": 0.0, "bytes_ddp": 4.0, "alike_ddp": 1.0}


@answers.right
def by_name():
    return dict(alike_ddp=1, alike_here=0, bytes_ddp=4, bytes_here=1)


@answers.right
def read_only():
    return MappingProxyType(answers.reference()())


@answers.right
def with_more():
    return answers.reference()() | {"bytes_with_no_sync": 1}
