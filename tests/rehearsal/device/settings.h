// Settings, from the environment.
#pragma once
#include <cstdlib>
#include <cstring>

namespace rehearsal {

constexpr int kMostGpus = 16;

inline int number(const char* name, int otherwise) {
  const char* value = getenv(name);
  return value ? atoi(value) : otherwise;
}

// How many GPUs this process sees.
inline int gpu_count() {
  static const int count = number("REHEARSAL_GPUS", 0);
  return count;
}

// Whether the host's code gets a fault when it touches device memory.
inline bool protects_memory() {
  static const bool on = number("REHEARSAL_PROTECT", 1);
  return on;
}

// Whether results are rounded as on another machine.
inline bool rounds_differently() {
  static const bool on = number("REHEARSAL_ROUNDING", 1);
  return on;
}

// Whether a message of the NCCL stand-in leaves although its receiver has not come.
inline bool buffers_messages() {
  static const bool on = number("REHEARSAL_BUFFERED", 0);
  return on;
}

// After so many seconds, ranks of the NCCL stand-in that wait for each other are in a deadlock.
inline int deadlock_seconds() {
  static const int seconds = number("REHEARSAL_DEADLOCK_SECONDS", 20);
  return seconds;
}

}  // namespace rehearsal
