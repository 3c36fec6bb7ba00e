// What torch needs from CUDA in addition to kernels: devices, random numbers, page-locked memory, and how much is in use.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <cstring>
#include <mutex>

#include "streams.h"

namespace pretended {

inline c10::DeviceIndex num_found = 0;    // as torch's autograd counts them, also before CUDA has started
inline c10::DeviceIndex num_devices = 0;  // since CUDA has started

inline at::Device with_index(at::Device device) { return {at::kCUDA, device.has_index() ? device.index() : current_device}; }

// -- memory: counted, so that a limit can be reached ---------------------------------------------------------------------

inline std::atomic<int64_t> bytes_in_use{0}, most_bytes_in_use{0};
inline int64_t memory_limit = int64_t{16} << 30;

inline void take_memory(int64_t bytes) {
  const auto used = bytes_in_use += bytes;
  if (used > memory_limit) {
    bytes_in_use -= bytes;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", bytes, " bytes of a pretended GPU.");
  }
  for (auto most = most_bytes_in_use.load(); most < used && !most_bytes_in_use.compare_exchange_weak(most, used);) {
  }
}

struct Guard final : c10::impl::NoOpDeviceGuardImpl<at::kCUDA> {
  at::Device exchangeDevice(at::Device d) const override { return {at::kCUDA, std::exchange(current_device, d.index())}; }
  at::Device getDevice() const override { return {at::kCUDA, current_device}; }
  void setDevice(at::Device d) const override { current_device = d.index(); }
  void uncheckedSetDevice(at::Device d) const noexcept override { current_device = d.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return num_found; }
  c10::Stream getStream(at::Device d) const noexcept override {
    return c10::Stream(c10::Stream::UNSAFE, with_index(d), current_streams[with_index(d).index()]);
  }
  c10::Stream getDefaultStream(at::Device d) const override { return c10::Stream(c10::Stream::DEFAULT, with_index(d)); }
  c10::Stream getNewStream(at::Device d, int) const override {
    return c10::Stream(c10::Stream::UNSAFE, with_index(d), ++num_streams);
  }
  c10::Stream exchangeStream(c10::Stream s) const noexcept override {
    auto before = getStream(s.device());
    current_streams[s.device_index()] = s.id();
    return before;
  }
  void record(void** event, const c10::Stream& s, const c10::DeviceIndex, const c10::EventFlag) const override {
    *event = reinterpret_cast<void*>(capture_of(s.id()));
  }
  void block(void* event, const c10::Stream& s) const override { wait_for(reinterpret_cast<int64_t>(event), s.id()); }
  bool isStreamCapturing(const c10::Stream& s) const override { return capture_of(s.id()); }
  bool queryEvent(void*) const override { return true; }
};

// -- random numbers: others than the CPU's of the same seed, as Philox draws others -------------------------------------

struct DeviceGenerator final : c10::GeneratorImpl {
  at::Generator inner = at::detail::createCPUGenerator();
  explicit DeviceGenerator(c10::DeviceIndex index)
      : c10::GeneratorImpl(at::Device(at::kCUDA, index < 0 ? current_device : index), c10::DispatchKeySet(c10::DispatchKey::CUDA)) {}
  void set_current_seed(uint64_t seed) override {
    TORCH_CHECK(!is_capturing() || seed == current_seed(),
                "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same as the original seed.");
    if (!is_capturing()) inner.set_current_seed(seed ^ 0x5EED);
  }
  uint64_t current_seed() const override { return inner.current_seed() ^ 0x5EED; }
  uint64_t seed() override {
    refuse_capture("seed");
    return inner.seed();
  }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  void set_state(const c10::TensorImpl& state) override {
    refuse_capture("set_state");
    inner.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return inner.unsafeGetGeneratorImpl()->get_state(); }
  DeviceGenerator* clone_impl() const override { return new DeviceGenerator(device().index()); }
  static void refuse_capture(const char* name) {
    TORCH_CHECK(!is_capturing(), "Cannot call CUDAGeneratorImpl::", name, " during CUDA graph capture.");
  }
};

// -- page-locked memory: ordinary memory that is known by its addresses -------------------------------------------------

struct Pinned final : c10::Allocator {
  static inline std::map<char*, size_t> blocks;
  static inline std::mutex lock;
  c10::DataPtr allocate(size_t n) override {
    if (!n) return {nullptr, nullptr, &free_block, at::kCPU};
    refuse_while_capturing("allocation of page-locked memory");
    auto* data = static_cast<char*>(::operator new(n));
    std::lock_guard<std::mutex> held(lock);
    blocks[data] = n;
    return {data, data, &free_block, at::kCPU};
  }
  static void free_block(void* data) {
    if (!data) return;
    std::lock_guard<std::mutex> held(lock);
    blocks.erase(static_cast<char*>(data));
    ::operator delete(data);
  }
  static bool has(const void* data) {
    std::lock_guard<std::mutex> held(lock);
    auto after = blocks.upper_bound(static_cast<char*>(const_cast<void*>(data)));
    return after != blocks.begin() && (--after, data < after->first + after->second);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t n) const override { std::memcpy(to, from, n); }
};

struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return num_devices > 0; }
  bool hasCUDA() const override { return num_devices > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return num_devices; }
  int getNumGPUs() const override { return num_devices; }
  c10::DeviceIndex current_device() const override { return pretended::current_device; }
  c10::DeviceIndex getCurrentDevice() const override { return pretended::current_device; }
  void setCurrentDevice(c10::DeviceIndex d) const override { pretended::current_device = d; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex d) const override { return std::exchange(pretended::current_device, d); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex d) const override { return exchangeDevice(d); }
  at::Allocator* getPinnedMemoryAllocator() const override {
    static Pinned pinned;
    return &pinned;
  }
  bool isPinnedPtr(const void* data) const override { return Pinned::has(data); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return at::make_generator<DeviceGenerator>(index); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    static std::map<int, at::Generator> all;
    const auto number = index < 0 ? pretended::current_device : index;
    return all.try_emplace(number, getNewGenerator(number)).first->second;
  }
};

struct NoTimer final : c10d::Timer {  // DDP times its first steps by CUDA events
  std::optional<int64_t> measureDifference(Event, Event) override { return std::nullopt; }
};

inline void replace_devices() {
  static Guard guard;
  static Hooks hooks;
  c10::impl::registerDeviceGuard(at::kCUDA, &guard);
  c10d::TimerRegistry()->Register(
      at::kCUDA, [](c10::Device) -> std::unique_ptr<c10d::Timer> { return std::make_unique<NoTimer>(); }, c10::REGISTRY_PREFERRED);
  // torch keeps the hooks that it found first. Neither they nor ours have data: the table of functions is exchanged.
  *reinterpret_cast<void**>(const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks())) = *reinterpret_cast<void**>(&hooks);
}

}  // namespace pretended
