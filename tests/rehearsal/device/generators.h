// Random numbers: other ones than the CPU's for the same seed.
#pragma once
#include <ATen/CPUGeneratorImpl.h>

#include <vector>

#include "streams.h"

namespace rehearsal {

constexpr uint64_t kFirstSeed = 67280421310721ull;  // torch's own

struct Generator final : c10::GeneratorImpl {
  at::Generator inner;
  uint64_t seed_ = kFirstSeed;

  explicit Generator(c10::DeviceIndex device)
      : c10::GeneratorImpl(c10::Device(c10::DeviceType::CUDA, device),
                           c10::DispatchKeySet(c10::DispatchKey::CUDA)),
        inner(at::make_generator<at::CPUGeneratorImpl>(changed(seed_))) {}

  static uint64_t changed(uint64_t seed) { return seed * 0x9E3779B97F4A7C15ull + 12345; }

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    inner.set_current_seed(changed(seed));
  }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }

  void set_state(const c10::TensorImpl& state) override {
    auto* impl = const_cast<c10::TensorImpl*>(&state);
    inner.set_state(at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(impl)));
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner.get_state().getIntrusivePtr();
  }
  c10::GeneratorImpl* clone_impl() const override {
    auto* copy = new Generator(device_.index());
    copy->seed_ = seed_;
    copy->inner = inner.clone();
    return copy;
  }
};

inline at::Generator& default_generator(c10::DeviceIndex device) {
  static std::vector<at::Generator> all = [] {
    std::vector<at::Generator> generators;
    for (int i = 0; i < kMostGpus; ++i) generators.push_back(at::make_generator<Generator>(i));
    return generators;
  }();
  return all[device < 0 ? current_device : device];
}

// The generator on the CPU that draws for a CUDA generator.
inline c10::IValue inner_generator(const at::Generator& generator) {
  return c10::IValue(static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->inner);
}

}  // namespace rehearsal
