// The common part of backends whose operations go into streams of a GPU: checks of memory and streams, the order of
// operations in several streams, works beside a stream, and the wait of a blocking call.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "collectives/breaker.h"
#include "collectives/calls/call.h"
#include "collectives/calls/types.h"
#include "gpu/kernel_device.h"
#include "gpu/symmetric.h"
#include "towline/plugin/collective.h"

namespace towline::collectives {

// An operation that runs on a stream of the backend.
struct StreamMessage {
  std::unique_ptr<cuda::Moment> ended;
  Status refused = Status::kOk;
  void* captured_on = nullptr;  // the backend's stream that was captured; null: none
  uint64_t graph = 0;
};

class StreamBackend {
 public:
  StreamBackend(const StreamBackend&) = delete;
  StreamBackend& operator=(const StreamBackend&) = delete;
  virtual ~StreamBackend() = default;

  // Enqueues and returns. Throws Error for what this rank alone can see; nothing was enqueued then.
  virtual void issue(const towline_collective_t& call, uint64_t number, uint64_t timeout_ns,
                     void* stream) = 0;
  // all_reduce, addition and RMSNorm, as issue().
  virtual void issue_norm(const towline_collective_norm_t& norm, uint64_t number, uint64_t timeout_ns,
                          void* stream);
  // On a stream of the backend; waits. An error is breaker().breakage().
  virtual Status perform(const towline_collective_t& call, uint64_t number, Deadline deadline) = 0;
  // A message on a stream of the backend. Throws Error.
  virtual void start(const towline_collective_t& call, StreamMessage& message) = 0;
  // Messages that are started between the two calls do not wait for one another.
  virtual void together(bool begin) { (void)begin; }
  // On a stream of the backend: after what the stream holds now. Throws as issue() does.
  virtual std::unique_ptr<StreamMessage> issue_beside(const towline_collective_t& call, uint64_t number,
                                                      uint64_t timeout_ns, void* stream) = 0;
  // Any thread.
  virtual void abort(Status status, const std::string& text) = 0;
  // Notices what the GPU has reported, if anything.
  virtual void look() noexcept = 0;
  [[nodiscard]] virtual std::string describe() const = 0;

  [[nodiscard]] Status test(StreamMessage& message);
  void precede(StreamMessage& message, void* stream);  // throws Error
  void take_back(std::unique_ptr<StreamMessage> message) noexcept;
  [[nodiscard]] const Breaker& breaker() const noexcept { return breaker_; }
  [[nodiscard]] const towline_collective_host_v1_t* host() const noexcept { return host_; }

 protected:
  // The place of the operations before the next one.
  struct Tail {
    std::unique_ptr<cuda::Moment> last;
    void* stream = nullptr;
    uint64_t graph = 0;
    bool used = false;
    cuda::ReplayPlace place = {};  // of the channel's end, where replays are ordered
  };
  // Operations that must run in the order of issue, whichever streams they are issued to; in each graph, too. Where replays are
  // ordered, `running.last` is the end of all that was issued or launched: calls and replays wait for it, and move it on.
  struct Channel {
    std::mutex mutex;
    Tail running;
    Tail recorded;
    std::unique_ptr<cuda::OwnStream> own;
    std::unique_ptr<cuda::OwnStream> in_graphs;  // captured: nothing else may be in it
  };

  // Starts the device and picks the GPU: the setting tuning.collectives.gpu, else the calling thread's.
  StreamBackend(const towline_collective_open_args& args, cuda::KernelDevice& device);

  [[nodiscard]] uint64_t number_setting(const char* key, uint64_t fallback, uint64_t most) const;
  [[nodiscard]] cuda::Noticeboard board() const;
  void check_address(const void* address, const char* what) const;
  void check_memory(const towline_collective_t& call, const Call& parts) const;
  // The graph that the stream records, or 0. Throws Error for another GPU's stream.
  [[nodiscard]] uint64_t graph_of(void* stream) const;
  void* own_stream(Channel& channel, bool in_graphs);
  [[nodiscard]] static bool drained(const Channel& channel) noexcept;
  // Puts an operation into the stream, after the channel's last one. enqueue(stream) returns a code of the GPU's.
  // `graph`: the one that the stream records, or 0. Throws Error.
  template <class Enqueue>
  void put(Channel& channel, const char* what, void* stream, uint64_t graph, cuda::Moment* ended,
           Enqueue&& enqueue) {
    const std::lock_guard lock(channel.mutex);
    cuda::Code code = come_after(channel, stream, graph);
    if (code == 0) code = enqueue(stream);
    if (code != 0) fail(Status::kIo, "{}: the GPU's driver refused it: {}", what, device_.code_text(code));
    code = go_before(channel, stream, graph);
    if (code == 0 && ended != nullptr) code = ended->record(stream);
    if (code != 0) fail(Status::kIo, "cannot follow an operation on its stream: {}", device_.code_text(code));
  }
  // A work on the backend's stream `own`, which comes after what `stream` holds. Throws Error.
  std::unique_ptr<StreamMessage> begin_beside(void* stream, void* own, uint64_t graph);
  // Waits until the channel's last operation has ended; breaks the communicator when the GPU does not begin it.
  // text(): the operation, for people.
  Status wait_for(Channel& channel, Deadline deadline, const std::function<std::string()>& text);

  const towline_collective_host_v1_t* const host_;
  const uint32_t rank_;
  const uint32_t size_;
  std::vector<int32_t> called_;  // ranks, in messages for people
  cuda::KernelDevice& device_;
  uint32_t gpu_ = 0;
  Breaker breaker_;
  cuda::ReserveWish wish_;                      // multiprocessors that the backend's streams get
  mutable std::atomic<bool> in_graphs_{false};  // operations are parts of graphs
  // Replays of graphs are in order with one another and with calls outside, as they are launched and issued. Else the application
  // orders them.
  bool order_replays_ = false;

 private:
  // Under the channel's lock, before and after an operation is put into the stream.
  cuda::Code come_after(Channel& channel, void* stream, uint64_t graph);
  cuda::Code go_before(Channel& channel, void* stream, uint64_t graph) noexcept;

  std::mutex spare_mutex_;
  std::vector<std::unique_ptr<StreamMessage>> spare_;
};

}  // namespace towline::collectives
