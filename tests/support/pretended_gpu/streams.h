// Streams: all work is done immediately; only their numbers are kept, because autograd compares them and a graph is
// captured from them. What CUDA refuses during a capture is refused with CUDA's error.
#pragma once
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <map>
#include <set>
#include <string>
#include <thread>

namespace pretended {

inline thread_local c10::DeviceIndex current_device = 0;
inline thread_local std::map<c10::DeviceIndex, c10::StreamId> current_streams;
inline std::atomic<c10::StreamId> num_streams{0};

struct Capture {
  int64_t number;  // also that of the events recorded in it
  std::string mode;
  std::thread::id thread;  // that began it
  std::set<c10::StreamId> streams;
  std::atomic<bool> is_invalid = false;
};
inline std::atomic<Capture*> capture{nullptr};  // never freed, as other threads look at it

inline int64_t capture_of(c10::StreamId stream) {
  const auto* now = stream ? capture.load() : nullptr;  // the default stream cannot be captured
  return now && now->streams.count(stream) ? now->number : 0;
}
inline bool is_capturing() { return capture_of(current_streams[current_device]); }

[[noreturn]] inline void fail(int32_t code, const std::string& text) {
  if (auto* now = capture.load()) now->is_invalid = true;
  throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, code, "CUDA error: " + text);
}

// Refuse what the driver does not permit in a thread that captures, or where work is captured.
inline void refuse_while_capturing(const std::string& what) {
  auto* now = capture.load();
  if (!now) return;
  const bool is_here = now->mode == "global" || (now->mode == "thread_local" && now->thread == std::this_thread::get_id());
  if (is_here || is_capturing()) fail(900, "operation not permitted when stream is capturing (" + what + ")");
}

// Let `stream` wait for an event recorded in the capture with this number, 0: in none.
inline void wait_for(int64_t number, c10::StreamId stream) {
  auto* now = capture.load();
  if (!now || number == capture_of(stream)) return;
  if (number != now->number) fail(905, "dependency created on uncaptured work in another stream");
  if (stream == 0) fail(906, "operation would make the legacy stream depend on a capturing blocking stream");
  now->streams.insert(stream);
}

}  // namespace pretended
