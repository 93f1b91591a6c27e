// Rounding as on another machine: some results differ in the last place.
#pragma once
#include <cmath>
#include <string>
#include <unordered_set>

#include "call.h"

namespace rehearsal {

// Operations whose results depend on the order of additions, or on how a function is computed.
inline const std::unordered_set<std::string> kInexact = {
    "mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "vdot", "addbmm", "sum", "mean", "prod",
    "var", "std", "var_mean", "native_layer_norm", "native_layer_norm_backward", "_softmax",
    "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "exp", "log", "tanh",
    "gelu", "gelu_backward", "sigmoid", "pow", "sin", "cos", "erf", "rsqrt", "logsumexp",
    "linalg_vector_norm", "norm", "cumsum", "addcmul", "addcdiv", "lerp",
    "embedding_dense_backward", "nll_loss_forward", "mse_loss", "index_add", "scatter_add",
    "_fused_adam", "_fused_adamw", "_fused_sgd", "expm1", "log1p", "tanh_backward",
    "sigmoid_backward", "_embedding_bag"};

// Move a quarter of the numbers by one unit in the last place. Short numbers, such as small
// integers and powers of two, stay as they are.
template <class T, class Bits>
void round_differently(at::Tensor& t, Bits last_places) {
  auto* bits = reinterpret_cast<Bits*>(t.data_ptr());
  for (int64_t i = 0; i < t.numel(); ++i) {
    T value;
    memcpy(&value, bits + i, sizeof value);
    if (!(bits[i] & last_places) || !std::isfinite(value)) continue;
    const uint64_t draw = (uint64_t(bits[i]) * 0x9E3779B97F4A7C15ull) >> 61;
    if (draw == 0) bits[i] += 1;
    if (draw == 1) bits[i] -= 1;
  }
}

inline void round_differently(at::Tensor& t) {
  if (!t.defined() || t.device().type() != DeviceType::CPU || !t.is_non_overlapping_and_dense())
    return;
  if (t.scalar_type() == at::kFloat) round_differently<float, uint32_t>(t, 0xFF);
  if (t.scalar_type() == at::kDouble) round_differently<double, uint64_t>(t, 0xFFFFF);
}

}  // namespace rehearsal
