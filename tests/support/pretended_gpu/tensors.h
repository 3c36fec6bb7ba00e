// Relabeling: a tensor of another device over the same memory.
#pragma once
#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>

#include "devices.h"

namespace pretended {

using at::Tensor;

struct Held {
  c10::Storage storage;
  int64_t bytes;
};

inline void free_held(void* held) {
  bytes_in_use -= static_cast<Held*>(held)->bytes;
  delete static_cast<Held*>(held);
}

// The memory of `storage`, labeled as another device. `bytes` of it are counted as the device's until it is freed.
inline c10::Storage relabeled(const c10::Storage& storage, at::Device device, int64_t bytes = 0) {
  take_memory(bytes);
  auto* held = new Held{storage, bytes};
  c10::DataPtr data(held->storage.mutable_data(), held, &free_held, device);
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage.nbytes(), std::move(data), c10::GetCPUAllocator(), true));
}

// The storage that `storage` is a label of.
inline const c10::Storage& memory_of(const c10::Storage& storage) {
  const auto& data = storage.data_ptr();
  return data.get_deleter() == &free_held ? memory_of(static_cast<Held*>(data.get_context())->storage) : storage;
}

// A tensor with the shape of `like` over `storage`. A view must be an inference tensor if and only if its base is one.
inline Tensor tensor_over(const c10::Storage& storage, at::Device device, const Tensor& like, bool is_inference) {
  c10::InferenceMode mode(is_inference);
  const auto key = device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return made;
}

// `value` with every tensor in it replaced by `to(tensor)`.
template <typename F>
c10::IValue mapped(const c10::IValue& value, const F& to) {
  const auto each = [&](const c10::IValue& tensors) {
    c10::List<Tensor> list;
    for (const Tensor t : tensors.toTensorList()) list.push_back(to(t));
    return list;
  };
  if (value.isTensor()) return to(value.toTensor());
  if (value.isTensorList()) return each(value);
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor> t : value.toOptionalTensorList()) list.push_back(t ? std::optional<Tensor>(to(*t)) : t);
    return list;
  }
  if (value.isList() && value.toList().size() && value.toListRef()[0].isTensorList()) {  // collectives have Tensor[][]
    c10::List<c10::List<Tensor>> lists;
    for (const auto& part : value.toListRef()) lists.push_back(each(part));
    return lists;
  }
  return value;
}

}  // namespace pretended
