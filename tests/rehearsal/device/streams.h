// Streams. An operation is carried out when it is called, but a stream counts as behind: what it
// wrote may be used on another stream, or read by the host, only after waiting for it. Each stream
// knows how far the others had come when it last waited for them (a vector clock), and each block
// of memory knows who used it last. Using it too early is an error, every time.
#pragma once
#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "settings.h"

namespace rehearsal {

using StreamKey = std::pair<int, int64_t>;  // device, number
using Clock = std::map<StreamKey, int64_t>;

inline thread_local c10::DeviceIndex current_device = 0;
inline thread_local int64_t current_stream[kMostGpus] = {};

inline void join(Clock& own, const Clock& other) {
  for (auto& [key, time] : other) own[key] = std::max(own[key], time);
}

struct Streams {
  std::mutex lock;
  std::map<StreamKey, Clock> clocks;  // what each stream has seen, itself included
  Clock host;                         // what the host has waited for
  int64_t made = 0;

  int64_t make() {
    std::lock_guard<std::mutex> guard(lock);
    return ++made;
  }
};
inline Streams streams;

inline StreamKey stream_of(c10::DeviceIndex device) { return {device, current_stream[device]}; }

inline std::string name_of(const StreamKey& stream) {
  return stream.second ? "stream " + std::to_string(stream.second) : "the default stream";
}

// Who wrote a block of memory last, and who has read it since.
struct Accesses {
  StreamKey writer{0, 0};
  int64_t written = 0;
  Clock reads;

  // Note that `stream` uses the block in its next operation. `streams.lock` is held.
  void use(const StreamKey& stream, bool writes) {
    Clock& seen = streams.clocks[stream];
    TORCH_CHECK(written <= seen[writer], name_of(stream), writes ? " writes" : " reads",
                " memory that ", name_of(writer), " may still write: let it wait for that stream",
                " (rehearsal)");
    if (!writes) {
      reads[stream] = seen[stream];
      return;
    }
    for (auto& [reader, time] : reads)
      TORCH_CHECK(time <= seen[reader], name_of(stream), " writes memory that ", name_of(reader),
                  " may still read: let it wait for that stream (rehearsal)");
    writer = stream;
    written = seen[stream];
    reads.clear();
  }
};

// Begin an operation on a stream: the host starts it after all that it has waited for.
inline void begin_operation(const StreamKey& stream) {
  Clock& seen = streams.clocks[stream];
  join(seen, streams.host);
  ++seen[stream];
}

inline Clock clock_of(const StreamKey& stream) {
  std::lock_guard<std::mutex> guard(streams.lock);
  return streams.clocks[stream];
}

inline void stream_waits(const StreamKey& stream, const Clock& other) {
  std::lock_guard<std::mutex> guard(streams.lock);
  join(streams.clocks[stream], other);
}

inline void (*after_host_waited)() = nullptr;

inline void host_waits(const Clock& other) {
  {
    std::lock_guard<std::mutex> guard(streams.lock);
    join(streams.host, other);
  }
  if (after_host_waited) after_host_waited();
}

inline void host_waits_for_device(c10::DeviceIndex device) {
  Clock all;
  {
    std::lock_guard<std::mutex> guard(streams.lock);
    for (auto& [stream, clock] : streams.clocks)
      if (stream.first == device) join(all, clock);
  }
  host_waits(all);
}

inline bool stream_has_seen(const StreamKey& stream, const Clock& other) {
  std::lock_guard<std::mutex> guard(streams.lock);
  Clock& seen = streams.clocks[stream];
  for (auto& [writer, time] : other)
    if (seen[writer] < time) return false;
  return true;
}

inline bool host_has_seen(const Clock& other) {
  std::lock_guard<std::mutex> guard(streams.lock);
  for (auto& [stream, time] : other)
    if (streams.host[stream] < time) return false;
  return true;
}

}  // namespace rehearsal
