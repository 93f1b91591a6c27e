// One operation's call: it runs on the CPU, over the memory of the CUDA tensors.
#pragma once
#include <ATen/ATen.h>

#include <unordered_map>
#include <vector>

#include "hooks.h"

namespace rehearsal {

using c10::DispatchKey;
using c10::DispatchKeySet;

inline bool is_cuda(const at::Tensor& t) {
  return t.defined() && t.device().type() == DeviceType::CUDA;
}

inline c10::Storage new_storage(DeviceIndex device, size_t bytes) {
  auto before = exchange_device(device);
  auto data = device_allocator.allocate(bytes);
  current_device = before;
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), &device_allocator, true));
}

inline at::Tensor tensor_like(c10::Storage storage, const at::Tensor& like, DispatchKey key) {
  auto t = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), DispatchKeySet(key),
                                                    like.dtype());
  auto* impl = t.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return t;
}

class Call {
 public:
  DeviceIndex device = -1;

  // A CPU tensor over the memory of a CUDA tensor.
  at::Tensor alias(const at::Tensor& t, bool writes) {
    if (device < 0) device = t.device().index();
    if (auto* block = block_of(t.storage())) {
      opened_.add(block);
      uses_.push_back({block, writes});
    }
    auto made = tensor_like(alias_of(t.storage()), t, DispatchKey::CPU);
    if (t.unsafeGetTensorImpl()->is_wrapped_number())
      made.unsafeGetTensorImpl()->set_wrapped_number(true);
    if (t.is_conj()) made = made.conj();
    if (t.is_neg()) made = made._neg_view();
    given_.push_back({t, made});
    return made;
  }

  // Check that the current stream may use all that was aliased, and note that it does.
  void begin() {
    if (device < 0) device = current_device;  // an operation without CUDA tensors
    auto stream = stream_of(device);
    std::lock_guard<std::mutex> guard(streams.lock);
    begin_operation(stream);
    for (auto& [block, writes] : uses_) block->accesses.use(stream, writes);
  }

  // The CUDA tensor for a result on the CPU: one that was given, a view of it, or a new one.
  at::Tensor back(const at::Tensor& t) {
    if (!t.defined() || t.device().type() != DeviceType::CPU) return t;
    for (auto& given : given_)
      if (given.alias.is_same(t)) {
        resize(given);
        return given.original;
      }
    auto view_of = originals_.find(t.storage().unsafeGetStorageImpl());
    auto storage = view_of == originals_.end() ? copied(t) : view_of->second;
    return tensor_like(std::move(storage), t, DispatchKey::CUDA);
  }

  // An operation may have resized its arguments.
  void resize_given() {
    for (auto& given : given_) resize(given);
  }

 private:
  struct Given {
    at::Tensor original, alias;
  };

  c10::Storage alias_of(const c10::Storage& storage) {
    auto* key = storage.unsafeGetStorageImpl();
    if (auto found = aliases_.find(key); found != aliases_.end()) return found->second;
    c10::DataPtr memory(const_cast<void*>(storage.data()), Device(DeviceType::CPU));
    c10::Storage alias(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), storage.nbytes(), std::move(memory),
        c10::GetAllocator(DeviceType::CPU), true));
    originals_.emplace(alias.unsafeGetStorageImpl(), storage);
    return aliases_.emplace(key, alias).first->second;
  }

  c10::Storage copied(const at::Tensor& t) {
    auto storage = new_storage(device, t.storage().nbytes());
    auto* block = block_of(storage);
    Opened opened({block});
    if (t.storage().nbytes()) memcpy(block->memory, t.storage().data(), t.storage().nbytes());
    auto stream = stream_of(device);
    std::lock_guard<std::mutex> guard(streams.lock);
    block->accesses.use(stream, true);
    return storage;
  }

  void resize(Given& given) {
    if (given.alias.sizes() == given.original.sizes() &&
        given.alias.strides() == given.original.strides())
      return;
    auto* impl = given.original.unsafeGetTensorImpl();
    if (given.alias.storage().data() != given.original.storage().data())
      impl->set_storage_keep_dtype(copied(given.alias));
    impl->set_sizes_and_strides(given.alias.sizes(), given.alias.strides(),
                                given.alias.storage_offset());
  }

  Opened opened_;
  std::vector<std::pair<Block*, bool>> uses_;  // and whether it writes
  std::vector<Given> given_;
  std::unordered_map<c10::StorageImpl*, c10::Storage> aliases_;    // of CUDA storages
  std::unordered_map<c10::StorageImpl*, c10::Storage> originals_;  // of their aliases
};

}  // namespace rehearsal
