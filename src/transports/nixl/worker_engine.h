// One worker's engine of a plugin of NIXL's interface, and the parts that it moves.
//
// A part becomes one request of the engine, or several one after the other if it has many blocks. A request for the
// whole of a prepared plan stays prepared and is posted again. An engine tells of a request's end only when it is asked,
// and has no fence: a request that was given up may still move bytes, and its part is completed without fences.
//
// An engine takes no priorities. Urgent parts are handed to it at once. For a second after the last of them, other parts
// have one request of at most kBulkBytes with it at a time, and wait here for their turn, the oldest first.
//
// Threads. Everything is called by the worker under its lock, except add_memory() and remove_memory(), which any thread
// may call. The engine has a lock of its own, which is never held while the core is called.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nixl_plugins/engine.h"
#include "towline/plugin/backend.hpp"
#include "towline/plugin/cursor.hpp"
#include "transports/nixl/settings.h"

namespace towline::nixl_net {

using nixl_plugins::ask;
using nixl_plugins::Engine;

class Connection;

inline uint64_t device_of(const towline_region_ref& region) noexcept {
  return region.kind == TOWLINE_MEMORY_VRAM ? region.device : 0;
}
inline nixl_mem_t kind_of(const towline_region_ref& region) noexcept {
  return region.kind == TOWLINE_MEMORY_VRAM ? VRAM_SEG : DRAM_SEG;
}

// Memory of ours, as one engine knows it.
struct OwnMemory {
  nixlBackendMD* metadata = nullptr;
  std::string public_data;  // for peers' engines
};

// Lists given to the engine stay in place until the request is released.
struct Request {
  Request(nixl_xfer_op_t op, std::string to, nixl_mem_t local_kind, nixl_mem_t remote_kind)
      : operation(op), agent(std::move(to)), local(local_kind), remote(remote_kind) {}

  const nixl_xfer_op_t operation;
  const std::string agent;
  nixl_meta_dlist_t local;
  nixl_meta_dlist_t remote;
  nixl_opt_b_args_t args;
  nixlBackendReqH* handle = nullptr;
};

struct Prepared : plugin::PreparedBase {
  Connection* of = nullptr;  // null: gone
  nixl_xfer_op_t operation = NIXL_READ;
  nixl_mem_t local_kind = DRAM_SEG;
  nixl_mem_t remote_kind = DRAM_SEG;
  std::vector<nixlBackendMD*> local;  // by the plan's regions
  std::vector<nixlBackendMD*> remote;
  std::vector<uint64_t> local_devices;
  std::vector<uint64_t> remote_devices;
  std::shared_ptr<Request> idle;  // for the whole plan, to be posted again
};

// A part under way.
struct Job {
  Connection* connection = nullptr;
  Prepared* prepared = nullptr;
  uint64_t cookie = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t give_up_ns = UINT64_MAX;  // it was cancelled: the request is released then
  plugin::Cursor cursor;
  std::shared_ptr<Request> request;
  bool whole = false;  // the request is all of the plan
  const bool urgent;
  bool posted = false;  // the engine has its request
  std::vector<uint8_t> message;
  Status status = Status::kInProgress;
  int32_t vendor_code = 0;
  bool fenced = true;     // nothing of it can be under way
  uint64_t moved_to = 0;  // up to here in the plan

  Job(Connection& of, Prepared& from, const towline_submit_args& args);
};

class WorkerEngine {
 public:
  // Throws plugin::Failure.
  WorkerEngine(const plugin::Host& host, const Settings& settings, std::string name);
  ~WorkerEngine();
  WorkerEngine(const WorkerEngine&) = delete;
  WorkerEngine& operator=(const WorkerEngine&) = delete;

  [[nodiscard]] const std::string& type() const noexcept { return engine_.type(); }
  [[nodiscard]] const std::string& info() const noexcept { return info_; }
  [[nodiscard]] bool serves(nixl_mem_t kind) const noexcept { return engine_.serves(kind); }
  [[nodiscard]] uint64_t requests() const noexcept { return requests_; }

  // Throw plugin::Failure.
  OwnMemory add_memory(const towline_region_ref& region);
  void remove_memory(const OwnMemory& memory) noexcept;

  // A peer's engine: several connections may name the same one. Throw plugin::Failure.
  void add_peer(const std::string& name, const std::string& info);
  void remove_peer(const std::string& name) noexcept;
  nixlBackendMD* load_memory(const std::string& peer, const towline_region_ref& region,
                             const std::string& public_data);
  void unload_memory(nixlBackendMD* metadata) noexcept;

  // Starts a part: kOk if it is over already, kInProgress, or why not.
  Status start(Connection& connection, Prepared& prepared, const towline_submit_args& args) noexcept;
  void cancel(const Connection& connection, uint64_t cookie) noexcept;
  void release_idle(Prepared& prepared) noexcept;
  // Asks the engine, and completes what has ended. Callbacks of the core may call anything here.
  uint32_t progress(uint64_t now_ns) noexcept;
  // Gives up and completes all parts of this connection.
  void drop_jobs(const Connection& connection, Status status) noexcept;
  // Parts are under way, and when the last one began or ended.
  [[nodiscard]] bool busy() const noexcept { return !jobs_.empty(); }
  [[nodiscard]] uint64_t last_event_ns() const noexcept { return last_event_ns_; }

 private:
  struct Peer {
    std::string info;
    uint32_t connections = 0;
  };
  // The job's next request is posted, or waits for its turn. kInProgress: it has not ended.
  Status post_next(Job& job);
  void fill(Job& job, Request& request, uint64_t bytes);
  [[nodiscard]] bool urgent_parts_come() const noexcept;
  void is_back(Job& job) noexcept;  // the engine's request, or it was given up
  nixl_status_t post(Job& job) noexcept;
  void end_request(Job& job, nixl_status_t status) noexcept;
  void give_up(Job& job, Status status) noexcept;
  // `over`: the engine has told its end. If it has not and does not release the request, the engine is never freed.
  void release(std::shared_ptr<Request>& request, bool over) noexcept;
  bool look_after(Job& job, uint64_t now_ns);
  // False: the carrier has no room for its message yet.
  bool deliver(Job& job) noexcept;
  void complete(Job& job) noexcept;

  const plugin::Host& host_;
  const uint64_t blocks_;  // of one request
  const std::string name_;
  Engine engine_;
  std::string info_;
  std::map<std::string, Peer> peers_;
  std::vector<std::unique_ptr<Job>> jobs_;
  uint64_t requests_ = 0;
  uint64_t last_event_ns_ = 0;
  uint64_t last_urgent_ns_ = 0;
  uint32_t bulk_posted_ = 0;  // requests
  bool in_progress_ = false;
};

}  // namespace towline::nixl_net
