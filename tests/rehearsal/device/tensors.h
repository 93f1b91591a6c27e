// Operations that make tensors, copy them, or change their memory.
#pragma once
#include "operations.h"

namespace rehearsal {

using c10::IntArrayRef;
using Sizes = std::vector<int64_t>;

inline Sizes dense_strides(IntArrayRef size) {
  Sizes strides(size.size());
  int64_t step = 1;
  for (int64_t i = size.size() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= std::max<int64_t>(size[i], 1);
  }
  return strides;
}

inline at::Tensor empty_strided(IntArrayRef size, IntArrayRef stride,
                                std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                                std::optional<Device> device, std::optional<bool>) {
  const auto on = Guard::on(device ? device->index() : -1).index();
  TORCH_CHECK(on < gpu_count(), "CUDA error: invalid device ordinal");
  auto type = c10::scalarTypeToTypeMeta(dtype.value_or(c10::get_default_dtype_as_scalartype()));
  auto storage = new_storage(on, at::detail::computeStorageNbytes(size, stride, type.itemsize()));
  auto t = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                    DispatchKeySet(DispatchKey::CUDA), type);
  t.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  return t;
}

inline at::Tensor empty(IntArrayRef size, std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout> layout, std::optional<Device> device,
                        std::optional<bool> pin, std::optional<at::MemoryFormat>) {
  return empty_strided(size, dense_strides(size), dtype, layout, device, pin);
}

// Copies to pinned memory that the host has not waited for: until then, it reads rubbish.
struct LateCopies {
  struct Copy {
    at::Tensor to, data;
    Clock when;
  };
  std::mutex lock;
  std::vector<Copy> copies;

  void start(const at::Tensor& to, at::Tensor data, Clock when) {
    memset(to.data_ptr(), 0xFB, to.nbytes());
    std::lock_guard<std::mutex> guard(lock);
    copies.push_back({to, std::move(data), std::move(when)});
  }
  // What `stream` reads there: it may come after a copy that the host has not waited for.
  at::Tensor seen_by(const StreamKey& stream, const at::Tensor& from) {
    std::lock_guard<std::mutex> guard(lock);
    for (auto& copy : copies)
      if (copy.to.data_ptr() == from.data_ptr() && copy.to.sizes() == from.sizes() &&
          copy.to.dtype() == from.dtype() && stream_has_seen(stream, copy.when))
        return copy.data;
    return from;
  }
  void finish() {
    std::lock_guard<std::mutex> guard(lock);
    std::erase_if(copies, [](Copy& copy) {
      if (!host_has_seen(copy.when)) return false;
      copy.to.copy_(copy.data);
      return true;
    });
  }
};
inline LateCopies late_copies;

// Copy on the current stream; nobody waits.
inline DeviceIndex copy_on_stream(at::Tensor to, at::Tensor from) {
  static auto op = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("aten::copy_", "")
                       .typed<at::Tensor&(at::Tensor&, const at::Tensor&, bool)>();
  Call call;
  if (is_cuda(to)) to = call.alias(to, true);
  if (is_cuda(from)) from = call.alias(from, false);
  call.begin();
  op.redispatch(DispatchKeySet(DispatchKey::CPU), to, from, false);
  return call.device;
}

inline at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (is_cuda(self)) {
    const bool late = non_blocking && pinned.contains(source.data_ptr());
    const auto stream = stream_of(self.device().index());
    copy_on_stream(self, late ? late_copies.seen_by(stream, source) : source);
  } else if (non_blocking && self.is_contiguous() && pinned.contains(self.data_ptr())) {
    auto data = at::empty_like(self, self.options().pinned_memory(false));
    const auto device = copy_on_stream(data, source);
    late_copies.start(self, data, clock_of(stream_of(device)));
  } else {
    const auto device = copy_on_stream(self, source);
    host_waits(clock_of(stream_of(device)));
  }
  return self;
}

// Give a storage other memory, which views of it then have, too, as on a GPU.
inline void resize_storage(const c10::Storage& storage, DeviceIndex device, size_t bytes) {
  auto other = new_storage(device, bytes);
  auto* impl = storage.unsafeGetStorageImpl();
  if (const size_t kept = std::min<size_t>(bytes, impl->nbytes())) {
    auto *from = block_of(storage), *to = block_of(other);
    Opened opened({from, to});
    memcpy(to->memory, from->memory, kept);
    to->accesses = from->accesses;
  }
  auto nothing = c10::DataPtr(nullptr, Device(DeviceType::CUDA, device));
  impl->set_data_ptr(other.unsafeGetStorageImpl()->set_data_ptr(std::move(nothing)));
  impl->set_nbytes(bytes);
}

inline const at::Tensor& resize_(const at::Tensor& self, IntArrayRef size,
                                 std::optional<at::MemoryFormat>) {
  const auto strides = dense_strides(size);
  const size_t bytes = at::detail::computeStorageNbytes(size, strides, self.dtype().itemsize(),
                                                        self.storage_offset());
  if (bytes > self.storage().nbytes())
    resize_storage(self.storage(), self.device().index(), bytes);
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, strides);
  return self;
}

inline at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset,
                               IntArrayRef size, IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  const auto strides = dense_strides(size);
  const bool given = stride.size() || size.empty();
  impl->set_sizes_and_strides(size, given ? stride : IntArrayRef(strides), offset);
  return self;
}

inline at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const int64_t count = source.nbytes() / self.dtype().itemsize();
  return set_storage(self, std::move(source), 0, {count}, {1});
}

inline at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(),
                     source.strides());
}

// Which kernel scaled dot-product attention takes: 0 is the one made of other operations.
inline int64_t attention_choice(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                const std::optional<at::Tensor>&, double, bool,
                                std::optional<double>, bool) {
  return 0;
}

}  // namespace rehearsal
