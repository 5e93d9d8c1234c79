// Ranks of other hosts. A kernel stores tokens for such a rank in an image of the rank's memory, which is pinned host memory, and
// raises flags in it as it does for ranks of the host. A thread of the member looks at these flags, and WRITEs the slots that are used to
// the rank's memory, with a notice behind them. The rank's own proxy takes the notice and raises the flags in pinned memory that its
// kernels look at. There is one once Member::open_to_hosts() was called.
//
//   kernel -> image (slots, used, counts, ready) -> proxy -> one post, and its notice -> proxy -> words -> kernel
//
// In a batch (proxy_batch.cc) the image lists the places of rows in this rank's stage, and the post copies those rows to the mirror of the
// stage in the other rank's memory. Ranks that read in another one's memory are told when the post to that one has its outcome.
//
// Order, which all of this rests on:
//
//   - A rank's word that it has taken an exchange is passed on to the kernels when the post of the exchange has its outcome. So a
//     kernel never writes to slots that are still being read.
//   - The first post of a new session waits until nothing of the sessions before it can land any more.
//   - A post carries at least one slot, so that a broken connection shows in its outcome. Words that go alone are repeated until they are
//     heard.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "collectives/experts/job.h"
#include "collectives/experts/kept_shapes.h"
#include "collectives/experts/messages.h"
#include "gpu/kernel_device.h"
#include "towline/plugin/experts_functions.h"

namespace towline::collectives::experts {

// What a rank of another host needs to know.
struct RemoteSide {
  std::vector<uint8_t> metadata;  // of the rank's agent
  uint64_t slots = 0;             // their address there
  uint32_t kind = 0;              // towline_kind_t
  uint64_t device = 0;
};

// As Control has them.
struct RemoteBases {
  uint64_t peer;
  uint64_t slots;
  uint64_t from;
};

// The slots of a small exchange.
struct Slots {
  uint64_t slot_bytes = 0;
  uint64_t max_tokens = 0;
  uint64_t used_bytes = 0;  // of each slot that is used
  uint64_t rest_bytes = 0;  // behind these, of one that is marked as whole; 0: there is no such
  static Slots of(uint64_t hidden, uint64_t max_tokens, uint32_t format) noexcept;
  bool operator==(const Slots&) const = default;
};

// Where the rows of a batch lie in both halves of a stage, and its header before them.
struct BatchRows {
  uint64_t stage_at = 0;      // in the segment
  uint64_t half_bytes = 0;    // of the stage; a mirror's halves are areas
  uint64_t header_bytes = 0;  // 0: none
  uint64_t row_bytes = 0;
  uint32_t round_tokens = 0;
  bool by_rank = false;  // a combine's: the stage has as many rows for each rank
  bool operator==(const BatchRows&) const = default;
};

class Proxy {
 public:
  struct Options {
    uint32_t gpu = 0;
    uint32_t rank = 0;
    Layout layout;         // of no shape
    uint64_t segment = 0;  // this rank's
    bool on_host = false;  // it is host memory: a model's
    uint64_t timeout_ns = 0;
    const char* listen = "*:0";
    // Of this rank's memory: towline_kind_t, and its device.
    [[nodiscard]] uint32_t kind() const noexcept {
      return on_host ? TOWLINE_MEMORY_DRAM : TOWLINE_MEMORY_VRAM;
    }
    [[nodiscard]] uint64_t device() const noexcept { return on_host ? 0 : gpu; }
  };
  // Throws Error, as everything here. The segment outlives it. `recorded`: by graphs, before there was a proxy.
  Proxy(cuda::KernelDevice& device, const towline_experts_functions_v1& functions, const Options& options,
        KeptShapes<Slots> recorded = {});
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;
  ~Proxy();

  [[nodiscard]] RemoteSide side() const;
  RemoteBases connect(uint32_t rank, const RemoteSide& side, uint64_t timeout_ns);
  // No kernel uses the rank any more.
  void disconnect(uint32_t rank);
  [[nodiscard]] bool has(uint32_t rank) const noexcept { return remotes_[rank] != nullptr; }
  // Before kernels of an exchange among the first `ranks` are launched: finds the ways for its shape. A rank that can't be reached gets
  // nothing and is masked in time. Returns the shape's number, which the kernels of a batch give to Control::marked. Where the shape
  // replaces another one, kernels of that one have ended; this waits until what they put was sent. A graph that records the kernels
  // replaces none, and its shapes are kept.
  uint32_t prepare(const Slots& slots, uint32_t ranks, bool records);
  [[nodiscard]] uint32_t prepare(const BatchRows& rows, uint32_t ranks, bool records);
  [[nodiscard]] bool replaces(const Slots& slots, bool records) const noexcept {
    return slots_.replaces(slots, records);
  }
  [[nodiscard]] bool replaces(const BatchRows& rows, bool records) const noexcept {
    return batches_.replaces(rows, records);
  }
  // A rank was disconnected while a transfer to it read the stage, and the backend can't say yet that it has ended.
  [[nodiscard]] bool stage_is_read();

 private:
  static constexpr uint64_t kMostSettlingNs = 1'000'000'000;

  template <class Shape>
  struct Way {
    uint32_t number = 0;  // as KeptShapes has it
    Shape shape;
    towline_plan_t* plan = nullptr;
  };
  struct Half {
    uint64_t seen = 0;  // the last flag that was looked at
    towline_post_t* post = nullptr;
    uint64_t flag = 0;  // of the post
    uint64_t via = 0;   // of the last exchange: via_of()
    bool came = false;  // the same: its rows are there
    bool ended = false;
    bool cancelled = false;
    uint64_t received = 0;  // the number of the last message
  };
  enum class Rows { kAreOnTheirWay, kCame, kAreLost };
  struct Remote {
    uint32_t rank = 0;
    std::unique_ptr<cuda::Words> memory;
    towline_region_t* region = nullptr;
    towline_peer_t* peer = nullptr;
    std::string incarnation;
    RemoteSide side;
    std::vector<Way<Slots>> ways;
    std::vector<Way<BatchRows>> batch_ways;
    std::array<Half, 2> halves;
    WordsMessage words;    // as sent last
    uint64_t heard = 0;    // of its numbers, by the rank
    bool answers = false;  // the rank asks what was heard
    uint64_t repeat_at_ns = 0;
    uint64_t repeat_ns = 0;
    bool asked = false;  // to be told once it can be reached
    uint64_t ask_at_ns = 0;
    uint64_t taken = 0;  // heard, and not passed on yet
    bool has_taken = false;
  };

  [[nodiscard]] uint64_t staging_at() const noexcept;
  [[nodiscard]] uint64_t memory_bytes() const noexcept {
    return staging_at() + 2 * options_.layout.area_bytes;
  }
  void require(int32_t status, const char* what, uint32_t rank) const;
  [[nodiscard]] towline_plan_t* make_plan(const Remote& remote, const Slots& slots, uint64_t timeout_ns,
                                          int32_t& status) const;
  [[nodiscard]] towline_plan_t* make_plan(const Remote& remote, const BatchRows& rows, uint64_t timeout_ns,
                                          int32_t& status) const;
  [[nodiscard]] towline_plan_t* plan_between(const Remote& remote, std::span<const towline_blocks_t> here,
                                             std::span<const towline_blocks_t> there, uint64_t timeout_ns,
                                             int32_t& status) const;
  void register_stage(const BatchRows& rows);
  template <class Shape>
  uint32_t find_ways(std::vector<Way<Shape>> Remote::*ways, KeptShapes<Shape>& kept, const Shape& shape,
                     uint32_t ranks, bool records);
  template <class Shape>
  void find_way(Remote& remote, std::vector<Way<Shape>>& ways, const KeptShapes<Shape>& kept,
                const typename KeptShapes<Shape>::Kept& wanted);
  template <class Shape>
  void find_recorded_ways(const Remote& remote, std::vector<Way<Shape>>& ways, const KeptShapes<Shape>& kept,
                          Deadline end) const;
  void await_posts();
  void await_end_of_reads(Remote& remote);
  [[nodiscard]] Control& image(const Remote& remote) const noexcept;
  [[nodiscard]] bool quiet(const Remote& remote) const;
  void settle(uint64_t ranks);
  void drop(std::unique_ptr<Remote> remote) noexcept;

  // The thread.
  void run() noexcept;
  [[nodiscard]] bool pass() noexcept;
  [[nodiscard]] bool receive();
  void take(const towline_notice_t& notice);
  void take(Remote& remote, const WordsMessage& message);
  void take(Remote& remote, const ExchangeMessage& message);
  void take_events();
  [[nodiscard]] bool reachable(Remote& remote, uint64_t now_ns);
  [[nodiscard]] bool look_after_posts(Remote& remote);
  [[nodiscard]] bool send_exchange(Remote& remote, uint32_t half);
  [[nodiscard]] bool may_post(Remote& remote, uint32_t half, uint64_t flag);
  int32_t post(Remote& remote, uint32_t half, ExchangeMessage& message, towline_plan_t* plan);
  [[nodiscard]] towline_plan_t* pick(const Remote& remote, uint32_t half, ExchangeMessage& message);
  [[nodiscard]] towline_plan_t* pick_batch(const Remote& remote, uint32_t half, ExchangeMessage& message);
  [[nodiscard]] Rows rows_at_relay(uint64_t via) const;
  [[nodiscard]] bool told_readers_of(uint32_t relay) const;
  [[nodiscard]] bool is_over(const Remote& remote, uint64_t flag) const;
  void pick_slots(const Remote& remote, uint32_t half, const Slots& slots, bool combines,
                  std::vector<uint32_t>& counts);
  [[nodiscard]] bool pass_on_taken(Remote& remote);
  [[nodiscard]] bool send_words(Remote& remote, uint64_t now_ns);

  cuda::KernelDevice& device_;
  const towline_experts_functions_v1 functions_;
  Options options_;
  std::unique_ptr<cuda::Words>
      in_;  // what ranks of other hosts write for this one, laid out as the segment's beginning
  towline_agent_t* agent_ = nullptr;
  towline_region_t* region_ = nullptr;
  towline_region_t* stage_region_ = nullptr;
  KeptShapes<Slots> slots_;
  KeptShapes<BatchRows> batches_;
  std::vector<towline_post_t*> reads_;  // of the stage, for ranks that were disconnected
  towline_queue_t* queue_ = nullptr;    // of ranks that can be reached again
  std::mutex mutex_;                    // of `remotes_`; one thread alone changes it
  std::array<std::unique_ptr<Remote>, kMostRanks> remotes_;
  std::atomic<bool> stops_{false};
  std::thread thread_;
  std::vector<uint32_t> picks_;
  uint64_t number_ = 0;  // of messages: it never goes back, whichever rank connects anew
};

}  // namespace towline::collectives::experts
