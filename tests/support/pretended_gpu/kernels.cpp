// CUDA tensors whose memory is the host's: every CUDA kernel of torch's dispatcher is replaced by one function, `run`.
//
//   1. The arguments on the device are relabeled: a CPU tensor over the same memory stands for each of them.
//   2. The kernel of the CPU is called.
//   3. What it returns is relabeled as a tensor of the device; what it resized in place is resized.
//
// On the way it refuses what CUDA refuses: tensors of two devices, a generator of the CPU, more memory than there is, and,
// where asked to, whatever CUDA's own kernel refuses (asking.h) and whatever makes the host wait. A copy to the host that
// does not wait is made late, so that a buffer that is read too early holds rubbish.
#include <ATen/core/enum_tag.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

#include "asking.h"
#include "graphs.h"
#include "waits.h"

namespace pretended {
namespace {

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
    Tensor cpu = tensor_over(relabeled(t.storage(), at::kCPU), at::kCPU, t, t.is_inference());
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
    return tensor_over(relabeled(t.storage(), where, t.storage().nbytes()), where, t, c10::InferenceMode::is_enabled());
  }

  bool is_argument(const Tensor& t) const {
    for (auto& pair : pairs)
      if (t.defined() && pair.cuda.storage().is_alias_of(t.storage())) return true;
    return false;
  }

  void resize_what_was_resized() {
    for (auto& pair : pairs) {
      if (pair.cpu.storage().data() != pair.data)
        pair.cuda.unsafeGetTensorImpl()->set_storage_keep_dtype(
            relabeled(pair.cpu.storage(), pair.cuda.device(), pair.cpu.storage().nbytes()));
      if (!pair.cpu.sizes().equals(pair.cuda.sizes()) || !pair.cpu.strides().equals(pair.cuda.strides()))
        pair.cuda.unsafeGetTensorImpl()->set_sizes_and_strides(pair.cpu.sizes(), pair.cpu.strides(), pair.cpu.storage_offset());
    }
  }
};

bool may_mix_devices(const std::string& name) {
  if (starts_with(name, {"aten::index_"})) return starts_with(name, {"aten::index_put"});
  return starts_with(name, {"aten::copy_", "aten::_copy_from", "aten::index", "aten::_index_put", "aten::_unsafe_index", "c10d::", "aten::_amp"});
}

// -- collectives: gloo, which stands in for NCCL, gets tensors of the CPU, but from `run` alone ---------------------------

using Kernel = c10::SafeKernelFunction;
std::map<c10::OperatorName, Kernel, ByName> collectives_of_cpu;
thread_local bool is_relabeled = false;

void run_collective_of_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const auto first = stack->size() - op.schema().arguments().size();
  for (size_t i = first; i < stack->size() && !is_relabeled; i++) {
    const auto& value = (*stack)[i];
    const bool is_group = value.isCustomClass() && value.type()->str() == "__torch__.torch.classes.c10d.ProcessGroup";
    TORCH_CHECK(!is_group || value.toCustomClass<c10d::ProcessGroup>()->getBackendType() != c10d::ProcessGroup::BackendType::NCCL,
                "No backend type associated with device type cpu");
  }
  collectives_of_cpu.at(op.operator_name()).callBoxed(op, keys, stack);
}

// -- the one kernel ------------------------------------------------------------------------------------------------------

bool launches(const c10::OperatorHandle& op, const std::string& name) {  // neither allocates nor makes a view
  const auto& returns = op.schema().returns();
  const bool is_view = !returns.empty() && returns[0].alias_info() && !returns[0].alias_info()->isWrite();
  return !is_view && !starts_with(name, {"aten::empty", "aten::resize_"});
}

struct Done final : c10d::Work {  // of a collective that is only recorded
  bool isCompleted() override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
};

// A call that a replay makes: results go to the memory of `results`; those over an argument's memory are undefined there.
void call_again(const c10::OperatorHandle& op, Stack stack, const std::vector<Tensor>& results) {
  is_relabeled = true;
  op.callBoxed(&stack);
  is_relabeled = false;
  auto result = results.begin();
  for (const auto& value : stack) {
    if (value.isCustomClass()) value.toCustomClass<c10d::Work>()->wait();
    mapped(value, [&](const Tensor& t) {
      if (result != results.end() && result->defined()) {
        TORCH_CHECK(t.sizes().equals(result->sizes()) && t.strides().equals(result->strides()), op.schema().name(), ": another shape in a replay");
        std::memcpy(result->storage().mutable_data(), t.storage().data(), t.storage().nbytes());
      }
      result += result != results.end();
      return t;
    });
  }
}

void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const auto& schema = op.schema();
  const auto first = stack->size() - schema.arguments().size();
  Call call{toString(schema.operator_name())};
  const Stack arguments(stack->begin() + first, stack->end());
  look_at_wait(call.name, arguments);
  ask_cuda(op, keys, arguments);
  auto* graph = Graph::capturing();
  if (graph) refuse_in_graph(call.name, arguments);

  std::optional<at::Device> asked;  // what a factory was told: torch.empty(..., device="cuda")
  at::Generator drawn_from;
  const auto on_host = [&](const c10::IValue& value, const auto& to) -> c10::IValue {
    if (value.isGenerator()) {
      auto* generator = dynamic_cast<DeviceGenerator*>(value.toGenerator().unsafeGetGeneratorImpl());
      TORCH_CHECK(generator, call.name, ": Expected a 'cuda' device type for generator but found 'cpu'");
      TORCH_CHECK(!graph || graph->has(value.toGenerator()), "Attempt to increase offset for a CUDA generator not in capture mode.");
      return drawn_from = generator->inner;
    }
    if (value.isDevice()) {
      asked = value.toDevice();
      if (asked->is_cuda()) return at::Device(at::kCPU);
    }
    return mapped(value, to);
  };
  for (size_t i = first; i < stack->size(); i++)
    (*stack)[i] = on_host((*stack)[i], [&](const Tensor& t) { return call.to_cpu(t); });
  TORCH_CHECK(!(call.device && call.has_host_tensor) || may_mix_devices(call.name), call.name,
              ": Expected all tensors to be on the same device, but found ", call.device.value_or(at::kCPU), " and cpu");

  at::AutoDispatchBelowADInplaceOrView below;
  const bool is_launched = launches(op, call.name);
  num_launches += is_launched && !graph;
  const bool is_recorded = graph && is_launched;
  if (graph)
    for (const auto& argument : arguments) mapped(argument, [&](const Tensor& t) { return graph->before(t); });
  const auto recorded = [&] {
    Stack made;
    for (const auto& argument : arguments) made.push_back(on_host(argument, [&](const Tensor& t) { return graph->after(t); }));
    return made;
  };
  if (call.name == "aten::copy_" && arguments[2].toBool() && !arguments[0].toTensor().is_cuda()) {
    if (is_recorded)
      graph->record([made = recorded()] { copy_late(made[0].toTensor(), made[1].toTensor()); });
    else
      copy_late((*stack)[first].toTensor(), (*stack)[first + 1].toTensor());
    stack->resize(first);
    stack->push_back(arguments[0]);
    return;
  }
  if (is_recorded && starts_with(call.name, {"c10d::"})) {  // ranks that capture do not exchange anything
    graph->record([op, made = recorded()] { call_again(op, made, {}); });
    stack->resize(first);
    for (const auto& returned : schema.returns())
      stack->push_back(returned.type()->kind() == c10::TypeKind::ClassType ? c10::IValue(c10::intrusive_ptr<c10d::Work>(c10::make_intrusive<Done>())) : arguments[0]);
    return;
  }
  if (makes_host_wait(call.name, arguments)) flush();
  const bool draws = graph && op.hasTag(at::Tag::nondeterministic_seeded);
  const at::Generator generator = drawn_from.defined() ? drawn_from : at::detail::getDefaultCPUGenerator();
  const auto state = draws ? generator.get_state() : Tensor();
  is_relabeled = true;
  op.callBoxed(stack);
  is_relabeled = false;
  if (draws) generator.unsafeGetGeneratorImpl()->set_state(*state.unsafeGetTensorImpl());
  call.resize_what_was_resized();
  const auto target = asked ? *asked : call.device.value_or(at::kCPU);
  const auto num_before = stack->size() - schema.returns().size();
  for (size_t i = num_before; i < stack->size(); i++)
    (*stack)[i] = mapped((*stack)[i], [&](const Tensor& t) { return call.to_cuda(t, target); });
  if (!graph) return;
  const auto made = recorded();
  std::vector<Tensor> results;
  for (size_t i = num_before; i < stack->size(); i++)
    mapped((*stack)[i], [&](const Tensor& t) {
      results.push_back(call.is_argument(t) ? Tensor() : graph->after(t));
      return t;
    });
  if (is_recorded) graph->record([op, made, results] { call_again(op, made, results); });
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
  m.class_<Graph>("Graph")
      .def(torch::init<>())
      .def("capture_begin", [](const c10::intrusive_ptr<Graph>& g, std::vector<int64_t> pool, std::string mode) { g->capture_begin(pool, mode); })
      .def("capture_end", [](const c10::intrusive_ptr<Graph>& g) { g->capture_end(); })
      .def("replay", [](const c10::intrusive_ptr<Graph>& g) { g->replay(); })
      .def("register_generator", [](const c10::intrusive_ptr<Graph>& g, at::Generator generator) { g->register_generator(generator); });
  m.def("is_capturing() -> bool", &is_capturing);
  m.def("capture_of(int stream) -> int", &capture_of);
  m.def("wait_for(int capture, int stream) -> ()", &wait_for);
  m.def("refuse_while_capturing(str what) -> ()", [](std::string what) { refuse_while_capturing(what); });
  m.def("num_launches() -> int", []() -> int64_t { return num_launches; });
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
