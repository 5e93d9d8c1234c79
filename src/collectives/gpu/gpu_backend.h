// A communicator whose ranks' data lies on GPUs of one host. Operations are kernels: the host enqueues them and keeps
// watch, and the kernels find one another through symmetric memory (job.h, operations.h).
//
// Blocks of all ranks' kernels must be on the GPU at the same time: max_blocks() leaves room for two communicators.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "collectives/gpu/hops.h"
#include "collectives/gpu/job.h"
#include "collectives/gpu/recorded.h"
#include "collectives/gpu/replays.h"
#include "collectives/streams/stream_backend.h"
#include "towline/plugin/collective.h"

namespace towline::collectives::gpu {

// Up to these sizes data carries marks.
struct MarkedLimits {
  uint64_t bytes = 0;     // of an all_reduce
  uint64_t sums = 0;      // of one that adds up floats
  uint64_t parts = 0;     // of all_gather, reduce_scatter and all_to_all
  uint64_t two = 0;       // of an all_reduce in two shots
  uint64_t sums_two = 0;  // of one that adds up floats
};

class GpuBackend final : public StreamBackend {
 public:
  // Collective. Throws Error.
  GpuBackend(const towline_collective_open_args& args, cuda::KernelDevice& device,
             const cuda::KernelSet& kernels);
  GpuBackend(const GpuBackend&) = delete;
  GpuBackend& operator=(const GpuBackend&) = delete;
  ~GpuBackend() override;

  void issue(const towline_collective_t& call, uint64_t number, uint64_t timeout_ns, void* stream) override;
  void issue_norm(const towline_collective_norm_t& norm, uint64_t number, uint64_t timeout_ns,
                  void* stream) override;
  Status perform(const towline_collective_t& call, uint64_t number, Deadline deadline) override;
  void start(const towline_collective_t& call, StreamMessage& message) override;
  std::unique_ptr<StreamMessage> issue_beside(const towline_collective_t& call, uint64_t number,
                                              uint64_t timeout_ns, void* stream) override;
  void abort(Status status, const std::string& text) override;
  // The next operation that is issued is `op_id`, also if that fails: if a graph records it, the host is told of its replays.
  void watch_replays(uint64_t op_id) noexcept { watched_ = op_id; }
  [[nodiscard]] std::string describe() const override;

  // Operations in steps (towline/plugin/collective.h). They throw Error.
  void* open_hops(uint64_t bytes, Hops::Run run, void* context);
  void* open_strand(uint64_t bytes, uint32_t ahead, Hops::Run run, void* context, uint32_t& strand);
  void start_steps(std::span<const towline_collective_step_t> steps, StreamMessage& message);
  std::unique_ptr<StreamMessage> issue_steps(std::span<const towline_collective_step_t> steps,
                                             uint64_t number, uint64_t timeout_ns, void* stream, bool beside);
  Status perform_steps(std::span<const towline_collective_step_t> steps, uint64_t number, Deadline deadline);

 private:
  friend class GpuWindow;
  struct Launch {
    Job job;
    uint32_t kernel;
    uint32_t blocks;
    uint32_t threads = 0;  // of a block; 0: kThreads
  };

  void build(const towline_collective_t& call, uint64_t number, uint64_t timeout_ns, Launch& launch);
  void build_rows(const towline_collective_norm_t& norm, Launch& launch) const;
  // True: in one kernel. Else `launch` is the all_reduce, and build_rows()'s kernel must follow.
  bool build_norm(const towline_collective_norm_t& norm, uint64_t number, uint64_t timeout_ns,
                  Launch& launch);
  void build_message(const towline_collective_t& call, uint64_t timeout_ns, Launch& launch) const;
  std::vector<Launch> build_steps(std::span<const towline_collective_step_t> steps, uint64_t number,
                                  uint64_t timeout_ns);
  struct Strand {
    std::unique_ptr<Hops> hops;
    std::unique_ptr<cuda::StreamsAhead> ahead;
    Channel channel;
  };
  [[nodiscard]] Hops& hops_of(uint32_t strand);
  [[nodiscard]] Channel& channel_of(std::span<const towline_collective_step_t> steps);
  void launch_steps(std::span<const towline_collective_step_t> steps, const std::vector<Launch>& launches,
                    void* stream, uint64_t graph, cuda::Moment* ended);
  // How many clusters there is room for: of 2, 3, .. kMostParts blocks of kThreads threads, then of half, and of a quarter as many.
  using Clusters = std::array<std::array<uint32_t, kMostParts - 1>, 3>;
  // The means that a rank has on its GPU. least_share() gives the least of any rank.
  struct GpuShare {
    uint32_t multiprocessors;
    uint32_t alone;        // no other rank is on its GPU
    uint32_t whole_lines;  // lines that it stores arrive whole (Gpu::whole_lines)
    Clusters clusters;
  };
  // Tells all ranks `mine`, and gives heard(rank, bytes) what each other one tells under the same name. Collective.
  void compare(const char* name, std::span<const uint8_t> mine, Deadline deadline,
               const std::function<void(uint32_t, std::span<const uint8_t>)>& heard) const;
  [[nodiscard]] GpuShare least_share(Deadline deadline) const;
  void settle_ways(const towline_collective_open_args& args);
  void check_ways(Deadline deadline) const;
  void reserve();
  [[nodiscard]] uint32_t marking_blocks() const noexcept;
  struct RowParts {
    uint32_t count;    // blocks of a row
    uint32_t threads;  // of each
    bool clustered;
  };
  [[nodiscard]] uint64_t most_parts(uint64_t rows, uint64_t units, uint64_t least) const noexcept;
  [[nodiscard]] RowParts parts_in_slots(uint64_t rows, uint64_t units) const noexcept;
  [[nodiscard]] RowParts parts_in_lines(uint64_t rows, uint64_t lines) const noexcept;
  bool mark_rows(const towline_collective_norm_t& norm, Launch& launch) const;
  bool mark_in_slots(const towline_collective_norm_t& norm, uint64_t units, Launch& launch) const;
  bool mark_in_lines(const towline_collective_norm_t& norm, uint64_t lines, Launch& launch) const;
  [[nodiscard]] MarkedLimits limited(const MarkedLimits& usual, uint64_t most) const;
  [[nodiscard]] uint32_t marking_kernel(const Launch& launch, bool lines) const;
  void mark(Launch& launch, uint64_t bytes, bool lines) const;
  void mark_owned(Launch& launch) const;
  void divide(Launch& launch, uint64_t units, uint64_t of_block) const;
  [[nodiscard]] static uint32_t threads_for(uint64_t units) noexcept;
  void choose(Launch& launch) const;
  void push(Launch& launch) const;
  // Kernels move so much with a block before another one pays.
  static constexpr uint64_t kBytesPerBlock = 8 << 10;
  [[nodiscard]] uint32_t blocks_for(uint64_t bytes, uint64_t of_block = kBytesPerBlock) const noexcept;
  Channel& build_any(const towline_collective_t& call, uint64_t number, uint64_t timeout_ns, Launch& launch);
  // `graph`: the one that the stream records, or 0. `seen`: words that count replays.
  void launch(Channel& channel, const Launch& launch, void* stream, uint64_t graph, cuda::Moment* ended,
              const Launch* then = nullptr, const std::optional<Replays::Words>& seen = {});
  // The words of an operation whose replays are watched. `op_id`: what watched_ was when it was issued.
  std::optional<Replays::Words> seen_in(uint64_t graph, uint64_t op_id, uint32_t op);
  [[nodiscard]] Launch count_up(uint64_t word) const;
  cuda::Code enqueue(const Launch& launch, void* stream) noexcept;
  void note_recorded(const Mark& mark, uint64_t graph);
  Channel& channel_to(uint32_t peer, bool send);
  void tell(Failure failure) noexcept;
  // Multiprocessors belong to streams: where some are reserved, put(in, ended) enqueues in one of ours that has them, between
  // what the application's stream holds and what it gets later. Else in that stream.
  template <class Put>
  void put_in(Channel& channel, void* stream, uint64_t graph, Put&& put) {
    if (reserved_sms_ == 0) return put(stream, nullptr);
    void* const own = own_stream(channel, graph != 0);
    std::unique_ptr<StreamMessage> message = begin_beside(stream, own, graph);
    put(own, message->ended.get());
    precede(*message, stream);
    take_back(std::move(message));
  }
  // Takes in the kernels' report, if there is one.
  void look() noexcept override;
  [[nodiscard]] Breakage breakage_of(const Report& report) const;
  void order_stop(Failure failure, uint32_t peer) noexcept;
  void watch();

  MarkedLimits in_slots_;
  MarkedLimits in_lines_;
  bool lines_ = false;  // sums of floats, and what is moved
  uint64_t two_shot_bytes_ = 0;
  bool direct_ = false;
  bool push_ = false;
  uint32_t max_blocks_ = 0;
  uint32_t share_ = 0;                   // multiprocessors for a rank
  Clusters clusters_ = {};               // for a rank
  uint64_t slots_per_block_ = 0;         // before another block pays
  uint32_t marking_threads_ = kThreads;  // of a block of a kernel with marks
  uint32_t reserved_sms_ = 0;
  std::string none_reserved_;  // why, where some were asked for
  std::unique_ptr<cuda::LoadedKernels> kernels_;
  std::shared_ptr<cuda::Words> words_;
  Report* report_ = nullptr;
  Orders* orders_ = nullptr;
  std::unique_ptr<cuda::SymmetricMemory> memory_;
  std::unique_ptr<Hops> hops_;  // of ranks on several hosts
  std::mutex strands_mutex_;
  std::deque<Strand> strands_;  // from strand 1 on
  Job base_ = {};
  Call parts_;            // of the operation that is being issued
  uint64_t watched_ = 0;  // its number, if its replays are to be told. Each issue takes it first of all
  Replays replays_;
  Recorded recorded_;
  std::unique_ptr<cuda::StreamsAhead> ahead_;  // outlives the channels, whose streams they are
  Channel collectives_;
  Channel control_;
  std::mutex channels_mutex_;
  std::array<std::unique_ptr<Channel>, 2 * kMaxRanks> channels_;  // to peers, then from them
  std::mutex watch_mutex_;
  std::condition_variable watch_changed_;
  bool stopping_ = false;
  std::thread watcher_;
};

}  // namespace towline::collectives::gpu
