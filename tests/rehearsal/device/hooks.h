// What torch asks a device: how many there are, which one is current, and streams and events.
#pragma once
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "generators.h"
#include "memory.h"

namespace rehearsal {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

inline DeviceIndex exchange_device(DeviceIndex device) {
  auto before = current_device;
  if (device >= 0) current_device = device;
  return before;
}

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return gpu_count() > 0; }
  bool hasCUDA() const override { return gpu_count() > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return gpu_count(); }
  int getNumGPUs() const override { return gpu_count(); }
  DeviceIndex current_device() const override { return rehearsal::current_device; }
  DeviceIndex getCurrentDevice() const override { return rehearsal::current_device; }
  void setCurrentDevice(DeviceIndex device) const override { exchange_device(device); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override { return exchange_device(device); }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return exchange_device(device);
  }
  const at::Generator& getDefaultGenerator(DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(DeviceIndex device) const override {
    return at::make_generator<Generator>(device < 0 ? rehearsal::current_device : device);
  }
  bool isPinnedPtr(const void* address) const override { return pinned.contains(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  c10::Allocator* getCUDADeviceAllocator() const override { return &device_allocator; }
  Device getDeviceFromPtr(void*) const override {
    return Device(DeviceType::CUDA, rehearsal::current_device);
  }
  void deviceSynchronize(DeviceIndex device) const override { host_waits_for_device(device); }
};

// Devices, streams, and events for C++: for autograd and for futures.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  static Device on(DeviceIndex device) {
    return Device(DeviceType::CUDA, device < 0 ? current_device : device);
  }
  static StreamKey key(const Stream& stream) { return {stream.device_index(), stream.id()}; }

  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device device) const override {
    return on(exchange_device(device.index()));
  }
  Device getDevice() const override { return on(current_device); }
  void setDevice(Device device) const override { exchange_device(device.index()); }
  void uncheckedSetDevice(Device device) const noexcept override {
    exchange_device(device.index());
  }
  DeviceIndex deviceCount() const noexcept override { return gpu_count(); }

  Stream getStream(Device device) const override {
    auto own = on(device.index());
    return Stream(Stream::UNSAFE, own, current_stream[own.index()]);
  }
  Stream getDefaultStream(Device device) const override {
    return Stream(Stream::DEFAULT, on(device.index()));
  }
  Stream getStreamFromGlobalPool(Device device, bool) const override {
    return getNewStream(device, 0);
  }
  Stream getNewStream(Device device, int) const override {
    return Stream(Stream::UNSAFE, on(device.index()), streams.make());
  }
  Stream exchangeStream(Stream stream) const override {
    auto before = getStream(stream.device());
    current_stream[stream.device_index()] = stream.id();
    return before;
  }

  void record(void** event, const Stream& stream, const DeviceIndex,
              const c10::EventFlag) const override {
    if (!*event) *event = new Clock();
    *static_cast<Clock*>(*event) = clock_of(key(stream));
  }
  void block(void* event, const Stream& stream) const override {
    if (event) stream_waits(key(stream), *static_cast<Clock*>(event));
  }
  bool queryEvent(void* event) const override {
    return !event || host_has_seen(*static_cast<Clock*>(event));
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<Clock*>(event);
  }
  void synchronizeEvent(void* event) const override {
    if (event) host_waits(*static_cast<Clock*>(event));
  }
  bool queryStream(const Stream& stream) const override {
    return host_has_seen(clock_of(key(stream)));
  }
  void synchronizeStream(const Stream& stream) const override { host_waits(clock_of(key(stream))); }
  void synchronizeDevice(const DeviceIndex device) const override { host_waits_for_device(device); }
};

}  // namespace rehearsal
