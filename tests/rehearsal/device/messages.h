// Messages of torch.distributed on CUDA tensors.
//
// As in NCCL, tags do not count, and a rank's messages to another arrive in order. A receive waits
// until what its rank sent before on this group was received, because both run on one stream. In a
// batch, it does not wait for the batch's own messages.
#pragma once
#include "collectives.h"

namespace rehearsal {

constexpr int kReceivedTag = 1 << 24;  // and a message's number: the receiver has come

inline thread_local bool in_batch = false;

// What a rank has sent and received on a group.
struct Traffic {
  struct Sent {
    WorkPointer receiver_came;
    at::Tensor memory;
    bool in_batch;
  };
  std::unordered_map<int64_t, int> sent, received;  // numbers, by the other rank
  std::vector<Sent> under_way;
};

inline Traffic& traffic_of(const Group& group) {
  static std::mutex lock;
  static std::unordered_map<c10d::ProcessGroup*, Traffic> all;
  std::lock_guard<std::mutex> guard(lock);
  return all[group.get()];
}

inline bool waits(const WorkPointer& work) {
  try {
    return work->wait(std::chrono::seconds(deadlock_seconds()));
  } catch (const std::exception&) {
    return false;
  }
}

inline void wait_for_earlier_sends(Traffic& traffic) {
  std::erase_if(traffic.under_way, [](Traffic::Sent& one) {
    if (in_batch && one.in_batch) return false;
    TORCH_CHECK(waits(one.receiver_came),
                "deadlock (rehearsal of NCCL): this rank receives, but nobody has received what it "
                "sent before on the same stream");
    return true;
  });
}

inline WorkPointer send(at::TensorList tensors, const Group& group, int64_t to, int64_t tag) {
  auto backend = group->getBackend(DeviceType::CUDA);
  at::Tensor tensor = tensors[0];
  TORCH_CHECK(tensor.is_contiguous(), "Tensors must be contiguous");
  OnStream stream(tensor.device().index(), stream_of_group(group));
  std::vector<at::Tensor> host{at::empty_like(tensor, tensor.options().device(at::kCPU))};
  copy_on_stream(host[0], tensor);
  if (!is_nccl(group)) return backend->send(host, to, tag);
  auto& traffic = traffic_of(group);
  const int number = traffic.sent[to]++;
  auto real = backend->send(host, to, number);
  if (!buffers_messages()) {
    std::vector<at::Tensor> sign{at::zeros({1})};
    auto receiver_came = backend->recv(sign, to, kReceivedTag + number);
    traffic.under_way.push_back({receiver_came, sign[0], in_batch});
  }
  return real;
}

// A receive. Its data reaches the device when somebody waits for it.
struct ReceiveWork final : c10d::Work {
  WorkPointer real;
  at::Tensor host, to;
  Group group;
  bool done = false;

  ReceiveWork(WorkPointer real, at::Tensor host, at::Tensor to, Group group)
      : Work(0, c10d::OpType::RECV), real(real), host(host), to(to), group(group) {}
  bool isCompleted() override { return done; }
  bool isSuccess() const override { return done; }
  int sourceRank() const override { return real->sourceRank(); }
  void synchronize() override { wait(c10d::kUnsetTimeout); }
  bool wait(std::chrono::milliseconds) override {
    if (done) return true;
    if (is_nccl(group)) wait_for_earlier_sends(traffic_of(group));
    real->wait();
    const auto device = to.device().index();
    Clock end;
    {
      OnStream stream(device, stream_of_group(group));
      copy_on_stream(to, host);
      end = stream.clock();
    }
    stream_waits(stream_of(device), end);
    return done = true;
  }
};

inline WorkPointer receive(at::TensorList tensors, const Group& group, int64_t from, int64_t tag) {
  auto backend = group->getBackend(DeviceType::CUDA);
  at::Tensor tensor = tensors[0];
  auto options = tensor.options().device(at::kCPU).memory_format(at::MemoryFormat::Contiguous);
  std::vector<at::Tensor> host{at::empty(tensor.sizes(), options)};
  int number = static_cast<int>(tag);
  if (is_nccl(group)) {
    auto& traffic = traffic_of(group);
    number = traffic.received[from]++;
    if (!buffers_messages()) {
      wait_for_earlier_sends(traffic);
      std::vector<at::Tensor> sign{at::zeros({1})};
      backend->send(sign, from, kReceivedTag + number)->wait();
    }
  }
  auto real = backend->recv(host, from, number);
  return c10::make_intrusive<ReceiveWork>(real, host[0], tensor, group);
}

}  // namespace rehearsal
