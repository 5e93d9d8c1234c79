// One worker's connection to one peer on this host: messages go over the carrier, bytes are moved by a GPU of
// this process.
//
// A part that was submitted is under way on a queue until the queue's flag for it says that it is over; then
// its message is sent, and the core told. Everything is called by the worker, under its lock. Callbacks of
// the host may call anything of the connection, also disconnect(): it stays allocated but ignores all events
// until the backend's outermost call on this worker returns (Backend::Scope).
//
// When the connection breaks, copies that were begun run on. progress() completes them when they end, with
// their fences, and settle() tells the core when that is: the worker never waits for a GPU.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpu/device.h"
#include "towline/plugin/backend.hpp"
#include "transports/cuda/carrier.h"
#include "transports/cuda/detour.h"
#include "transports/cuda/detour_owner.h"
#include "transports/cuda/host_pin.h"
#include "transports/cuda/host_scatter.h"
#include "transports/cuda/mapping_cache.h"
#include "transports/cuda/memory_service.h"
#include "transports/cuda/to_host.h"
#include "transports/cuda/way_choice.h"
#include "transports/cuda/work_list.h"

namespace towline::cuda {

class Backend;

// The part of a transfer that an application's graphs hold: a valve of its own, never freed, since they may be replayed
// at any time. Shared by the prepared plan and the core.
struct Capture {
  Valve* valve = nullptr;
  uint64_t runs_before = 0;  // of the valve, when others had it
  uint64_t refused_before = 0;
  std::atomic<int32_t> closed{0};  // why its runs are refused
};

// Whether to wait for memory to be pinned.
enum class PinNow : uint8_t { kNo, kYes };

// A peer's memory, as it is being mapped for one of our GPUs on a thread of the agent's, which holds it as well as
// the import.
struct PendingMapping {
  MappingCache& cache;
  const uint64_t incarnation[2];
  const uint32_t gpu;
  const std::shared_ptr<const std::vector<Shared>> parts;
  const bool writable;
  MappingCache::Way way = {};
  std::exception_ptr failure = nullptr;
  std::atomic<bool> done{false};  // from here on the thread leaves way and failure alone
};

// A peer's region as this connection reaches it. Mapped only when a plan says by which GPU.
struct Import {
  towline_region_ref region = {};
  Uuid gpu = {};        // of vram
  bool direct = false;  // it is memory of this process
  std::unique_ptr<MemoryRequest> request;
  bool started = false;
  std::shared_ptr<const std::vector<Shared>> parts;  // otherwise
  std::string detour;                                // not empty: through host memory only, and why
  // By GPU, from the first plan on: mapping takes 10 ms, too long for each transfer that is made and thrown
  // away.
  std::map<uint32_t, MappingCache::Way> mapped;
  std::map<uint32_t, std::shared_ptr<PendingMapping>> pending;
  std::set<std::pair<uint32_t, Use>> reached;  // by which GPUs of ours it is, as it lies
};

// A plan prepared on a connection.
struct Prepared : plugin::PreparedBase {
  uint32_t blocks = 0;
  bool copy_engine = false;
  std::vector<uint64_t> cuts;  // positions that the copy engine can't cross
  bool list_there = false;     // the GPU has its list, or it needs none: known, not merely so
  std::shared_ptr<CopyQueue> queue;
  std::unique_ptr<WorkList> work;
  std::vector<std::shared_ptr<const void>> held;      // mappings that the plan reaches into
  std::vector<std::shared_ptr<const Pinned>> pinned;  // and host memory
  std::vector<uint64_t> local_deltas;                 // for each local region, where our GPU reaches it
  std::vector<uint64_t> remote_deltas;                // and each remote one
  bool read = false;
  bool urgent = false;               // the queue is that of urgent work
  bool host_memory = false;          // on either side
  bool to_host = false;              // from GPU memory alone to host memory alone
  std::unique_ptr<ToHost> gathered;  // the gathered path; null: not available

  // Through host memory, as long as there is no `work`.
  std::unique_ptr<DetourPlan> detour;
  std::vector<std::shared_ptr<HostPin>> local_hosts;  // where they will be pinned: of the local regions

  // In streams of the application's.
  Device* device = nullptr;
  uint32_t gpu = 0;
  Valve* valve = nullptr;  // of what was submitted last; null: nothing was
  bool last_on_stream = false;
  std::vector<std::shared_ptr<Capture>> captures;
  std::shared_ptr<const std::atomic<int32_t>> lost;  // why the connection is down; 0: it is up
  bool given_up = false;                             // a copy of it still runs, and is not waited for

  Prepared() = default;
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;
  // Waits for runs that have started. Memory that an unending run reaches stays mapped for ever.
  ~Prepared();
  // From here on, runs that streams still come to move nothing. False: a run that was begun still moves.
  bool settle() noexcept;
};

class Connection final : private CarrierEvents {
 public:
  Connection(Backend& backend, uint32_t worker, const towline_identity& identity, void* peer);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() = default;

  // The connector's start; a status.
  int32_t connect(const towline_identity& identity, const void* address, size_t bytes, uint64_t deadline_ns);
  // The acceptor's: asks the core.
  int32_t accept(towline_connection* carried, const towline_identity& identity);
  [[nodiscard]] CarrierEvents* events() noexcept { return this; }

  [[nodiscard]] const plugin::Host& host() const noexcept;
  int32_t import(const towline_region_args& args, const void* token, size_t token_bytes,
                 towline_import** import, char how[64]);
  void unimport(towline_import* import) noexcept;
  int32_t settle() noexcept;
  static int32_t settle_prepared(towline_prepared* prepared) noexcept;
  void disconnect() noexcept;
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] uint64_t connection_id() const noexcept;

  int32_t prepare(const towline_prepare_args& args, towline_prepared** prepared);
  static void unprepare(towline_prepared* prepared) noexcept;
  static int32_t submit(towline_prepared* prepared, const towline_submit_args& args) noexcept;
  static int32_t capture_on(towline_prepared* prepared, void* stream, towline_capture** capture) noexcept;
  static int32_t submit_on(towline_prepared* prepared, const towline_submit_args& args,
                           void* stream) noexcept;
  static int32_t wait_on(towline_prepared* prepared, towline_capture* capture, void* stream) noexcept;
  static void runs_of(const towline_capture* capture, towline_capture_runs* runs) noexcept;
  static void forget(towline_capture* capture) noexcept;
  static int32_t view_prepared(towline_prepared* prepared, uint64_t* local, uint64_t* remote,
                               towline_view** view) noexcept;
  static void forget_view(towline_view* view) noexcept;
  int32_t send(const void* message, size_t bytes) noexcept;
  void cancel(uint64_t cookie) noexcept;

  // For detour.h and detour_owner.h: a message that is not the core's.
  int32_t send_beside(std::span<const uint8_t> message) noexcept;
  void served(uint32_t direction, uint64_t bytes) noexcept;

  // From the backend.
  uint32_t progress(uint64_t now_ns) noexcept;
  // The GPU is at work. It wakes no thread, so the worker must poll.
  [[nodiscard]] bool busy() const noexcept {
    return moving_ != 0 || (detour_ != nullptr && detour_->busy()) || (owner_ != nullptr && owner_->busy());
  }
  [[nodiscard]] uint32_t worker() const noexcept { return worker_; }

 private:
  struct Job {
    Prepared* prepared = nullptr;
    uint64_t cookie = 0;
    uint64_t begin = 0;
    uint64_t end = 0;
    CopyQueue* queue = nullptr;
    Valve* valve = nullptr;  // it is in a stream of the application's: no slot
    uint32_t slot = 0;
    uint64_t value = 0;     // of the queue's flag, or the number of ended runs, once it is over
    uint64_t asked_ns = 0;  // when the queue's state was last checked
    Status status = Status::kOk;
    int32_t code = 0;
    bool moved = false;
    const ToHost* gathered = nullptr;  // it goes that way:
    HostScatter* scatter = nullptr;    // and from a pool to its places
    uint32_t chunks = 0;               // of the pool, not there yet
    uint64_t next = 0;                 // where the part that is not queued begins
    bool queued = false;               // all that will be
    bool timed = false;                // it had the queue for itself
    bool paced = false;                // by few blocks, which stall no other kernel
    HostWay way = HostWay::kDirect;
    uint64_t began_ns = 0;
    std::vector<uint8_t> message;
  };
  // Urgent work has queues of its own: on another's it would come after all that this was given before. Every queue
  // has the same rank on the GPU, so that neither kind starves.
  struct QueueName {
    uint32_t gpu = 0;
    uint32_t op = TOWLINE_READ;
    bool urgent = false;
    auto operator<=>(const QueueName&) const = default;
  };
  static QueueName queue_name(const Prepared& prepared, bool urgent) noexcept {
    return {prepared.gpu, prepared.read ? TOWLINE_READ : TOWLINE_WRITE, urgent};
  }
  struct OneQueue {
    std::unique_ptr<HostScatter> scatter;  // once a plan needs it; what the queue sends to lives longer
    std::shared_ptr<CopyQueue> queue;
    std::vector<uint32_t> free_slots;
    uint64_t last_value = 0;
    WayChoice choice;            // of copies to the host
    WayChoice scattered_choice;  // of those whose host side lies scattered
  };

  void on_message(const void* data, size_t bytes) override;
  void on_event(uint32_t event, int32_t status, const char* text) override;

  OneQueue& queue_of(const QueueName& name);
  Status ask_owner(Import& import, std::string& text);
  [[nodiscard]] std::string needs_detour(const Import& import) const;
  [[nodiscard]] static std::optional<uint32_t> local_gpu(const towline_prepare_args& args);
  [[nodiscard]] uint32_t choose_gpu(const towline_prepare_args& args) const;
  [[nodiscard]] std::optional<uint32_t> node_near(const towline_prepare_args& args,
                                                  std::optional<uint32_t> gpu) const;
  void check_local(const towline_prepare_args& args) const;
  [[nodiscard]] bool map_remote(const towline_prepare_args& args, uint32_t gpu);
  [[nodiscard]] bool start_mapping(Import& import, uint32_t gpu);
  void reach_remote(const towline_prepare_args& args, Prepared& prepared);
  bool reach_local(const towline_prepare_args& args, Prepared& prepared, std::vector<uint64_t>& deltas,
                   std::string& why);
  void make_work(Prepared& prepared, bool urgent, std::vector<uint64_t> local_deltas);
  void take_queue(Prepared& prepared, bool urgent);
  void make_gathered(Prepared& prepared, const Ways& ways);
  static void find_cuts(Prepared& prepared);
  static Code copy_by_engine(const Prepared& prepared, const Job& job) noexcept;
  void choose_way(const Prepared& prepared, OneQueue& queue, Job& job) noexcept;
  void feed(Job& job) noexcept;
  void note_time(const Job& job, uint64_t now_ns) noexcept;
  [[nodiscard]] std::string describe_queue(const QueueName& name, const OneQueue& queue) const;
  void prepare_here(const towline_prepare_args& args, Prepared& prepared);
  void prepare_detour(const towline_prepare_args& args, Prepared& prepared, const std::string& why);
  void take_detour(std::optional<uint32_t> node, const std::string& why);
  bool pinned_meanwhile(Prepared& prepared, PinNow now) noexcept;
  int32_t begin(Prepared& prepared, const towline_submit_args& args) noexcept;
  int32_t look_at_stream(Prepared& prepared, void* stream, StreamState& state) noexcept;
  Code list_first(Prepared& prepared, void* stream, StreamState state) noexcept;
  int32_t begin_on(Prepared& prepared, const towline_submit_args& args, void* stream) noexcept;
  Job& make_job(Prepared& prepared, const towline_submit_args& args);
  void job_begun() noexcept;
  int32_t refuse_code(const char* what, Code code) noexcept;
  [[nodiscard]] static bool over(const Job& job) noexcept;
  void feed_scattered(Job& job) noexcept;
  void look_at(Job& job, uint64_t now_ns) noexcept;
  bool finish(Job& job) noexcept;
  void complete(Job& job) noexcept;
  void call_off(Status status) noexcept;
  [[nodiscard]] bool settled() const noexcept;
  void give_up(Status status) noexcept;

  Backend& backend_;
  const uint32_t worker_;
  void* peer_;
  uint64_t incarnation_[2];
  const bool same_process_;
  towline_connection* carried_ = nullptr;
  bool up_ = false;
  bool disconnected_ = false;

  // By GPU, direction and urgency: these overlap.
  std::map<QueueName, OneQueue> queues_;
  std::vector<std::unique_ptr<Job>> jobs_;  // in progress, oldest first
  std::vector<std::unique_ptr<Job>> free_;  // begin_..() uses the last
  size_t moving_ = 0;                       // of jobs_
  size_t imports_ = 0;
  bool told_of_staging_ = false;
  std::unique_ptr<Detour> detour_;      // of transfers that we start
  std::unique_ptr<DetourOwner> owner_;  // of those that the peer starts
  std::string detour_why_;              // the last plan that goes this way does
  const std::shared_ptr<std::atomic<int32_t>> lost_ = std::make_shared<std::atomic<int32_t>>(0);
};

}  // namespace towline::cuda
