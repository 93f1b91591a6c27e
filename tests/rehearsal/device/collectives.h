// torch.distributed's collectives on CUDA tensors. They run over Gloo, on copies on the host. A
// group that says that it is NCCL is Gloo, too: see rehearsal/site/nccl.py.
#pragma once
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "tensors.h"

namespace rehearsal {

using c10d::ReduceOp;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

inline bool is_nccl(const Group& group) {
  return group->getBackendType() == c10d::ProcessGroup::BackendType::NCCL;
}

// A group with the same backend, for CPU tensors, which a group of NCCL refuses.
inline Group host_group(const Group& group) {
  static std::mutex lock;
  static std::unordered_map<c10d::ProcessGroup*, Group> made;
  std::lock_guard<std::mutex> guard(lock);
  auto& own = made[group.get()];
  if (!own) {
    own = c10::make_intrusive<c10d::ProcessGroup>(group->getRank(), group->getSize());
    own->setBackend(DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
                    group->getBackend(DeviceType::CUDA));
  }
  return own;
}

// The stream that a group's operations run on. NCCL has one for each group.
inline int64_t stream_of_group(const Group& group) {
  static std::mutex lock;
  static std::unordered_map<c10d::ProcessGroup*, int64_t> numbers;
  std::lock_guard<std::mutex> guard(lock);
  auto& number = numbers[group.get()];
  if (!number) number = streams.make();
  return number;
}

// Make another stream the current one until the end of a scope. It first waits for the caller's.
class OnStream {
 public:
  OnStream(DeviceIndex device, int64_t number) : device_(device), before_(current_stream[device]) {
    stream_waits({device, number}, clock_of(stream_of(device)));
    current_stream[device] = number;
  }
  ~OnStream() { current_stream[device_] = before_; }
  Clock clock() const { return clock_of(stream_of(device_)); }

 private:
  DeviceIndex device_;
  int64_t before_;
};

// An operation on a group's stream. A wait makes the current stream wait for that one.
struct StreamWork final : c10d::Work {
  DeviceIndex device;
  Clock end;
  std::vector<at::Tensor> tensors;

  StreamWork(DeviceIndex device, Clock end, std::vector<at::Tensor> tensors)
      : Work(0, c10d::OpType::UNKNOWN), device(device), end(std::move(end)), tensors(tensors) {}
  bool isCompleted() override { return host_has_seen(end); }
  bool isSuccess() const override { return true; }
  std::vector<at::Tensor> result() override { return tensors; }
  void synchronize() override { wait(c10d::kUnsetTimeout); }
  bool wait(std::chrono::milliseconds) override {
    stream_waits(stream_of(device), end);
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    // As in NCCL, it is complete at once, and carries an event of the group's stream.
    OnStream stream(device, 0);
    current_stream[device] = streams.make();
    stream_waits(stream_of(device), end);
    auto future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()),
        std::vector<Device>{Device(DeviceType::CUDA, device)});
    future->markCompleted(IValue(tensors));
    return future;
  }
};

// Whether it is a list of lists of tensors that is not empty.
inline bool is_list_of_lists(const IValue& value) {
  if (!value.isList() || value.isIntList() || value.isTensorList()) return false;
  auto items = value.toListRef();
  return !items.empty() && items[0].isTensorList();
}

// The host's tensors for the CUDA tensors of a call.
class HostCopies {
 public:
  IValue down(const IValue& value, bool receives) {
    auto one = [&](const at::Tensor& t) { return is_cuda(t) ? copy(t, receives) : t; };
    if (value.isTensor()) return one(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : value.toTensorVector()) list.push_back(one(t));
      return list;
    }
    if (!is_list_of_lists(value)) return value;
    c10::impl::GenericList lists(c10::ListType::create(c10::TensorType::get()));
    for (const IValue& inner : value.toListRef()) lists.push_back(down(inner, receives));
    return lists;
  }

  // Copy what was received to the device, divided by `divisor`.
  void up(int divisor) {
    for (auto& [host, tensor] : received_) {
      if (divisor != 1) host.div_(divisor);
      copy_on_stream(tensor, host);
    }
  }

 private:
  at::Tensor copy(const at::Tensor& t, bool receives) {
    TORCH_CHECK(t.is_non_overlapping_and_dense(), "Tensors must be contiguous");
    auto host = at::empty_like(t, t.options().device(at::kCPU));
    copy_on_stream(host, t);
    if (receives) received_.emplace_back(host, t);
    return host;
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> received_;  // on the host, on the device
};

inline std::vector<at::Tensor> tensors_in(const IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  if (value.isTensorList()) return value.toTensorVector();
  std::vector<at::Tensor> all;
  if (is_list_of_lists(value))
    for (const IValue& inner : value.toListRef())
      for (const at::Tensor& t : tensors_in(inner)) all.push_back(t);
  return all;
}

// Gloo sums; NCCL also computes a mean. Return what to divide by.
inline int sum_instead_of_mean(IValue& value, const Group& group) {
  auto op = value.toCustomClass<ReduceOp>();
  if (!is_nccl(group) || op->op_ != ReduceOp::AVG) return 1;
  value = c10::make_intrusive<ReduceOp>(ReduceOp::SUM);
  return group->getSize();
}

// Gloo looks at the shapes of a whole tensor and its part; NCCL only counts.
inline void flatten(IValue& value) {
  if (value.isTensor()) value = value.toTensor().flatten();
}

// Whether an operation has a whole tensor and its part. An all-to-all has none: it counts rows.
inline bool is_of_whole_and_part(const std::string& name) {
  return name == "c10d::_allgather_base_" || name == "c10d::_reduce_scatter_base_";
}

// A collective, at its call: the rank waits for the others.
inline void collective(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& names = op.schema().arguments();
  std::vector<IValue> arguments(stack->end() - names.size(), stack->end());
  torch::jit::drop(*stack, names.size());
  std::vector<at::Tensor> tensors;
  Group group;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].name() == "process_group")
      group = arguments[i].toCustomClass<c10d::ProcessGroup>();
    for (const at::Tensor& t : tensors_in(arguments[i])) tensors.push_back(t);
  }
  const IValue first = arguments[0];
  const auto on = tensors.empty() ? current_device : tensors[0].device().index();
  OnStream stream(on, stream_of_group(group));
  HostCopies copies;
  int divisor = 1;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto& name = names[i].name();
    if (name == "process_group") arguments[i] = host_group(group);
    else if (name == "reduce_op") divisor = sum_instead_of_mean(arguments[i], group);
    else arguments[i] = copies.down(arguments[i], name.rfind("input", 0) != 0);
    if (is_nccl(group) && is_of_whole_and_part(op.schema().name())) flatten(arguments[i]);
  }
  for (auto& argument : arguments) stack->push_back(argument);
  op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
  auto work = torch::jit::pop(*stack).toCustomClass<c10d::Work>();
  torch::jit::drop(*stack, op.schema().returns().size() - 1);
  work->wait();
  copies.up(divisor);
  if (op.schema().returns().size() > 1) stack->push_back(first);
  WorkPointer ours = c10::make_intrusive<StreamWork>(on, stream.clock(), tensors_in(first));
  stack->push_back(ours);
}

// What DDP times its steps with: nothing.
class NoTimer : public c10d::Timer {
 public:
  explicit NoTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event, Event) override { return std::nullopt; }
};

}  // namespace rehearsal
