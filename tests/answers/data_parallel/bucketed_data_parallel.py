"""Answers to `bucketed_data_parallel`."""

import torch.distributed as dist

from parlab_staff.answers import Answers

answers = Answers("bucketed_data_parallel")
Reference = answers.reference()

START = "dist.all_reduce(buffer, group=self.group, async_op=True)"
TURN = "while self.started < len(self.buckets) and self.missing[self.started] == 0:"
LEFT = "        while self.started < len(self.buckets):\n            self.start_next()\n"
WAIT = "        for work in self.works:\n            work.wait()\n"
RESTART = WAIT + "        self.restart()\n"

answers.edit("left_out", "unused_left_out", (LEFT, ""))
answers.edit(
    "too_early",
    "at_the_first_gradient",
    (
        "self.missing[self.started] == 0",
        "self.missing[self.started] < len(self.buckets[self.started])",
    ),
)
answers.edit("no_overlap", "all_in_finish", (TURN, "while False:"))
answers.edit("no_overlap", "if_for_while", (TURN, TURN.replace("while", "if")))
answers.edit("no_wait", "not_awaited", (WAIT, ""))
answers.edit("not_awaited", "last_awaited_only", (WAIT, "        self.works[-1].wait()\n"))
answers.edit(None, "no_restart", (RESTART, WAIT), says="step 2")
answers.edit(
    None,
    "one_by_one",
    (LEFT, LEFT + "            self.works.pop().wait()\n"),
    says="before it has started all buckets",
)
answers.edit(
    None,
    "waits_twice",
    (WAIT, WAIT + WAIT),
    says="waits for handles [0, 0, 1, 1, 2, 2, 3, 3], expected each one once",
)
answers.edit(
    None,
    "limit_ignored",
    ("assign_buckets(model, bucket_bytes)", "assign_buckets(model, 25 * 2**20)"),
    says="which exceeds the limit",
)
answers.edit("raises", "without_async", (START, START.replace(", async_op=True", "")))
answers.edit(
    "default_group",
    "default_group",
    ("dist.all_reduce(buffer, group=self.group,", "dist.all_reduce(buffer,"),
)
answers.edit(
    "divided_again",
    "averaged",
    (WAIT, WAIT + "        for buffer in self.buffers:\n            buffer /= self.group.size()\n"),
)
answers.edit(
    None,
    "largest",
    (START, START.replace("buffer,", "buffer, op=dist.ReduceOp.MAX,")),
    says="the gradient of",
)
answers.edit(
    "left_the_buffers",
    "zero_grad_to_none",
    ("            buffer.zero_()", "            self.model.zero_grad(set_to_none=True)"),
)


class _Wrong(Reference):
    def start(self, i):
        self.works.append(dist.all_reduce(self.buffers[i], group=self.group, async_op=True))


@answers.wrong("as_they_come")
class AsTheyCome(_Wrong):
    def restart(self):
        super().restart()
        self.sent = set()

    def gradient_ready(self, i):
        if self.synchronize:
            self.missing[i] -= 1
            if self.missing[i] == 0:
                self.sent.add(i)
                self.start(i)

    def finish(self):
        for i in range(len(self.buckets)):
            if i not in self.sent:
                self.start(i)
        for work in self.works:
            work.wait()
        self.restart()


@answers.wrong("blocking")
class Blocking(Reference):
    def start_next(self):
        dist.all_reduce(self.buffers[self.started], group=self.group)
        self.started += 1


@answers.wrong(None, says="all-reduces of buffers [0, 1, 2, 3, 0")
class WholeBucketEachTime(_Wrong):
    def gradient_ready(self, i):
        self.start(i)


@answers.wrong(None, says="is complete, but starts only after")
class OneBucketBehind(Reference):
    def gradient_ready(self, i):
        if not self.synchronize:
            return
        before = [m == 0 for m in self.missing]
        self.missing[i] -= 1
        while self.started < len(self.buckets) and before[self.started]:
            self.start_next()
        if not any(self.missing):
            while self.started < len(self.buckets):
                self.start_next()


@answers.wrong(None, says="no_sync")
class SendsInNoSync(Reference):
    def gradient_ready(self, i):
        synchronize, self.synchronize = self.synchronize, True
        super().gradient_ready(i)
        self.synchronize = synchronize


@answers.right
class ForLoopInFinish(Reference):
    def finish(self):
        for _ in range(self.started, len(self.buckets)):
            self.start_next()
        while self.works:
            self.works.pop(0).wait()
        self.restart()


@answers.right
class WaitsForTheLastFirst(Reference):
    def finish(self):
        while self.started != len(self.buckets):
            self.start_next()
        for work in reversed(self.works):
            work.wait()
        self.restart()


@answers.right
class StartsInAHelper(_Wrong):
    def gradient_ready(self, i):
        if self.synchronize:
            self.missing[i] = self.missing[i] - 1
            self.start_complete()

    def start_complete(self):
        for bucket in range(self.started, len(self.buckets)):
            if self.missing[bucket]:
                return
            self.start(bucket)
            self.started = bucket + 1


@answers.right
class CountsReadyOnes(Reference):
    def restart(self):
        super().restart()
        self.ready = [0] * len(self.buckets)

    def gradient_ready(self, i):
        if self.synchronize:
            self.ready[i] += 1
            while self.started < len(self.buckets) and self.ready[self.started] == len(
                self.buckets[self.started]
            ):
                self.start_next()


@answers.right
class SumNamed(Reference):
    def start_next(self):
        handle = dist.all_reduce(
            self.buffers[self.started], dist.ReduceOp.SUM, self.group, async_op=True
        )
        self.works += [handle]
        self.started += 1
