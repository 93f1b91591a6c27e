// Preloaded into a process before torch. torch's CPU build knows when it is compiled that it has no
// accelerator. These functions take the place of the ones that say so.
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <optional>

#define EXPORTED __attribute__((visibility("default")))

namespace c10 {
enum class DeviceType : int8_t { CPU = 0, CUDA = 1, META = 9 };
}

namespace at::accelerator {

EXPORTED std::optional<c10::DeviceType> getAccelerator(bool) {
  const char* gpus = getenv("REHEARSAL_GPUS");
  if (gpus && atoi(gpus) > 0) return c10::DeviceType::CUDA;
  return std::nullopt;
}

EXPORTED bool isAccelerator(c10::DeviceType type) {
  return type != c10::DeviceType::CPU && type != c10::DeviceType::META;
}

}  // namespace at::accelerator

// torch creates its own CUDA hooks once, before anybody can register others.
static const void* our_hooks = nullptr;

extern "C" EXPORTED void rehearsal_set_hooks(const void* hooks) { our_hooks = hooks; }

namespace at {

struct CUDAHooksInterface;

namespace detail {

EXPORTED const CUDAHooksInterface& getCUDAHooks() {
  if (our_hooks) return *static_cast<const CUDAHooksInterface*>(our_hooks);
  using Get = const CUDAHooksInterface& (*)();
  static auto torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  static auto get = reinterpret_cast<Get>(dlsym(torch, "_ZN2at6detail12getCUDAHooksEv"));
  return get();
}

}  // namespace detail
}  // namespace at
