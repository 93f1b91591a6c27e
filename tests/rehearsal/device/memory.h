// Device memory. Only operations of the device may touch it. It is protected from the host's code,
// so MPI, Gloo, or NumPy get a fault, as they do on a GPU.
#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "settings.h"
#include "streams.h"

namespace rehearsal {

struct Block {
  void* memory;
  size_t bytes, mapped_bytes;
  c10::DeviceIndex device;
  int users = 0;  // operations that use it now
  std::mutex lock;
  Accesses accesses;

  void open() {
    std::lock_guard<std::mutex> guard(lock);
    if (users++ == 0) protect(PROT_READ | PROT_WRITE);
  }
  void close() {
    std::lock_guard<std::mutex> guard(lock);
    if (--users == 0) protect(PROT_NONE);
  }
  void protect(int how) {
    if (mapped_bytes && protects_memory()) mprotect(memory, mapped_bytes, how);
  }
};

// Opens blocks until the end of a scope.
class Opened {
 public:
  Opened() = default;
  Opened(const Opened&) = delete;
  explicit Opened(std::vector<Block*> blocks) : blocks_(std::move(blocks)) {
    for (auto* block : blocks_) block->open();
  }
  ~Opened() {
    for (auto* block : blocks_) block->close();
  }
  void add(Block* block) {
    block->open();
    blocks_.push_back(block);
  }

 private:
  std::vector<Block*> blocks_;
};

// What the caching allocator reports, in steps of 512 bytes as there.
struct Counts {
  std::mutex lock;
  int64_t live[kMostGpus] = {}, peak[kMostGpus] = {};

  void add(c10::DeviceIndex device, int64_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    live[device] += bytes;
    peak[device] = std::max(peak[device], live[device]);
  }
};
inline Counts counts;
inline int64_t rounded_up(size_t bytes) { return (bytes + 511) / 512 * 512; }

// Freed memory is handed out again with its contents, as on a GPU.
class Freed {
 public:
  void keep(void* memory, size_t mapped_bytes) {
    std::lock_guard<std::mutex> guard(lock_);
    if (kept_bytes_ + mapped_bytes > kMostBytes) {
      munmap(memory, mapped_bytes);
      return;
    }
    kept_[mapped_bytes].push_back(memory);
    kept_bytes_ += mapped_bytes;
  }
  void* take(size_t mapped_bytes) {
    std::lock_guard<std::mutex> guard(lock_);
    auto& same_size = kept_[mapped_bytes];
    if (same_size.empty()) return nullptr;
    void* memory = same_size.back();
    same_size.pop_back();
    kept_bytes_ -= mapped_bytes;
    return memory;
  }

 private:
  static constexpr size_t kMostBytes = size_t(256) << 20;
  std::mutex lock_;
  std::unordered_map<size_t, std::vector<void*>> kept_;
  size_t kept_bytes_ = 0;
};
inline Freed freed;

inline void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  if (block->mapped_bytes) freed.keep(block->memory, block->mapped_bytes);
  counts.add(block->device, -rounded_up(block->bytes));
  delete block;
}

inline void* new_memory(size_t bytes, size_t mapped_bytes) {
  if (!mapped_bytes) return nullptr;
  if (void* memory = freed.take(mapped_bytes)) return memory;
  void* memory = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                      -1, 0);
  TORCH_CHECK(memory != MAP_FAILED, "CUDA out of memory (rehearsal)");
  memset(memory, 0xFB, bytes);  // nobody may rely on zeros
  if (protects_memory()) mprotect(memory, mapped_bytes, PROT_NONE);
  return memory;
}

// In exclusive compute mode, the first process that uses a GPU keeps it.
inline void claim(c10::DeviceIndex device) {
  static const char* folder = getenv("REHEARSAL_EXCLUSIVE");
  static std::mutex lock;
  static std::set<int> claimed;
  if (!folder) return;
  std::lock_guard<std::mutex> guard(lock);
  if (claimed.count(device)) return;
  const auto path = std::string(folder) + "/gpu" + std::to_string(device);
  const int file = open(path.c_str(), O_CREAT | O_RDWR, 0600);
  TORCH_CHECK(file >= 0 && flock(file, LOCK_EX | LOCK_NB) == 0,
              "CUDA error: CUDA-capable device(s) is/are busy or unavailable");
  claimed.insert(device);
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    claim(current_device);
    static const size_t page = sysconf(_SC_PAGESIZE);
    const size_t mapped_bytes = (bytes + page - 1) / page * page;
    void* memory = new_memory(bytes, mapped_bytes);
    auto* block = new Block{memory, bytes, mapped_bytes, current_device};
    counts.add(current_device, rounded_up(bytes));
    return {memory, block, &free_block, c10::Device(c10::DeviceType::CUDA, current_device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "the rehearsal's allocator copies nothing");
  }
};
inline DeviceAllocator device_allocator;

// The block of a CUDA tensor's storage; nullptr for other tensors.
inline Block* block_of(const c10::Storage& storage) {
  auto& data = storage.data_ptr();
  return data.get_deleter() == &free_block ? static_cast<Block*>(data.get_context()) : nullptr;
}

// Pinned host memory

struct PinnedRanges {
  std::mutex lock;
  std::set<std::pair<const char*, const char*>> ranges;

  bool contains(const void* address) {
    std::lock_guard<std::mutex> guard(lock);
    for (auto& [begin, end] : ranges)
      if (address >= begin && address < end) return true;
    return false;
  }
};
inline PinnedRanges pinned;

struct Pinned {
  void* memory;
  std::pair<const char*, const char*> range;
};

inline void free_pinned(void* context) {
  auto* own = static_cast<Pinned*>(context);
  {
    std::lock_guard<std::mutex> guard(pinned.lock);
    pinned.ranges.erase(own->range);
  }
  free(own->memory);
  delete own;
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, bytes + 64)) throw std::bad_alloc();
    auto* begin = static_cast<const char*>(memory);
    auto* own = new Pinned{memory, {begin, begin + bytes}};
    std::lock_guard<std::mutex> guard(pinned.lock);
    pinned.ranges.insert(own->range);
    return {memory, own, &free_pinned, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};
inline PinnedAllocator pinned_allocator;

}  // namespace rehearsal
