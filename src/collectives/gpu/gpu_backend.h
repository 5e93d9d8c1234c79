// A communicator whose ranks' data lies on GPUs of one host. Operations are kernels: the host enqueues them and keeps
// watch, and the kernels find one another through symmetric memory (job.h, operations.h).
//
// Blocks of all ranks' kernels must be on the GPU at the same time: max_blocks() leaves room for two communicators.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "collectives/breaker.h"
#include "collectives/calls/call.h"
#include "collectives/gpu/job.h"
#include "gpu/kernel_device.h"
#include "gpu/symmetric.h"
#include "towline/plugin/collective.h"

namespace towline::collectives::gpu {

// An operation that runs on a stream of ours.
struct GpuMessage {
  std::unique_ptr<cuda::Moment> ended;
  Status refused = Status::kOk;
  void* captured_on = nullptr;  // the stream of ours that was captured; null: none
  uint64_t graph = 0;
};

class GpuBackend {
 public:
  // Collective. Throws Error.
  GpuBackend(const towline_collective_open_args& args, cuda::KernelDevice& device,
             const cuda::KernelSet& kernels);
  GpuBackend(const GpuBackend&) = delete;
  GpuBackend& operator=(const GpuBackend&) = delete;
  ~GpuBackend();

  // Enqueues and returns. Throws Error for what this rank alone can see; nothing was enqueued then.
  void issue(const towline_collective_t& call, uint64_t number, uint64_t timeout_ns, void* stream);
  // On a stream of ours; waits. An error is breaker().breakage().
  Status perform(const towline_collective_t& call, uint64_t number, Deadline deadline);

  void start(const towline_collective_t& call, GpuMessage& message);
  [[nodiscard]] Status test(GpuMessage& message);

  // On a stream of ours: after what the stream holds now. Throws as issue() does.
  std::unique_ptr<GpuMessage> issue_beside(const towline_collective_t& call, uint64_t number,
                                           uint64_t timeout_ns, void* stream);
  void precede(GpuMessage& message, void* stream);  // throws Error
  // For the next one.
  void take_back(std::unique_ptr<GpuMessage> message) noexcept;

  // Any thread.
  void abort(Status status, const std::string& text);
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] const Breaker& breaker() const noexcept { return breaker_; }

 private:
  // Where the kernels before the next one are.
  struct Tail {
    std::unique_ptr<cuda::Moment> last;
    void* stream = nullptr;
    uint64_t graph = 0;
    bool used = false;
  };
  // Kernels that must run in the order of issue, whichever streams they are issued to; in each graph, too.
  struct Channel {
    std::mutex mutex;
    Tail running;
    Tail recorded;
    std::unique_ptr<cuda::OwnStream> own;
    std::unique_ptr<cuda::OwnStream> in_graphs;  // captured: nothing else may be in it
  };
  struct Launch {
    Job job;
    uint32_t kernel;
    uint32_t blocks;
  };

  void build(const towline_collective_t& call, uint64_t number, uint64_t timeout_ns, Launch& launch);
  void build_message(const towline_collective_t& call, uint64_t timeout_ns, Launch& launch) const;
  void choose(Launch& launch) const;
  [[nodiscard]] uint32_t blocks_for(uint64_t bytes) const noexcept;
  void check_memory(const towline_collective_t& call, const Call& parts) const;
  void check_address(const void* address, const char* what) const;
  Channel& build_any(const towline_collective_t& call, uint64_t number, uint64_t timeout_ns, Launch& launch);
  // `graph`: the one that the stream records, or 0.
  void launch(Channel& channel, const Launch& launch, void* stream, uint64_t graph, cuda::Moment* ended);
  Channel& channel_to(uint32_t peer, bool send);
  void* own_stream(Channel& channel, bool in_graphs);
  [[nodiscard]] uint64_t graph_of(void* stream) const;  // throws Error for another GPU's
  [[nodiscard]] bool drained(const Channel& channel) const noexcept;
  void tell(Failure failure) noexcept;
  // What kernels reported, if anything.
  void look() noexcept;
  [[nodiscard]] Breakage breakage_of(const Report& report) const;
  void order_stop(Failure failure, uint32_t peer) noexcept;
  void watch();

  const towline_collective_host_v1_t* const host_;
  const uint32_t rank_;
  const uint32_t size_;
  cuda::KernelDevice& device_;
  uint32_t gpu_ = 0;
  uint64_t marked_bytes_ = 0;
  bool direct_ = false;
  uint32_t max_blocks_ = 0;
  std::unique_ptr<cuda::LoadedKernels> kernels_;
  std::shared_ptr<cuda::Words> words_;
  Report* report_ = nullptr;
  Orders* orders_ = nullptr;
  std::unique_ptr<cuda::SymmetricMemory> memory_;
  Job base_ = {};
  Call parts_;  // of the operation that is being issued
  Channel collectives_;
  Channel control_;
  std::mutex channels_mutex_;
  std::array<std::unique_ptr<Channel>, 2 * kMaxRanks> channels_;  // to peers, then from them
  std::mutex spare_mutex_;
  std::vector<std::unique_ptr<GpuMessage>> spare_;
  Breaker breaker_;
  std::mutex watch_mutex_;
  std::condition_variable watch_changed_;
  bool stopping_ = false;
  std::thread watcher_;
};

}  // namespace towline::collectives::gpu
