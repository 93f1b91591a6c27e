"""Answers to `prefetch`."""

from parlab_staff.answers import Answers

answers = Answers("prefetch")
Reference = answers.reference()

FORWARD = "        self.start(following(unit, self.units))\n"
BACKWARD = "        self.start(following(unit, self.ended[::-1]))\n"
WAIT = "        unit.work.wait()\n"
NEXT = "        ahead = following(unit, self.units)\n"
TWO_AHEAD = f"{FORWARD}{NEXT}        if ahead: self.start(following(ahead, self.units))\n"
WAITS_AHEAD = f"{FORWARD}{NEXT}        if ahead: ahead.work.wait()\n"
OWN_LATE = "        self.start(unit)\n" + WAIT + BACKWARD

for mistake, name, *edits in (
    ("not_ahead", "not_ahead", FORWARD, ""),
    ("not_ahead", "forward_only", BACKWARD, ""),
    ("not_ahead", "reversed_units", BACKWARD, BACKWARD.replace("ended", "units")),
    ("not_ahead", "forward_again", BACKWARD, BACKWARD.replace("ended[::-1]", "units")),
    ("too_far", "two_ahead", FORWARD, TWO_AHEAD),
    ("waited_for_next", "waits_for_the_next", FORWARD, WAITS_AHEAD),
    ("freed_before_wait", "never_awaited", WAIT + FORWARD, FORWARD, WAIT + BACKWARD, BACKWARD),
    ("not_whole", "nothing_in_backward", OWN_LATE, "        pass\n"),
):
    answers.edit(mistake, name, *zip(edits[::2], edits[1::2], strict=True))

answers.edit(
    None,
    "lengths_gathered",
    (
        FORWARD,
        f"{FORWARD}        lengths = torch.empty(self.group.size(), dtype=torch.int64)\n"
        "        own = torch.tensor([len(unit.shard)])\n"
        "        dist.all_gather_single(lengths, own, group=self.group)\n",
    ),
    says="bytes, expected those of a unit",
)


def following(unit, order):
    place = order.index(unit) + 1
    return order[place] if place < len(order) else None


@answers.wrong("too_far")
class AroundTheCorner(Reference):
    """After the last unit comes the first."""

    def before_forward(self, unit):
        self.start(unit)
        unit.work.wait()
        self.start(self.units[(self.units.index(unit) + 1) % len(self.units)])


@answers.wrong("too_far")
class AroundTheCornerBackward(Reference):
    """An index of −1 is the last unit's."""

    def before_backward(self, unit):
        self.start(unit)
        unit.work.wait()
        self.start(self.ended[self.ended.index(unit) - 1])


@answers.wrong("not_awaited")
class WaitsTooLate(Reference):
    def before_forward(self, unit):
        self.start(unit)
        self.start(following(unit, self.units))

    def after_forward(self, unit):
        unit.work.wait()
        super().after_forward(unit)


@answers.right
class NextFirst(Reference):
    """Start the next gather before waiting for the unit's own."""

    def before_forward(self, unit):
        self.start(unit)
        self.start(following(unit, self.units))
        unit.work.wait()


@answers.right
class OneHelper(Reference):
    def before_forward(self, unit):
        self.fetch(unit, self.units)

    def before_backward(self, unit):
        self.fetch(unit, list(reversed(self.ended)))

    def fetch(self, unit, order):
        if unit.work is None:
            self.start(unit)
        unit.work.wait()
        self.start(following(unit, order))


@answers.right
class ByPlace(Reference):
    def before_forward(self, unit):
        self.start(unit)
        unit.work.wait()
        for other in self.units[self.units.index(unit) + 1 :][:1]:
            self.start(other)


@answers.right
class OrderOfEndings(Reference):
    def before_backward(self, unit):
        self.start(unit)
        unit.work.wait()
        place = self.ended.index(unit)
        self.start(self.ended[place - 1] if place else None)


@answers.right
class AwaitedTwice(Reference):
    def before_forward(self, unit):
        super().before_forward(unit)
        unit.work.wait()
