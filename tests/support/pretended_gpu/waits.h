// What makes the host wait for the device, and copies to the host that do not.
#pragma once
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/custom_class.h>

#include <initializer_list>
#include <vector>

#include "tensors.h"

namespace pretended {

using torch::jit::Stack;

inline bool starts_with(const std::string& name, std::initializer_list<const char*> words) {
  for (auto* word : words)
    if (name.rfind(word, 0) == 0) return true;
  return false;
}

// -- what makes the host wait for the device -----------------------------------------------------------------------------

inline constexpr int64_t STAGED_BYTES = 1 << 16;  // a copy of no more from pageable memory is staged, and does not wait
inline int64_t sync_debug_mode = 0;               // as torch.cuda.set_sync_debug_mode: 0 nothing, 1 warns, 2 is an error

inline bool is_copy_that_waits(const Tensor& to, const Tensor& from, bool non_blocking) {
  if (to.is_cuda() == from.is_cuda()) return false;
  if (to.storage().data() == from.storage().data()) return false;  // what gloo hands back of a relabeled tensor
  const Tensor& host = to.is_cuda() ? from : to;
  if (!non_blocking) return true;
  return !Pinned::has(host.storage().data()) && (host.is_same(to) || int64_t(host.nbytes()) > STAGED_BYTES);
}

inline bool makes_host_wait(const std::string& name, const Stack& arguments) {
  if (name == "aten::copy_") return is_copy_that_waits(arguments[0].toTensor(), arguments[1].toTensor(), arguments[2].toBool());
  if (starts_with(name, {"aten::index", "aten::_index_put", "aten::_unsafe_index"}))  // how many places a mask has
    for (const auto& argument : arguments)
      if (argument.isOptionalTensorList())
        for (const std::optional<Tensor> t : argument.toOptionalTensorList())
          if (t && t->defined() && t->is_cuda() && (t->scalar_type() == at::kBool || t->scalar_type() == at::kByte)) return true;
  return starts_with(name, {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique", "aten::unique_",
                            "aten::repeat_interleave", "aten::equal", "aten::bincount"});
}

inline void look_at_wait(const std::string& name, const Stack& arguments) {
  if (!sync_debug_mode || !makes_host_wait(name, arguments)) return;
  TORCH_CHECK(sync_debug_mode < 2, "called a synchronizing CUDA operation: ", name);
  TORCH_WARN("called a synchronizing CUDA operation: ", name);
}

// -- copies to the host that do not wait: made by `flush`, at an event or a synchronization -------------------------------

struct LateCopy {
  Tensor to, from;
};
inline std::vector<LateCopy> late_copies;
inline std::mutex late_copies_lock;

inline void flush() {
  std::vector<LateCopy> now;
  {
    std::lock_guard<std::mutex> held(late_copies_lock);
    now.swap(late_copies);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  for (auto& copy : now) copy.to.copy_(copy.from);
}

inline void copy_late(const Tensor& to, const Tensor& from) {
  (void)from.expand_as(to);  // shapes are looked at now
  std::memset(to.mutable_data_ptr(), 0x7f, to.nbytes());
  std::lock_guard<std::mutex> held(late_copies_lock);
  late_copies.push_back({to, from.clone()});
}

// What CUDA does not do while its work is recorded.
inline void refuse_in_graph(const std::string& name, const Stack& arguments) {
  if (makes_host_wait(name, arguments)) refuse_while_capturing(name);
  for (const auto& argument : arguments)
    mapped(argument, [&](const Tensor& t) {
      if (!t.defined() || t.is_cuda()) return t;
      const bool is_allowed = name == "aten::copy_" ? Pinned::has(t.storage().data()) : t.dim() == 0;
      if (!is_allowed) refuse_while_capturing(name + " of pageable memory");
      return t;
    });
}

}  // namespace pretended
