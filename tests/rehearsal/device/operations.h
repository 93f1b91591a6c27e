// Every operation that the rehearsal does not define itself: it runs on the CPU.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include "rounding.h"

namespace rehearsal {

using c10::IValue;

// Operations that take tensors of the CPU and of a GPU together.
inline const std::unordered_set<std::string> kMixed = {
    "copy_", "_copy_from", "index", "index_put_", "_index_put_impl_", "index_put", "_fused_adam_",
    "_fused_adamw_", "_fused_sgd_", "set_", "_to_copy", "_foreach_copy_",
    "_amp_foreach_non_finite_check_and_unscale_", "_local_scalar_dense", "_unsafe_index"};

// Operations after which the host waits, because the result is on the host, or its size is.
inline const std::unordered_set<std::string> kHostWaits = {
    "_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "_unique2"};

class Devices {
 public:
  explicit Devices(const std::string& name) : name_(name) {}

  void check(const at::Tensor& t) {
    if (!t.defined()) return;
    auto device = t.device();
    if (device.type() == DeviceType::CPU && t.dim() == 0) return;
    if (device.type() == DeviceType::Meta) return;
    if (!first_) first_ = device;
    TORCH_CHECK(device == *first_,
                "Expected all tensors to be on the same device, but found at least two devices, ",
                *first_, " and ", device,
                "! (when checking arguments in method wrapper_CUDA_", name_, ")");
  }

 private:
  std::string name_;
  std::optional<Device> first_;
};

inline void check_devices(const c10::OperatorHandle& op, c10::ArrayRef<IValue> arguments) {
  Devices devices(op.schema().name());
  for (const IValue& value : arguments) {
    if (value.isTensor()) devices.check(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& t : value.toTensorVector()) devices.check(t);
  }
}

// The argument on the CPU for `value`.
inline IValue on_cpu(Call& call, const IValue& value, bool writes) {
  auto alias = [&](const at::Tensor& t) { return is_cuda(t) ? call.alias(t, writes) : t; };
  if (value.isTensor()) return alias(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) list.push_back(alias(t));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& t : value.toOptionalTensorVector())
      list.push_back(t ? std::optional<at::Tensor>(alias(*t)) : t);
    return list;
  }
  if (value.isDevice() && value.toDevice().type() == DeviceType::CUDA) {
    if (call.device < 0) call.device = Guard::on(value.toDevice().index()).index();
    return Device(DeviceType::CPU);
  }
  if (value.isGenerator()) {
    auto generator = value.toGenerator();
    if (!generator.defined()) return value;
    TORCH_CHECK(generator.device().type() == DeviceType::CUDA,
                "Expected a 'cuda' device type for generator but found '", generator.device(), "'");
    return inner_generator(generator);
  }
  return value;
}

inline bool writes(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

// A view uses no memory: it has another shape of what is there.
inline bool is_view(const c10::FunctionSchema& schema) {
  if (schema.returns().empty()) return false;
  auto* alias = schema.returns()[0].alias_info();
  return alias && !alias->isWrite();
}

inline IValue back(Call& call, const IValue& value, bool inexact) {
  auto one = [&](at::Tensor t) {
    if (inexact) round_differently(t);
    return call.back(t);
  };
  if (value.isTensor()) return one(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& t : value.toTensorVector()) list.push_back(one(t));
  return list;
}

inline void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto name = schema.name().substr(schema.name().find("::") + 2);
  const auto count = schema.arguments().size();
  if (!kMixed.count(name)) check_devices(op, torch::jit::last(*stack, count));

  Call call;
  auto* arguments = stack->data() + stack->size() - count;
  for (size_t i = 0; i < count; ++i)
    arguments[i] = on_cpu(call, arguments[i], writes(schema.arguments()[i]));
  if (!is_view(schema)) call.begin();
  for (size_t i = 0; i < count; ++i)
    if (arguments[i].isNone() && schema.arguments()[i].name() == "generator")
      arguments[i] = inner_generator(default_generator(call.device));
  op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);

  const auto without_underscores = name.substr(0, name.find_last_not_of('_') + 1);
  const bool inexact = rounds_differently() && kInexact.count(without_underscores);
  const auto returned = schema.returns().size();
  auto* results = stack->data() + stack->size() - returned;
  for (size_t i = 0; i < returned; ++i) results[i] = back(call, results[i], inexact);
  call.resize_given();
  if (kHostWaits.count(name)) host_waits(clock_of(stream_of(call.device)));
}

}  // namespace rehearsal
