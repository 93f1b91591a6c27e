// The playground's picture and verdict, from made-up runs. `test_play_steps.py` runs this.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Steps, offered, sent } from "../../parlab_staff/play/page/steps.js";

const call = (rank, api, kind, peer, t0, t1, order, line = 1) => ({ rank, api, kind, peer, bytes: 8, tag: 0, t0, t1, line, order });
// Rank 0 sends at 1 and waits until rank 1 receives at 4. Then rank 1 computes, and sends for ever.
const RUN = [
  call(0, "Send", "send", 1, 1, 5, 7),
  call(1, "Recv", "recv", 0, 4, 6, 7),
  call(1, "Send", "send", 0, 9, 10, -1, 2),
  call(0, "allgather", "collective", -1, 0, 0.5, 3, 0),
];

test("calls outside of the program are left out", () => {
  assert.equal(new Steps(RUN, 2).events.length, 3);
});
test("a send waits until its receive begins, and a receive that comes later does not wait", () => {
  const steps = new Steps(RUN, 2);
  assert.deepEqual(steps.events.slice(0, 2).map((event) => steps.waitsUntil(event)), [4, 4]);
});
test("a rank waits in a collective until all ranks are in it, but not if it has a root", () => {
  const both = (peer) => new Steps([0, 1].map((rank) => call(rank, "", "collective", peer, 1 + rank, 3, 5)), 2);
  const waits = (steps) => steps.events.map((event) => steps.waitsUntil(event));
  assert.deepEqual([waits(both(-1)), waits(both(0))], [[2, 2], [1, 2]]);
});
test("a call without a partner waits until the end of the picture", () => {
  const steps = new Steps(RUN, 2);
  assert.equal(steps.end(steps.events[2]), 9);
  assert.deepEqual(steps.moments, [1, 4, 5, 6, 9]);
});
test("a step shows each rank's line and the messages in flight", () => {
  const steps = new Steps(RUN, 2);
  const at = (index) => steps.at(index);
  assert.deepEqual(at(0).ranks.map((one) => one.line), [1, 0]);
  assert.deepEqual(at(0).inFlight.map((send) => send.rank), [0]);
  assert.deepEqual(at(2).inFlight.map((send) => send.rank), [0], "its receive has not ended");
  assert.deepEqual(at(3).inFlight, []);
  assert.deepEqual(at(4).inFlight.map((send) => [send.rank, send.line]), [[1, 2]]);
});
test("a step knows which ranks have calls to come", () => {
  assert.deepEqual(new Steps(RUN, 3).at(0).ranks.map((one) => one.after), [false, true, false]);
});
test("between two calls, a rank runs other code", () => {
  assert.deepEqual(new Steps(RUN, 2).between(), [{ rank: 1, from: 6, to: 9 }]);
});
test("a call that returns at once holds no rank, and ends with its message", () => {
  const steps = new Steps([
    call(0, "Isend", "send", 1, 1, 9, 7), call(0, "Barrier", "collective", -1, 2, 3, 8),
    call(0, "Barrier", "collective", -1, 5, 6, 9), call(1, "Recv", "recv", 0, 1, 4, 7),
  ], 2);
  assert.deepEqual(steps.between(), [{ rank: 0, from: 3, to: 5 }]);
  assert.equal(steps.end(steps.events.find((event) => event.api === "Isend")), 4);
});
test("only messages that arrived are counted", () => {
  assert.deepEqual(sent(RUN, 2), [{ messages: 1, bytes: 8 }, { messages: 0, bytes: 0 }]);
  assert.deepEqual(offered(RUN), [RUN[2]]);
});
