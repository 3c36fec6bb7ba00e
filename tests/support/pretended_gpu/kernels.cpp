// CUDA tensors whose memory is the host's: every CUDA kernel of torch's dispatcher is replaced by one function, `run`.
//
//   1. The arguments on the device are relabelled: a CPU tensor over the same memory stands for each of them.
//   2. The kernel of the CPU is called.
//   3. What it returns is relabelled as a tensor of the device; what it resized in place is resized.
//
// On the way it refuses what CUDA refuses: tensors of two devices, a generator of the CPU, more memory than there is, and,
// where asked to, whatever CUDA's own kernel refuses (asking.h) and whatever makes the host wait. A copy to the host that
// does not wait is made late, so that a buffer that is read too early holds rubbish.
#include <c10/core/InferenceMode.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

#include "asking.h"
#include "devices.h"

namespace pretended {
namespace {

using at::Tensor;

// -- relabelling ---------------------------------------------------------------------------------------------------------

// The memory of `storage`, labelled as another device. `bytes` of it are counted as the device's until it is freed.
c10::Storage relabelled(const c10::Storage& storage, at::Device device, int64_t bytes = 0) {
  struct Held {
    c10::Storage storage;
    int64_t bytes;
  };
  take_memory(bytes);
  auto* held = new Held{storage, bytes};
  c10::DataPtr data(held->storage.mutable_data(), held, [](void* p) {
    bytes_in_use -= static_cast<Held*>(p)->bytes;
    delete static_cast<Held*>(p);
  }, device);
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage.nbytes(), std::move(data), c10::GetCPUAllocator(), true));
}

// A tensor with the shape of `like` over `storage`. A view must be an inference tensor if and only if its base is one.
Tensor tensor_over(const c10::Storage& storage, at::Device device, const Tensor& like, bool is_inference) {
  c10::InferenceMode mode(is_inference);
  const auto key = device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return made;
}

struct Pair {  // an argument, and what stands for it; `data` tells whether the kernel gave it other memory
  Tensor cuda, cpu;
  void* data;
};

// The tensors of one call.
struct Call {
  std::string name;
  std::vector<Pair> pairs{};
  std::optional<at::Device> device{};
  bool has_host_tensor = false;

  Tensor to_cpu(const Tensor& t) {
    if (!t.defined()) return t;
    if (!t.is_cuda()) {
      has_host_tensor |= t.dim() > 0;  // a number is taken from anywhere
      return t;
    }
    TORCH_CHECK(!device || *device == t.device(), name, ": Expected all tensors to be on the same device, but found ", *device, " and ", t.device());
    device = t.device();
    for (auto& pair : pairs)
      if (pair.cuda.is_same(t)) return pair.cpu;
    for (auto& pair : pairs)
      if (pair.cuda.storage().is_alias_of(t.storage())) {  // an in-place kernel must see that they overlap
        pairs.push_back({t, tensor_over(pair.cpu.storage(), at::kCPU, t, t.is_inference()), pair.data});
        return pairs.back().cpu;
      }
    Tensor cpu = tensor_over(relabelled(t.storage(), at::kCPU), at::kCPU, t, t.is_inference());
    pairs.push_back({t, cpu, cpu.storage().mutable_data()});
    return cpu;
  }

  Tensor to_cuda(const Tensor& t, at::Device target) {
    if (!t.defined()) return t;
    for (auto& pair : pairs)
      if (pair.cpu.is_same(t)) return pair.cuda;
    for (auto& pair : pairs)
      if (pair.cpu.storage().is_alias_of(t.storage())) 
        return tensor_over(pair.cuda.storage(), pair.cuda.device(), t, pair.cuda.is_inference());
    if (!target.is_cuda()) return t;
    const auto where = with_index(target);
    return tensor_over(relabelled(t.storage(), where, t.storage().nbytes()), where, t, c10::InferenceMode::is_enabled());
  }

  void resize_what_was_resized() {
    for (auto& pair : pairs) {
      if (pair.cpu.storage().data() != pair.data)
        pair.cuda.unsafeGetTensorImpl()->set_storage_keep_dtype(
            relabelled(pair.cpu.storage(), pair.cuda.device(), pair.cpu.storage().nbytes()));
      if (!pair.cpu.sizes().equals(pair.cuda.sizes()) || !pair.cpu.strides().equals(pair.cuda.strides()))
        pair.cuda.unsafeGetTensorImpl()->set_sizes_and_strides(pair.cpu.sizes(), pair.cpu.strides(), pair.cpu.storage_offset());
    }
  }
};

bool starts_with(const std::string& name, std::initializer_list<const char*> words) {
  for (auto* word : words)
    if (name.rfind(word, 0) == 0) return true;
  return false;
}

bool may_mix_devices(const std::string& name) {
  if (starts_with(name, {"aten::index_"})) return starts_with(name, {"aten::index_put"});
  return starts_with(name, {"aten::copy_", "aten::_copy_from", "aten::index", "aten::_index_put", "aten::_unsafe_index", "c10d::", "aten::_amp"});
}

// -- what makes the host wait for the device -----------------------------------------------------------------------------

constexpr int64_t STAGED_BYTES = 1 << 16;  // a copy of no more from pageable memory is staged, and does not wait
int64_t sync_debug_mode = 0;               // as torch.cuda.set_sync_debug_mode: 0 nothing, 1 warns, 2 is an error

bool is_copy_that_waits(const Tensor& to, const Tensor& from, bool non_blocking) {
  if (to.is_cuda() == from.is_cuda()) return false;
  if (to.storage().data() == from.storage().data()) return false;  // what gloo hands back of a relabelled tensor
  const Tensor& host = to.is_cuda() ? from : to;
  if (!non_blocking) return true;
  return !Pinned::has(host.storage().data()) && (host.is_same(to) || int64_t(host.nbytes()) > STAGED_BYTES);
}

bool makes_host_wait(const std::string& name, const Stack& arguments) {
  if (name == "aten::copy_") return is_copy_that_waits(arguments[0].toTensor(), arguments[1].toTensor(), arguments[2].toBool());
  if (starts_with(name, {"aten::index", "aten::_index_put", "aten::_unsafe_index"}))  // how many places a mask has
    for (const auto& argument : arguments)
      if (argument.isOptionalTensorList())
        for (const std::optional<Tensor> t : argument.toOptionalTensorList())
          if (t && t->defined() && t->is_cuda() && (t->scalar_type() == at::kBool || t->scalar_type() == at::kByte)) return true;
  return starts_with(name, {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique", "aten::unique_",
                            "aten::repeat_interleave", "aten::equal", "aten::bincount"});
}

void look_at_wait(const std::string& name, const Stack& arguments) {
  if (!sync_debug_mode || !makes_host_wait(name, arguments)) return;
  TORCH_CHECK(sync_debug_mode < 2, "called a synchronizing CUDA operation: ", name);
  TORCH_WARN("called a synchronizing CUDA operation: ", name);
}

// -- copies to the host that do not wait: made by `flush`, at an event or a synchronization -------------------------------

struct LateCopy {
  Tensor to, from;
};
std::vector<LateCopy> late_copies;
std::mutex late_copies_lock;

void flush() {
  std::vector<LateCopy> now;
  {
    std::lock_guard<std::mutex> held(late_copies_lock);
    now.swap(late_copies);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  for (auto& copy : now) copy.to.copy_(copy.from);
}

void copy_late(const Tensor& to, const Tensor& from) {
  (void)from.expand_as(to);  // shapes are looked at now
  std::memset(to.mutable_data_ptr(), 0x7f, to.nbytes());
  std::lock_guard<std::mutex> held(late_copies_lock);
  late_copies.push_back({to, from.clone()});
}

// -- collectives: gloo, which stands in for NCCL, gets tensors of the CPU, but from `run` alone ---------------------------

using Kernel = c10::SafeKernelFunction;
std::map<c10::OperatorName, Kernel, ByName> collectives_of_cpu;
thread_local bool is_relabelled = false;

void run_collective_of_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const auto first = stack->size() - op.schema().arguments().size();
  for (size_t i = first; i < stack->size() && !is_relabelled; i++) {
    const auto& value = (*stack)[i];
    const bool is_group = value.isCustomClass() && value.type()->str() == "__torch__.torch.classes.c10d.ProcessGroup";
    TORCH_CHECK(!is_group || value.toCustomClass<c10d::ProcessGroup>()->getBackendType() != c10d::ProcessGroup::BackendType::NCCL,
                "No backend type associated with device type cpu");
  }
  collectives_of_cpu.at(op.operator_name()).callBoxed(op, keys, stack);
}

// -- the one kernel ------------------------------------------------------------------------------------------------------

void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const auto& schema = op.schema();
  const auto first = stack->size() - schema.arguments().size();
  Call call{toString(schema.operator_name())};
  const Stack arguments(stack->begin() + first, stack->end());
  look_at_wait(call.name, arguments);
  ask_cuda(op, keys, arguments);

  std::optional<at::Device> asked;  // what a factory was told: torch.empty(..., device="cuda")
  for (size_t i = first; i < stack->size(); i++) {
    auto& value = (*stack)[i];
    if (value.isTensor()) {
      value = call.to_cpu(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor t : value.toTensorList()) list.push_back(call.to_cpu(t));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const std::optional<Tensor> t : value.toOptionalTensorList()) list.push_back(t ? std::optional<Tensor>(call.to_cpu(*t)) : t);
      value = list;
    } else if (value.isList() && value.toList().size() && value.toListRef()[0].isTensorList()) {  // collectives have Tensor[][]
      c10::List<c10::List<Tensor>> lists;
      for (const auto& part : value.toListRef()) {
        c10::List<Tensor> list;
        for (const Tensor t : part.toTensorList()) list.push_back(call.to_cpu(t));
        lists.push_back(list);
      }
      value = lists;
    } else if (value.isGenerator()) {
      auto* generator = dynamic_cast<DeviceGenerator*>(value.toGenerator().unsafeGetGeneratorImpl());
      TORCH_CHECK(generator, call.name, ": Expected a 'cuda' device type for generator but found 'cpu'");
      value = generator->inner;
    } else if (value.isDevice()) {
      asked = value.toDevice();
      if (asked->is_cuda()) value = at::Device(at::kCPU);
    }
  }
  TORCH_CHECK(!(call.device && call.has_host_tensor) || may_mix_devices(call.name), call.name,
              ": Expected all tensors to be on the same device, but found ", call.device.value_or(at::kCPU), " and cpu");

  at::AutoDispatchBelowADInplaceOrView below;
  const bool is_copy = call.name == "aten::copy_";
  const bool is_late = is_copy && arguments[2].toBool() && !arguments[0].toTensor().is_cuda();
  if (is_late) {
    copy_late((*stack)[first].toTensor(), (*stack)[first + 1].toTensor());
    stack->resize(first);
    stack->push_back(arguments[0]);
    return;
  }
  if (makes_host_wait(call.name, arguments)) flush();
  is_relabelled = true;
  op.callBoxed(stack);
  is_relabelled = false;
  call.resize_what_was_resized();
  const auto target = asked ? *asked : call.device.value_or(at::kCPU);
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); i++) {
    auto& value = (*stack)[i];
    if (value.isTensor()) {
      value = call.to_cuda(value.toTensor(), target);
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor t : value.toTensorList()) list.push_back(call.to_cuda(t, target));
      value = list;
    }
  }
}

void replace_kernels() {
  static std::vector<c10::RegistrationHandleRAII> registrations;
  auto& dispatcher = c10::Dispatcher::singleton();
  auto names = dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CUDA);
  names.push_back({"aten::copy_", ""});
  for (const auto& name : names) {
    const auto op = dispatcher.findOp(name);
    const bool is_torchs = starts_with(name.name, {"aten::", "c10d::"});
    if (!op || !op->hasSchema() || !is_torchs || starts_with(name.name, {"aten::set_"})) continue;  // set_ only knows storages
    if (!starts_with(name.name, {"c10d::", "aten::copy_", "aten::empty"}))
      genuine_kernels.emplace(name, op->getComputedKernelForDispatchKey(c10::DispatchKey::CUDA));
    auto replace = [&](c10::DispatchKey key, c10::KernelFunction kernel) {
      registrations.push_back(dispatcher.registerImpl(name, key, std::move(kernel), std::nullopt, nullptr, "pretended GPU"));
    };
    replace(c10::DispatchKey::CUDA, c10::KernelFunction::makeFromBoxedFunction<&run>());
    if (starts_with(name.name, {"c10d::"}) && op->hasKernelForDispatchKey(c10::DispatchKey::CPU)) {
      collectives_of_cpu.emplace(name, op->getComputedKernelForDispatchKey(c10::DispatchKey::CPU));
      replace(c10::DispatchKey::CPU, c10::KernelFunction::makeFromBoxedFunction<&run_collective_of_cpu>());
    }
  }
}

}  // namespace
}  // namespace pretended

// What pretended_gpu.py calls, in place of the functions of torch._C.
TORCH_LIBRARY(pretended_gpu, m) {
  using namespace pretended;
  m.def("replace_kernels(int memory_limit) -> ()", [](int64_t limit) {
    memory_limit = limit;
    replace_devices();
    replace_kernels();
  });
  m.def("find(int num_gpus) -> ()", [](int64_t count) { num_found = static_cast<c10::DeviceIndex>(count); });
  m.def("start(int num_devices) -> ()", [](int64_t count) { num_devices = static_cast<c10::DeviceIndex>(count); });
  m.def("device() -> int", []() -> int64_t { return current_device; });
  m.def("exchange_device(int index) -> int", [](int64_t index) -> int64_t {
    return index < 0 ? current_device : std::exchange(current_device, static_cast<c10::DeviceIndex>(index));
  });
  m.def("new_stream() -> int", []() -> int64_t { return ++num_streams; });
  m.def("exchange_stream(int id) -> int", [](int64_t id) -> int64_t { return std::exchange(current_streams[current_device], id); });
  m.def("stream(int device) -> int", [](int64_t device) -> int64_t { return current_streams[static_cast<c10::DeviceIndex>(device)]; });
  m.def("flush() -> ()", &flush);
  m.def("set_sync_debug_mode(int mode) -> ()", [](int64_t mode) { sync_debug_mode = mode; });
  m.def("generator(int device) -> Generator?", [](int64_t device) -> std::optional<at::Generator> {
    return at::globalContext().defaultGenerator(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device)));
  });
  m.def("memory() -> int[]", []() -> std::vector<int64_t> { return {bytes_in_use, most_bytes_in_use, memory_limit}; });
  m.def("reset_most_memory() -> ()", []() { most_bytes_in_use = bytes_in_use.load(); });
  m.def("num_asked() -> int", []() -> int64_t { return num_asked; });
}
