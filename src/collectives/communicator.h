// A communicator accepts operations, checks them, keeps their order, and calls a backend to perform them.
//
// A blocking operation runs on the caller's thread. Asynchronous ones queue. A thread of the communicator,
// started when it is first needed, runs them in order; a thread that waits for one does so, too. The holder
// of `perform_mutex_` runs the next one. Sends and receives do not queue: a second such thread, and threads
// that wait for them, make them progress.
//
// When a queued operation has ended, the thread that ran it calls its works' functions before the next
// operation begins. It performs operations that they issue at once: in the queue they would wait for
// themselves, and their position among the operations would differ between ranks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/config/config.h"
#include "base/error.h"
#include "base/sync/biased_lock.h"
#include "collectives/flight_recorder.h"
#include "collectives/forming.h"
#include "collectives/work.h"
#include "rendezvous/store.h"
#include "towline/plugin/collective.h"
#include "towline/status.h"

namespace towline::collectives {

// Functions that are called before and after operations, and when a communicator breaks.
struct Hook {
  uint32_t kind = 0;
  towline_hook_fn function = nullptr;
  void* context = nullptr;
  std::recursive_mutex running;
  bool removed = false;  // guarded by `running`
  bool listed = true;    // guarded by the communicator
};

struct CommunicatorOptions {
  std::string name = "world";
  std::string backend = "cpu";
  int rank = 0;
  int size = 1;
  uint64_t timeout_ns = 600'000'000'000;
  uint32_t flags = 0;
  uint32_t flight_records = 2000;
  std::map<std::string, std::string> hints;
  int32_t (*interrupted)(void* context) = nullptr;  // while it forms
  void* interrupt_context = nullptr;
};

class CpuBackend;

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // Collective. Throws Error.
  static std::shared_ptr<Communicator> create(CommunicatorOptions options,
                                              std::shared_ptr<rendezvous::Store> store,
                                              std::shared_ptr<Config> config);
  ~Communicator();

  int rank() const noexcept { return options_.rank; }
  int size() const noexcept { return options_.size; }
  const std::string& name() const noexcept { return options_.name; }
  const std::string& backend_name() const noexcept { return options_.backend; }
  uint64_t timeout_ns() const noexcept { return timeout_ns_.load(std::memory_order_relaxed); }
  void set_timeout(uint64_t timeout_ns) noexcept { timeout_ns_.store(timeout_ns, std::memory_order_relaxed); }
  void set_hint(const std::string& key, const std::string& value);
  std::string info_json();

  // ---- Operations. `text` receives the message of a failure.
  Status run(const towline_collective_t& call, const towline_collective_options_t* options,
             std::string& text);
  Work* start(const towline_collective_t& call, const towline_collective_options_t* options);  // throws Error
  // Into a stream of a GPU. Throws Error; an operation that was refused does not count.
  void issue(const towline_collective_t& call, const towline_collective_options_t* options, void* stream) {
    issue_on(call, options, stream, nullptr);
  }
  // On a stream of the backend's, after what the stream holds now.
  Work* issue_beside(const towline_collective_t& call, const towline_collective_options_t* options,
                     void* stream) {
    Work* work = nullptr;
    issue_on(call, options, stream, &work);
    return work;
  }
  void issue_norm(const towline_collective_norm_t& norm, const towline_collective_options_t* options,
                  void* stream);
  // Orders later work of the stream after such a work. Throws Error, the work's if that has failed.
  void order_after(Work& work, void* stream);
  Status run_batch(std::vector<std::unique_ptr<OwnedCall>> calls, const towline_collective_options_t* options,
                   std::string& text);
  Work* start_batch(std::vector<std::unique_ptr<OwnedCall>> calls,
                    const towline_collective_options_t* options);
  void check_call(const towline_collective_t& call) const;  // throws Error

  // Waits for a work of this communicator, and runs queued operations meanwhile.
  Status wait(Work& work, uint64_t timeout_ns);

  // ---- Life
  std::shared_ptr<Communicator> split(const int32_t* ranks, size_t count, const char* name,
                                      uint64_t timeout_ns);
  // Both wait for operations in progress. On a thread inside a hook or works' function of this communicator
  // they throw Error (kBusy), since it would wait for itself.
  void finalize();
  void close();  // the application closes it
  void abort(const std::string& reason);
  // kOk, or why it broke.
  Status error(std::string* text);

  std::shared_ptr<Hook> add_hook(uint32_t kind, towline_hook_fn function, void* context);
  void remove_hook(const std::shared_ptr<Hook>& hook);
  FlightRecorder& recorder() noexcept { return recorder_; }
  // The handle that hooks get; set by the C API.
  void set_handle(towline_communicator_t* handle) noexcept { handle_ = handle; }

  // ---- Windows
  const towline_collective_table_v1_t& table() const noexcept { return *table_; }
  towline_collective_window* open_window(void* address, uint64_t bytes);
  void close_window(towline_collective_window* window, uint64_t timeout_ns);
  // Throws an Error for a status that a call into the backend returned on this thread.
  void check_backend(int32_t status, const char* what) const;
  Status usable(std::string& text) const;

  // This process is a child of fork of the one that made it. Threads of the parent's may have held any lock at the
  // fork, and no call that takes one returns here.
  bool inherited() const noexcept;
  void refuse_forked() const;  // throws Error kForked if it is inherited

 private:
  Communicator(CommunicatorOptions options, std::shared_ptr<FormingStore> store,
               std::shared_ptr<Config> config);

  static std::shared_ptr<Communicator> make(CommunicatorOptions options,
                                            std::shared_ptr<rendezvous::Store> store,
                                            std::shared_ptr<Config> config);
  void open();
  void confirm(Deadline deadline, int32_t& status, std::string& reason);
  Status usable_fast() const noexcept;
  void check_usable() const;      // throws Error
  void check_not_inside() const;  // throws Error
  static uint64_t next_op_id() noexcept;
  uint64_t timeout_of(const towline_collective_options_t* options) const noexcept;
  static Deadline deadline_in(uint64_t timeout_ns) noexcept;
  Status perform(const towline_collective_t& call, Deadline deadline, std::string& text) noexcept;
  void scale_input(towline_collective_t& call);  // throws without memory
  class Beside;
  // Performs a small operation if nothing is in its way; else false, and nothing was done.
  bool perform_small(const towline_collective_t& call, uint64_t timeout_ns, std::string& text,
                     Status& status);
  Status perform_now(const towline_collective_t& call, uint64_t timeout_ns, Deadline deadline, uint64_t op_id,
                     std::string& text);
  void wait_for_queued();
  static void begin_backend_call() noexcept;  // forgets what a call on this thread said before
  Status failure(int32_t status, std::string& text) const noexcept;
  void after_failure(Status status, const std::string& text) noexcept;

  // Streams; null: in the stream itself.
  void issue_on(const towline_collective_t& call, const towline_collective_options_t* options, void* stream,
                Work** work, const towline_collective_norm_t* norm = nullptr);
  // `beside`: on a stream of the backend's, as the work that it returns.
  Work* issue_now(const towline_collective_t& call, uint64_t timeout_ns, uint64_t op_id, void* stream,
                  bool beside, const towline_collective_norm_t* norm);

  // Queue of operations
  Work* enqueue(const towline_collective_t& call, uint64_t timeout_ns, Deadline deadline, uint64_t op_id);
  void run_one(Work& work);
  bool has_sources() const noexcept { return table_->message_source != nullptr; }
  bool run_front();  // runs the first of the queue, if any; perform_mutex_ is held
  // True if this thread runs a queued work or calls its functions, and so holds perform_mutex_.
  bool finishes_here() const noexcept {
    const std::thread::id finisher = finisher_.load(std::memory_order_relaxed);
    return finisher != std::thread::id() && finisher == std::this_thread::get_id();
  }
  void interrupt(const std::string& what);
  bool drain_for(Work& work);
  void serve_queue();

  // Messages
  Work* begin_messages(uint32_t op, std::vector<std::unique_ptr<OwnedCall>> calls, uint64_t timeout_ns,
                       Deadline deadline, uint64_t op_id);
  bool move_messages(Work& work, bool heeds_deadline = true);  // true if it has ended
  void wait_for_messages(Work& work, Deadline until);
  // `move` makes progress, is told whether to heed the deadline, and is true once there is an outcome.
  template <typename Move>
  void wait_until_moved(const Move& move, uint32_t op, Deadline deadline, Deadline until);
  // A blocking send or receive on the CPU backend of one host, without hooks.
  Status run_message(const towline_collective_t& call, uint64_t timeout_ns, std::string& text);
  Status run_messages(std::vector<std::unique_ptr<OwnedCall>> calls, uint32_t op, uint64_t timeout_ns,
                      Deadline deadline, uint64_t op_id, std::string& text);
  void serve_messages();
  void watch_messages(Work* work) noexcept;
  void time_out(const towline_collective_t& message) noexcept;

  // Needs no memory.
  void call_hooks(uint32_t kind, const towline_collective_t* call, uint32_t op,
                  const towline_collective_options_t* options, uint64_t op_id, int32_t status, Work* work,
                  const char* text, bool async);
  // What an operation has come to on the caller's thread.
  struct Issued {
    int32_t status = TOWLINE_IN_PROGRESS;
    Work* work = nullptr;
  };
  // Gives the operation its number, and calls the hooks before and after `issue`, also where this throws: with that status then.
  template <typename Issue>
  Issued with_hooks(const towline_collective_t* call, uint32_t op,
                    const towline_collective_options_t* options, bool async, const Issue& issue) {
    const uint64_t op_id = next_op_id();
    if (hook_count_.load(std::memory_order_relaxed) == 0) return issue(op_id);
    call_hooks(TOWLINE_HOOK_PRE, call, op, options, op_id, 0, nullptr, nullptr, async);
    Issued issued;
    try {
      issued = issue(op_id);
    } catch (const std::exception& error) {
      const auto* const known = dynamic_cast<const Error*>(&error);
      const bool memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
      const Status status = known != nullptr ? known->code()
                            : memory         ? Status::kOutOfMemory
                                             : Status::kInternal;
      call_hooks(TOWLINE_HOOK_POST, call, op, options, op_id, static_cast<int32_t>(status), nullptr, nullptr,
                 async);
      throw;
    }
    call_hooks(TOWLINE_HOOK_POST, call, op, options, op_id, issued.status, issued.work, nullptr, async);
    return issued;
  }
  void broken(Status status, const std::string& text);
  // Of the hooks of a kind; null: they are not counted.
  [[nodiscard]] std::atomic<uint32_t>* count_of_hooks(uint32_t kind) noexcept;

  const CommunicatorOptions options_;
  const std::shared_ptr<FormingStore> store_;
  const std::shared_ptr<Config> config_;
  const towline_collective_table_v1_t* table_;
  std::unique_ptr<const towline_collective_table_v1_t> paired_;  // the table, of GPUs that use NCCL by size
  std::vector<std::vector<int>> hosts_;  // the ranks of each, where GPUs of several work together
  towline_collective_host_v1_t host_ = {};
  towline_collective_backend* backend_ = nullptr;
  CpuBackend* cpu_ = nullptr;  // performs small operations and blocking messages; null: the table does
  const uint64_t forks_;
  towline_communicator_t* handle_ = nullptr;
  std::atomic<uint64_t> timeout_ns_;
  std::atomic<bool> finalized_{false};
  std::atomic<int32_t> broken_{0};
  mutable std::mutex state_mutex_;  // guards the members below
  std::string broken_text_;
  std::map<std::string, std::string> hints_;
  std::atomic<bool> aborted_hooks_called_{false};
  bool aborted_hooks_done_ = false;  // under state_mutex_
  std::condition_variable aborted_hooks_returned_;
  std::atomic<bool> formed_{false};

  BiasedLock perform_mutex_;
  std::atomic<std::thread::id> finisher_{};  // set by that thread, holding perform_mutex_
  uint64_t number_ = 0;                      // under perform_mutex_
  std::vector<uint8_t> scaled_;              // under perform_mutex_
  std::atomic<uint32_t> queued_{0};
  std::mutex queue_mutex_;
  std::condition_variable queue_changed_;
  std::deque<WorkRef> queue_;
  bool stopping_ = false;  // under queue_mutex_
  std::thread runner_;

  std::mutex active_mutex_;
  std::condition_variable active_changed_;
  std::vector<WorkRef> active_;  // messages in progress
  bool messages_stopping_ = false;
  std::vector<std::thread> movers_;  // more than one if functions of works wait for messages

  std::atomic<uint32_t> hook_count_{0};  // before and after operations
  std::atomic<uint32_t> replay_hook_count_{0};
  std::mutex hooks_mutex_;
  using Hooks = std::vector<std::shared_ptr<Hook>>;
  std::shared_ptr<const Hooks> hooks_ = std::make_shared<Hooks>();  // replaced by others
  FlightRecorder recorder_;
  uint32_t splits_ = 0;
};

}  // namespace towline::collectives
