// The order of what happened: from the events of a run to moments, and the ranks at each moment.
//
// An event is a call of a rank: {rank, api, kind, peer, bytes, tag, t0, t1, line, order}. A send and its
// receive have the same `order`, which is negative if the call never ended. Calls outside of the reader's
// program, such as those of the imports, have line 0 and are left out.

export const isSend = (event) => event.kind === "send";
export const isCollective = (event) => event.kind === "collective";
// Isend, irecv, and so on return at once, and are noted as ended when their rank makes a later call.
const returnsAtOnce = (event) => /^i(?!probe)/i.test(event.api);
export const neverEnds = (event) => event.order < 0;

export class Steps {
  constructor(events, size) {
    this.size = size;
    this.events = events.filter(({ line }) => line > 0).sort((a, b) => a.t0 - b.t0 || a.rank - b.rank);
    const last = Math.max(...this.events.map((event) => Math.max(event.t0, neverEnds(event) ? 0 : event.t1)));
    this.first = Math.min(...this.events.map((event) => event.t0));
    this.last = Math.max(last, this.first + 0.001);
    const ends = this.events.filter((event) => !neverEnds(event)).map((event) => event.t1);
    this.moments = [...new Set([...this.events.map((event) => event.t0), ...ends])].sort((a, b) => a - b);
    const of = (kind) =>
      new Map(
        this.events
          .filter((event) => event.kind === kind && event.order > 0)
          .map((event) => [event.order, event]),
      );
    this.sends = of("send");
    this.receives = of("recv");
    this.complete = new Map(); // of each collective without a root, when the last rank has begun it
    for (const event of this.events)
      if (isCollective(event) && event.peer < 0) this.complete.set(event.order, event.t0);
  }

  end(event) {
    if (neverEnds(event)) return this.last;
    const partner = returnsAtOnce(event) && this.partner(event);
    return partner ? Math.min(event.t1, Math.max(event.t0, partner.t1)) : event.t1;
  }

  partner(event) {
    if (neverEnds(event)) return undefined;
    return (isSend(event) ? this.receives : this.sends).get(event.order);
  }

  // Until when an event's rank waits: both sides of a message, or all ranks of a collective without a root,
  // must be in their call.
  waitsUntil(event) {
    if (neverEnds(event)) return this.last;
    const others = isCollective(event) ? this.complete.get(event.order) : this.partner(event)?.t0;
    return Math.min(Math.max(event.t0, others ?? 0), event.t1);
  }

  // The times in which a rank is in no blocking call, between its first call and its last one:
  // {rank, from, to}. A call that returns at once does not hold its rank.
  between() {
    return Array.from({ length: this.size }, (_, rank) => {
      const calls = this.events.filter((event) => event.rank === rank && !returnsAtOnce(event));
      const gaps = [];
      let until = Infinity;
      for (const call of calls) {
        if (call.t0 > until) gaps.push({ rank, from: until, to: call.t0 });
        until = Math.max(until === Infinity ? 0 : until, this.end(call));
      }
      return gaps;
    }).flat();
  }

  // What each rank does just after moment number `index`, and which messages are on their way.
  at(index) {
    const now = this.moments[index];
    const begun = this.events.filter((event) => event.t0 <= now);
    const open = begun.filter((event) => neverEnds(event) || event.t1 > now);
    const ranks = Array.from({ length: this.size }, (_, rank) => {
      const calls = open.filter((event) => event.rank === rank && !returnsAtOnce(event));
      const before = begun.filter((event) => event.rank === rank).at(-1);
      const after = this.events.some((event) => event.rank === rank && event.t0 > now);
      return { rank, calls, line: calls.at(-1)?.line ?? before?.line ?? 0, before, after };
    });
    const inFlight = open.filter(isSend).concat(
      // A send may end before its receive.
      begun.filter((event) => isSend(event) && !open.includes(event) && this.partner(event)?.t1 > now),
    );
    return { now, ranks, inFlight };
  }
}

// The other side of a call, in words.
export function other(event) {
  const rank = event.peer < 0 ? "any rank" : `rank ${event.peer}`;
  if (isCollective(event)) return event.peer < 0 ? "with all ranks" : `with root ${event.peer}`;
  return isSend(event) ? `to ${rank}` : `from ${rank}`;
}

// The bytes of a collective's data: what all ranks contribute together to a gather, and what one rank has or
// gets of any other collective.
export function bytesOf(call) {
  const each = call.map((event) => event.bytes);
  return /gather/i.test(call[0].api) ? each.reduce((all, one) => all + one, 0) : Math.max(...each);
}

// Messages and bytes that each rank has sent. As in the ledger, a send that found no receiver does not count.
export function sent(events, size) {
  const total = Array.from({ length: size }, () => ({ messages: 0, bytes: 0 }));
  for (const event of events)
    if (isSend(event) && !neverEnds(event)) {
      total[event.rank].messages += 1;
      total[event.rank].bytes += event.bytes;
    }
  return total;
}

// The sends that no rank received before the deadlock.
export const offered = (events) => events.filter((event) => isSend(event) && neverEnds(event));
