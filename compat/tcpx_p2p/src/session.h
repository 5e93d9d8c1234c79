// A session is one Towline agent. A receive is told to the other side as soon as it is posted; the side that sends
// matches it, and writes into its memory. One thread of the session takes what arrives and what has ended.
#pragma once

#include <tcpx_p2p.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <towline/towline.hpp>

#include "messages.h"

namespace towline_tcpx {

inline constexpr std::size_t kMostPending = 4096;    // of each way, a connection
inline constexpr std::size_t kMostMemories = 65536;  // of a session
inline constexpr std::size_t kMostArrivals = 128;    // that nobody has accepted

struct Memory {
  uint64_t address = 0;
  uint64_t bytes = 0;
  int64_t gpu = -1;
  std::optional<towline::Region> region;  // ours
  uint32_t users = 0;
};

// Fields are guarded by the session's mutex.
struct Operation {
  bool sends = false;
  uint64_t id = 0;
  uint64_t memory = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t tag = 0;
  int32_t status = TOWLINE_IN_PROGRESS;
  uint64_t moved = 0;
  uint64_t meets = 0;   // a send: the other side's receive
  bool posted = false;  // the write is under way
  bool wanted = true;
  std::string notice;
  std::optional<towline::Transfer> write;
};
using OperationPtr = std::shared_ptr<Operation>;

// A receive of the other side, not met yet.
struct Offer {
  uint64_t id, memory, offset, bytes, tag;
};

struct Link {
  explicit Link(towline::Peer with) : peer(std::move(with)) {}

  towline::Peer peer;
  std::string incarnation;
  int32_t status = TOWLINE_IN_PROGRESS;  // until it is welcome; then TOWLINE_OK, or why it ended
  bool wanted = true;                    // by the application
  uint64_t next_id = 1;
  std::deque<OperationPtr> sends;  // not met
  std::deque<Offer> offers;
  std::vector<OperationPtr> writing;
  std::map<uint64_t, OperationPtr> receives;
  std::set<uint64_t> told;              // our memories that the other side knows
  std::map<uint64_t, Memory> memories;  // of the other side
  std::deque<std::string> outbox;       // that had no credit
};
using LinkPtr = std::shared_ptr<Link>;

class Session {
 public:
  explicit Session(const tcpx_session_options_t& options);
  ~Session() { shut(); }
  // Ends everything; handles that are still held answer TOWLINE_CLOSED.
  void shut() noexcept;

  [[nodiscard]] std::string address() const { return agent_->address(); }
  [[nodiscard]] std::string describe() const { return agent_->info(); }
  [[nodiscard]] LinkPtr accept(uint64_t timeout_ns);
  [[nodiscard]] LinkPtr connect(const std::string& address, uint64_t timeout_ns);
  void close(const LinkPtr& link);

  [[nodiscard]] uint64_t register_memory(void* address, uint64_t bytes, int32_t gpu);
  void deregister_memory(uint64_t memory);

  [[nodiscard]] OperationPtr post(const LinkPtr& link, bool sends, uint64_t memory, uint64_t offset,
                                  uint64_t bytes, uint64_t tag);
  [[nodiscard]] int32_t status(const Operation& operation);
  [[nodiscard]] uint64_t moved(const Operation& operation);
  [[nodiscard]] int32_t wait(const Operation& operation, uint64_t timeout_ns);
  // True: nothing of it moves any more.
  [[nodiscard]] bool release(const LinkPtr& link, const OperationPtr& operation, uint64_t timeout_ns);

 private:
  using Lock = std::unique_lock<std::mutex>;

  void run();
  void take_notices();
  void take(const LinkPtr& link, const Message& message);
  void take_hello(const towline::Notice& notice, const Message& message);
  void take_memory(Link& link, const Message& message);
  void advance(const LinkPtr& link);
  void match(Link& link);
  void begin_write(Link& link, const OperationPtr& operation, const Offer& offer);
  void poll_writes(Link& link);
  void tell(Link& link, const Message& message);
  void flush(Link& link);
  void end(Operation& operation, int32_t status, uint64_t moved = 0);
  void fail(Link& link, int32_t status, const std::string& why);
  [[nodiscard]] bool wait_until(Lock& lock, uint64_t timeout_ns, const std::function<bool()>& done);
  void log(tcpx_log_level_t level, const std::string& text) const;

  tcpx_session_options_t options_;
  std::optional<towline::Agent> agent_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  uint64_t next_memory_ = 1;
  std::map<uint64_t, Memory> memories_;
  std::map<std::string, LinkPtr> links_;  // by incarnation
  std::deque<LinkPtr> arrived_;
  std::thread thread_;
};

}  // namespace towline_tcpx
