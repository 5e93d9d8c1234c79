// A rank of a group that exchanges experts' tokens: its memory, those of the ranks that it is connected to, and the kernels
// that it puts into streams. include/towline/plugin/experts.h has the contracts.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "collectives/experts/handover.h"
#include "collectives/experts/kernels.h"
#include "collectives/experts/proxy.h"
#include "gpu/kernel_device.h"
#include "towline/plugin/experts.h"

namespace towline::collectives::experts {

class Member {
 public:
  // Throws Error, as everything here.
  Member(cuda::KernelDevice& device, const cuda::KernelSet& kernels, const towline_experts_options& options);
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  ~Member();

  static uint64_t bytes_for(uint32_t capacity, uint32_t local, uint32_t max_tokens, uint32_t hidden) noexcept;
  [[nodiscard]] std::vector<uint8_t> describe() const;
  void connect(uint32_t rank, std::span<const uint8_t> description, uint64_t timeout_ns);
  void disconnect(uint32_t rank);
  void open_to_hosts();
  void issue(towline_experts_call& call, void* stream);
  void batch(towline_experts_batch& call, void* stream);
  [[nodiscard]] uint64_t results(uint32_t max_tokens, uint32_t hidden) const;
  [[nodiscard]] uint64_t memory() const noexcept { return piece_->address() + layout_.slots_at(); }
  [[nodiscard]] uint64_t bytes() const noexcept { return bytes_; }

 private:
  // An exchange that was sent and is still to be received.
  struct Open {
    uint64_t ticket;
    uint32_t op;
  };

  // The memory's areas for each rank: two halves of slots, and a part of the results.
  static constexpr uint64_t kAreas = 3;
  static constexpr uint64_t kAreaGrain = 256;

  // What the memory is used for, which the first call decides.
  enum class Use { kNone, kExchanges, kBatches };

  // Of the memory that is used: all areas of all ranks are as long.
  static constexpr uint64_t grain_of(uint32_t capacity) noexcept { return kAreas * capacity * kAreaGrain; }
  [[nodiscard]] uint64_t segment_bytes() const noexcept { return layout_.slots_at() + bytes_; }
  [[nodiscard]] Description description() const;
  [[nodiscard]] Layout layout_of(uint32_t max_tokens, uint32_t hidden) const;
  [[nodiscard]] Job own_job() const;  // what every kernel of this rank is given
  [[nodiscard]] Job job_of(const towline_experts_call& call) const;
  void check_shape(const towline_experts_call& call) const;
  void check_addresses(const towline_experts_call& call) const;
  [[nodiscard]] bool check_stream(void* stream) const;
  void check_order(const towline_experts_call& call) const;
  void check_peer(const towline_experts_call& call) const;
  void exchange(towline_experts_call& call, bool records, void* stream);
  void find_ways(const towline_experts_call& call, bool records);
  void run_exchange(towline_experts_call& call, const Job& job, void* stream);
  void small(const towline_experts_call& call, bool records, void* stream);
  void check_use(Use use) const;
  // Puts kernels into the stream. Throws also if only some of them got there.
  template <class Kernels>
  void put_in_stream(bool records, void* stream, cuda::Moment& end, Kernels kernels);
  void order_after_last(void* stream);
  void record_end(bool records, void* stream, cuda::Moment& end);
  void record_end_of_failed(bool records, void* stream, cuda::Moment& end) noexcept;
  // Of batches: batch.cc.
  void check_batch(const towline_experts_batch& call) const;
  void check_batch_ranks(const towline_experts_batch& call) const;
  void check_batch_addresses(const towline_experts_batch& call) const;
  void check_absent(uint32_t ranks, bool records);
  void check_counted(const towline_experts_batch& call) const;
  [[nodiscard]] Report& report() const noexcept { return *static_cast<Report*>(report_->host()); }
  [[nodiscard]] Job batch_job(const towline_experts_batch& call) const;
  void cut_stage(const towline_experts_batch& call, Batch& batch) const;
  void run_put(const Job& job, const towline_experts_batch& call, void* stream);
  void run_rest(const Job& job, const towline_experts_batch& call, void* stream);
  void batch_round(Job job, const towline_experts_batch& call, uint32_t round, void* stream);
  void await_totals(towline_experts_batch& call);
  void end_batches();
  void end_work() noexcept;
  void end_calls() noexcept;
  [[nodiscard]] RemoteBases reach(uint32_t rank, const Description& from, uint64_t timeout_ns);
  void run(Kernel kernel, const Job& job, uint64_t blocks, void* stream);
  void command_now(Command command, uint32_t peer, const RemoteBases& bases = {});
  void connect_now(uint32_t rank, const RemoteBases& bases, const Description& from);
  void run_command(const Job& job);
  [[nodiscard]] Job command_job(Command command, uint32_t peer, const RemoteBases& bases) const;
  [[nodiscard]] bool is_connected(uint32_t rank) const noexcept;
  [[nodiscard]] uint32_t blocks() const noexcept;

  cuda::KernelDevice& device_;
  const uint32_t gpu_;
  const uint32_t rank_;
  const uint64_t bytes_;
  const uint64_t timeout_ns_;
  Layout layout_;  // of no shape
  std::unique_ptr<cuda::LoadedKernels> kernels_;
  std::unique_ptr<cuda::OwnStream> stream_;  // of commands that do not wait for the application's
  std::unique_ptr<cuda::Moment> done_;
  std::unique_ptr<cuda::Moment> last_;  // after what was put into the application's streams
  // After commands amid exchanges, which may overtake these in another stream.
  std::unique_ptr<cuda::Moment> last_command_;
  bool last_tells_all_ = true;  // both; false: the GPU refused an event
  bool recorded_ = false;       // by a graph, which can be replayed at any time
  std::shared_ptr<cuda::SharedPiece> piece_;
  std::unique_ptr<PieceServer> server_;
  const std::string host_;
  const std::string listen_;  // empty: as the setting says
  std::optional<bool>
      elsewhere_;  // before open_to_hosts(): a rank that can't be mapped is on another host; none: there was no such rank
  bool stays_here_ = false;  // it listens to this host alone
  std::optional<towline_experts_functions_v1> functions_;
  std::unique_ptr<Proxy> proxy_;      // null before open_to_hosts()
  KeptShapes<Slots> recorded_slots_;  // before that
  struct Peer {
    std::shared_ptr<cuda::SharedPiece> piece;
    bool on_this_gpu = false;
  };
  std::array<Peer, kMostRanks> peers_;
  std::deque<Open> open_;
  uint64_t last_ticket_ = 0;
  Use use_ = Use::kNone;
  uint64_t in_batches_ = 0;  // a bit for each rank that had a part in one since it was connected
  bool unmasked_ = false;    // in a stream, which may clear the report once it gets there
  std::optional<towline_experts_batch> counted_;  // a SEND whose RECEIVE is still to come
  std::unique_ptr<cuda::Words> report_;           // of batches
};

template <class Kernels>
void Member::put_in_stream(bool records, void* stream, cuda::Moment& end, Kernels kernels) {
  try {
    kernels();
  } catch (...) {
    record_end_of_failed(records, stream, end);
    throw;
  }
  record_end(records, stream, end);
}

}  // namespace towline::collectives::experts
