"""Answers to `prefetch`."""

from parlab.answers import Answers

answers = Answers("prefetch")
Reference = answers.reference()


def following(unit, order):
    place = order.index(unit) + 1
    return order[place] if place < len(order) else None


FORWARD = "        self.start(following(unit, self.units))\n"
BACKWARD = "        self.start(following(unit, self.ended[::-1]))\n"

answers.edit("not_ahead", "not_ahead", (FORWARD, ""))
answers.edit("not_ahead", "forward_only", (BACKWARD, ""))
answers.edit(
    "not_ahead", "reversed_units", (BACKWARD, BACKWARD.replace("self.ended", "self.units"))
)
answers.edit(
    "too_far", "forward_again", (BACKWARD, BACKWARD.replace("self.ended[::-1]", "self.units"))
)
answers.edit(
    "too_far",
    "two_ahead",
    (
        FORWARD,
        FORWARD
        + "        ahead = following(unit, self.units)\n"
        + "        if ahead: self.start(following(ahead, self.units))\n",
    ),
)
answers.edit(
    "waited_for_next",
    "waits_for_the_next",
    (
        FORWARD,
        FORWARD
        + "        ahead = following(unit, self.units)\n        if ahead: ahead.work.wait()\n",
    ),
)


WAIT = "        unit.work.wait()\n"


answers.edit(
    "freed_before_wait", "never_awaited", (WAIT + FORWARD, FORWARD), (WAIT + BACKWARD, BACKWARD)
)


@answers.wrong("after_the_last")
class AroundTheCorner(Reference):
    """After the last unit comes the first again."""

    def before_forward(self, unit):
        self.start(unit)
        unit.work.wait()
        self.start(self.units[(self.units.index(unit) + 1) % len(self.units)])


@answers.wrong("kept_after_step")
class AroundTheCornerBackward(Reference):
    """An index below zero is the last unit's."""

    def before_backward(self, unit):
        self.start(unit)
        unit.work.wait()
        self.start(self.ended[self.ended.index(unit) - 1])


@answers.wrong("too_far")
class EverythingAtOnce(Reference):
    """All gathers of a pass at its beginning."""

    def before_forward(self, unit):
        for other in self.units[self.units.index(unit) :]:
            self.start(other)
        unit.work.wait()


@answers.wrong("not_whole_backward")
class NothingInBackward(Reference):
    def before_backward(self, unit):
        pass


@answers.wrong("not_awaited")
class WaitsTooLate(Reference):
    """The first is waited for, then each only when the one after it begins."""

    def before_forward(self, unit):
        self.start(unit)
        self.start(following(unit, self.units))

    def after_forward(self, unit):
        unit.work.wait()
        super().after_forward(unit)


@answers.right
class NextFirst(Reference):
    """The next is started before one's own is waited for."""

    def before_forward(self, unit):
        self.start(unit)
        self.start(following(unit, self.units))
        unit.work.wait()


@answers.right
class OneHelper(Reference):
    def before_forward(self, unit):
        self.go(unit, self.units)

    def before_backward(self, unit):
        self.go(unit, list(reversed(self.ended)))

    def go(self, unit, order):
        if unit.work is None:
            self.start(unit)
        unit.work.wait()
        self.start(following(unit, order))


@answers.right
class ByPlace(Reference):
    def before_forward(self, unit):
        self.start(unit)
        unit.work.wait()
        place = self.units.index(unit)
        if place + 1 < len(self.units):
            self.start(self.units[place + 1])


@answers.right
class OrderKept(Reference):
    """The order of the backward pass is worked out from where a unit's pass ended."""

    def before_backward(self, unit):
        self.start(unit)
        unit.work.wait()
        place = self.ended.index(unit)
        self.start(self.ended[place - 1] if place else None)


@answers.right
class TwiceAwaited(Reference):
    def before_forward(self, unit):
        self.start(unit)
        unit.work.wait()
        unit.work.wait()
        self.start(following(unit, self.units))
