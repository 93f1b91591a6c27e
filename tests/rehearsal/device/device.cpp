// A CUDA device without a GPU, for torch's CPU build: see ../README.md. The headers have its parts.
#include <torch/library.h>

#include "messages.h"

namespace rehearsal {

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("copy_", copy_);
  library.impl("resize_", resize_);
  library.impl("set_.source_Storage_storage_offset", set_storage);
  library.impl("set_.source_Storage", set_whole_storage);
  library.impl("set_.source_Tensor", set_tensor);
  library.impl("_fused_sdp_choice", attention_choice);
}

TORCH_LIBRARY_IMPL(c10d, CUDA, library) {
  for (const char* name :
       {"allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_", "allgather_",
        "_allgather_base_", "allgather_into_tensor_coalesced_", "reduce_scatter_",
        "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_", "alltoall_", "alltoall_base_",
        "gather_", "scatter_", "barrier"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&collective>());
  library.impl("send", send);
  library.impl("recv_", receive);
}

static int64_t stream_number(int64_t device) { return current_stream[device]; }

TORCH_LIBRARY(rehearsal, library) {
  library.def("live(int device) -> int", [](int64_t device) { return counts.live[device]; });
  library.def("peak(int device) -> int", [](int64_t device) { return counts.peak[device]; });
  library.def("reset_peak(int device) -> ()",
              [](int64_t device) { counts.peak[device] = counts.live[device]; });
  library.def("resize_storage(Tensor t, int bytes) -> ()", [](const at::Tensor& t, int64_t bytes) {
    resize_storage(t.storage(), t.device().index(), bytes);
  });
  library.def("device() -> int", []() { return static_cast<int64_t>(current_device); });
  library.def("set_device(int device) -> ()", [](int64_t device) {
    TORCH_CHECK(device < gpu_count(), "CUDA error: invalid device ordinal");
    current_device = device;
  });
  library.def("default_generator(int device) -> Generator?",
              [](int64_t device) { return default_generator(device); });
  library.def("synchronize(int device) -> ()",
              [](int64_t device) { host_waits_for_device(device); });
  library.def("new_stream() -> int", []() { return streams.make(); });
  library.def("stream(int device) -> int", stream_number);
  library.def("set_stream(int device, int stream) -> ()",
              [](int64_t device, int64_t stream) { current_stream[device] = stream; });
  library.def("set_in_batch(bool on) -> ()", [](bool on) { in_batch = on; });
}

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

static const bool allocator_set = [] {
  c10::SetAllocator(DeviceType::CUDA, &device_allocator);
  after_host_waited = [] { late_copies.finish(); };
  return true;
}();

}  // namespace rehearsal

extern "C" void rehearsal_set_hooks(const void*) __attribute__((weak));
static const bool hooks_set = [] {
  TORCH_CHECK(rehearsal_set_hooks, "start the process with the variables of tests.rehearsal");
  rehearsal_set_hooks(new rehearsal::Hooks(at::CUDAHooksArgs()));
  return true;
}();

namespace c10d {
using rehearsal::NoTimer;
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, NoTimer)
}  // namespace c10d
