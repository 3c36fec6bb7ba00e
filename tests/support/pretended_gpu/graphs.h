// CUDA graphs: a capture records the calls of `run`, puts back what they wrote, and a replay makes them again.
//
// A recorded call has addresses, not tensors: what Python assigns later to a parameter or a buffer is not seen. Memory
// allocated in a capture belongs to the graph's pool, and holds rubbish (NaN) until a replay has written it. Of that,
// what Python has freed when the capture ends may be reused by the next graph of the pool: after each replay it is
// rubbish again. Memory from outside must live as long as the graph is replayed.
#pragma once
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/custom_class.h>

#include <functional>
#include <memory>
#include <vector>

#include "tensors.h"

namespace pretended {

using Owner = c10::weak_intrusive_ptr<c10::StorageImpl>;  // expires when Python, or autograd, has freed a tensor

struct Block {
  Owner owner;
  c10::Storage memory;
  void poison() const {
    if (memory.nbytes()) std::memset(memory.mutable_data(), 0xff, memory.nbytes());
  }
};

struct Pool {
  std::map<const void*, Block> blocks;
  static std::shared_ptr<Pool> named(const std::vector<int64_t>& handle) {
    static std::map<std::vector<int64_t>, std::weak_ptr<Pool>> all;
    auto& found = all[handle];
    auto pool = found.lock();
    if (!pool) found = pool = std::make_shared<Pool>();
    return pool;
  }
};

inline std::atomic<int64_t> num_launches{0};  // of kernels, copies and graphs

class Graph final : public torch::CustomClassHolder {
 public:
  static inline Graph* current = nullptr;
  static Graph* capturing() { return is_capturing() ? current : nullptr; }

  ~Graph() override {
    if (current == this) end();
  }

  void capture_begin(std::vector<int64_t> pool, std::string mode) {
    static int64_t number = 0;
    const auto stream = current_streams[current_device];
    TORCH_CHECK(stream, "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them on the default stream.)");
    TORCH_CHECK(!is_begun_, "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance.");
    if (capture.load()) fail(900, "operation not permitted when stream is capturing (capture_begin)");
    pool_ = Pool::named(pool);
    is_begun_ = true;
    capture = new Capture{++number, mode, std::this_thread::get_id(), {stream}};
    current = this;
  }

  void capture_end() {
    if (capturing() != this) fail(901, "the stream is not being captured into this graph");
    const bool is_invalid = capture.load()->is_invalid;
    end();
    if (is_invalid) fail(901, "operation failed due to a previous error during capture");
    is_captured_ = true;
  }

  void replay() {
    TORCH_CHECK(is_captured_, "Called CUDAGraph::replay without a preceding successful capture.");
    if (capturing()) fail(900, "operation not permitted when stream is capturing (replay)");
    for (const auto& owner : outside_)
      TORCH_CHECK(!owner.expired(), "A CUDA graph reads or writes memory that was freed after its capture.");
    num_launches++;
    at::AutoDispatchBelowADInplaceOrView below;
    c10::InferenceMode mode(false);
    for (const auto& call : calls_) call();
    for (const auto& block : reusable_) block.poison();
  }

  void register_generator(const at::Generator& generator) {
    TORCH_CHECK(!is_capturing(), "Cannot register the state during capturing stage.");
    generators_.insert(generator.unsafeGetGeneratorImpl());
  }

  bool has(const at::Generator& generator) const {
    return generators_.count(generator.unsafeGetGeneratorImpl()) ||
        generator == at::globalContext().defaultGenerator(generator.device());
  }

  // An argument, before its call.
  Tensor before(const Tensor& t) {
    if (!t.defined() || is_number(t)) return t;
    const auto& memory = memory_of(t.storage());
    if (pool_->blocks.count(key(memory)) || !saved_.try_emplace(key(memory), Saved{memory, ""}).second) return t;
    outside_.push_back(t.storage().getWeakStorageImpl());
    if (t.is_cuda()) saved_.at(key(memory)).bytes.assign(static_cast<const char*>(memory.data()), memory.nbytes());
    return t;
  }

  // An argument or a result, after its call, as a tensor of the CPU over its memory. A number is kept as it is.
  Tensor after(const Tensor& t) {
    if (!t.defined()) return t;
    if (is_number(t)) return t.unsafeGetTensorImpl()->is_wrapped_number() ? t : t.clone();
    const auto& memory = memory_of(t.storage());
    const bool is_new = !saved_.count(key(memory)) &&
        pool_->blocks.try_emplace(key(memory), Block{t.storage().getWeakStorageImpl(), memory}).second;
    if (is_new) new_.insert(key(memory));
    return tensor_over(memory, at::kCPU, t, false);
  }

  void record(std::function<void()> call) { calls_.push_back(std::move(call)); }

 private:
  struct Saved {
    c10::Storage memory;
    std::string bytes;
  };

  static const void* key(const c10::Storage& memory) { return memory.unsafeGetStorageImpl(); }
  static bool is_number(const Tensor& t) { return t.is_cpu() && !Pinned::has(t.storage().data()); }

  void end() {
    for (auto& [_, saved] : saved_)
      if (!saved.bytes.empty()) std::memcpy(saved.memory.mutable_data(), saved.bytes.data(), saved.bytes.size());
    saved_.clear();
    for (const auto& [_, block] : pool_->blocks) {
      if (new_.count(key(block.memory))) block.poison();
      if (block.owner.expired()) reusable_.push_back(block);
    }
    current = nullptr;
    capture = nullptr;
  }

  std::shared_ptr<Pool> pool_;
  bool is_begun_ = false, is_captured_ = false;
  std::set<const c10::GeneratorImpl*> generators_;
  std::vector<std::function<void()>> calls_;
  std::map<const void*, Saved> saved_;  // memory from outside, as it was before the capture
  std::vector<Owner> outside_;
  std::set<const void*> new_;
  std::vector<Block> reusable_;
};

}  // namespace pretended
