// An asynchronous operation: its call, its state, and the functions to call when it ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "towline/collectives.h"
#include "towline/plugin/collective.h"
#include "towline/status.h"

namespace towline::collectives {

class Communicator;

// A call with its arrays copied.
class OwnedCall {
 public:
  OwnedCall(const towline_collective_t& call, int size);
  OwnedCall(const OwnedCall&) = delete;
  OwnedCall& operator=(const OwnedCall&) = delete;
  const towline_collective_t& get() const noexcept { return call_; }

 private:
  towline_collective_t call_ = {};
  std::vector<uint64_t> numbers_;
  std::vector<const void*> pointers_;
};

// not started -> in progress -> completed | timed out | error; set once, by the thread that runs it. Owners
// are counted: the application, and the communicator while it runs.
class Work {
 public:
  struct Release {
    void operator()(Work* work) const noexcept { work->release(); }
  };
  using Owned = std::unique_ptr<Work, Release>;

  explicit Work(std::shared_ptr<Communicator> communicator, uint32_t op, uint64_t timeout_ns,
                Deadline deadline)
      : communicator_(std::move(communicator)), op_(op), timeout_ns_(timeout_ns), deadline_(deadline) {}

  void retain() noexcept { owners_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (owners_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  uint32_t state() const noexcept { return state_.load(std::memory_order_acquire); }
  bool ended() const noexcept { return state() >= TOWLINE_WORK_COMPLETED; }
  // kInProgress, or the outcome.
  Status outcome() const noexcept { return ended() ? status_ : Status::kInProgress; }
  const char* error() const noexcept { return ended() ? text_.c_str() : ""; }
  uint32_t op() const noexcept { return op_; }
  uint64_t timeout_ns() const noexcept { return timeout_ns_; }
  Deadline deadline() const noexcept { return deadline_; }
  const std::shared_ptr<Communicator>& communicator() const noexcept { return communicator_; }

  void on(uint32_t event, towline_work_fn function, void* context);
  void call_all(uint32_t event);  // for WAIT_PRE and WAIT_POST

  // Called by the thread that runs it. Functions are called without locks.
  void begin();
  void finish(Status status, std::string text);
  // Sleeps until it has ended.
  void sleep(Deadline until) const noexcept;

  // ---- Used by the communicator while it runs
  std::vector<std::unique_ptr<OwnedCall>> batch;      // one call, or sends and receives
  std::vector<towline_collective_message*> messages;  // of the batch, started
  Status refused = Status::kOk;                       // why one of them did not start, with its text
  std::string refused_text;
  std::mutex messages_mutex;
  bool streamed = false;          // on a stream of a GPU: its one message is ordered there
  bool messages_settled = false;  // guarded by it: all have ended; the thread that set this finishes the work
  uint64_t record = 0;            // in the flight recorder
  int source = TOWLINE_ANY_RANK;  // of a receive that ended well

 private:
  friend class Communicator;
  struct Listener {
    uint32_t event;
    towline_work_fn function;
    void* context;
  };
  ~Work() = default;

  const std::shared_ptr<Communicator> communicator_;
  const uint32_t op_;
  const uint64_t timeout_ns_;
  const Deadline deadline_;
  std::atomic<uint32_t> owners_{1};
  mutable std::atomic<uint32_t> state_{TOWLINE_WORK_NOT_STARTED};
  mutable std::atomic<uint32_t> sleepers_{0};  // threads in sleep()
  Status status_ = Status::kInProgress;
  std::string text_;
  std::mutex listeners_mutex_;
  std::vector<Listener> listeners_;
};

// A counted reference.
class WorkRef {
 public:
  WorkRef() noexcept = default;
  explicit WorkRef(Work* work) noexcept : work_(work) { work_->retain(); }
  WorkRef(WorkRef&& other) noexcept : work_(std::exchange(other.work_, nullptr)) {}
  WorkRef& operator=(WorkRef&& other) noexcept {
    std::swap(work_, other.work_);
    return *this;
  }
  ~WorkRef() {
    if (work_ != nullptr) work_->release();
  }
  Work* operator->() const noexcept { return work_; }
  Work& operator*() const noexcept { return *work_; }
  Work* get() const noexcept { return work_; }

 private:
  Work* work_ = nullptr;
};

}  // namespace towline::collectives
