// Calls the kernel of CUDA as well, for what it refuses before its first launch: shapes, dtypes, undefined arguments,
// "does not have a deterministic implementation".
//
// Without a driver the kernel ends at its first allocation or launch, or crashes after it: so it runs in a fork, once for
// each kind of arguments. An error that is not about the missing driver is what CUDA refuses.
#pragma once
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <set>
#include <string>

namespace pretended {

using torch::jit::Stack;

struct ByName {
  bool operator()(const c10::OperatorName& a, const c10::OperatorName& b) const { return toString(a) < toString(b); }
};
inline std::map<c10::OperatorName, c10::SafeKernelFunction, ByName> genuine_kernels;
inline int64_t num_asked = 0;
inline bool is_inside_fork = false;

// what makes two calls alike: dtypes, dimensions, layouts, what is empty, undefined, true or missing
inline std::string kind_of(const c10::IValue& value) {
  if (value.isNone()) return "none";
  if (value.isBool()) return value.toBool() ? "true" : "false";
  if (value.isTensorList()) {
    const auto list = value.toTensorVector();
    return list.empty() ? "[]" : "[" + kind_of(list.front()) + "]";
  }
  if (!value.isTensor()) return "value";
  const auto& t = value.toTensor();
  if (!t.defined()) return "undefined";
  const auto format = t.suggest_memory_format();
  return std::string(toString(t.scalar_type())) + std::to_string(t.dim()) + (t.numel() ? "" : " empty") +
      (t.is_cuda() ? "" : " on host") + (t.is_contiguous(format) ? " format " + std::to_string(int(format)) : " strided");
}

inline bool is_about_the_driver(const std::string& text) {
  for (auto* words : {"CUDA driver", "CUDA error", "NVIDIA driver", "no CUDA-capable", "cuda runtime", "CUBLAS", "cudaError",
                      "num_gpus", "device index", "CUDA device", "device_index", "cuDNN", "Fail to initialize"})
    if (text.find(words) != std::string::npos) return true;
  return false;
}

inline std::string answer_of_a_fork(
    const c10::OperatorHandle& op, const c10::SafeKernelFunction& kernel, c10::DispatchKeySet keys, const Stack& arguments) {
  int ends[2];
  TORCH_CHECK(pipe(ends) == 0);
  const auto child = fork();
  if (child == 0) {
    alarm(20);
    std::string text;
    try {
      at::AutoDispatchBelowADInplaceOrView below;
      Stack stack = arguments;
      is_inside_fork = true;
      kernel.callBoxed(op, keys, &stack);
    } catch (const c10::Error& error) {
      text = error.what_without_backtrace();
    } catch (...) {
      text.clear();
    }
    (void)!write(ends[1], text.data(), text.size());
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char part[4096];
  for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;) text.append(part, n);
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return text;
}

inline void ask_cuda(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const Stack& arguments) {
  static const auto* rank = std::getenv("RANK");  // what one rank calls, all do
  static const bool is_on = std::getenv("LOCKSTEP_PRETENDED_ASKS") && (!rank || std::string(rank) == "0");
  static std::set<std::string> asked;
  static std::mutex lock;
  if (!is_on || is_inside_fork) return;
  const auto kernel = genuine_kernels.find(op.operator_name());
  if (kernel == genuine_kernels.end()) return;
  std::string kind = toString(op.operator_name());
  for (const auto& argument : arguments) kind += ", " + kind_of(argument);
  {
    std::lock_guard<std::mutex> held(lock);
    if (!asked.insert(kind).second) return;
    num_asked++;
  }
  const auto text = answer_of_a_fork(op, kernel->second, keys, arguments);
  if (text.empty() || is_about_the_driver(text)) return;
  TORCH_CHECK(false, "CUDA refuses ", kind, ": ", text);
}

}  // namespace pretended
