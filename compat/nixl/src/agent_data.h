// The implementation of a nixlAgent, its lists and its requests.
//
// One nixlAgent is one Towline agent whose progress is hosted, so that its passive side works while the
// application does something else. Posting and polling a request touch the request only: no lock, look-up or
// allocation here.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nixl.h>
#include <towline_nixl.h>
#include <towline/towline.hpp>
#include "backends.h"
#include "engine.h"
#include "inbox.h"
#include "memory_table.h"
#include "memory_views.h"
#include "messages.h"
#include "metadata_calls.h"
#include "metadata_directory.h"
#include "of_this_process.h"
#include "remotes.h"
#include "sent_metadata.h"
#include "settings.h"
#include "telemetry.h"

namespace towline::nixl {

// A list of the objects that an agent still has to free.
template <class T>
struct Linked {
  T* next = nullptr;
  T* previous = nullptr;
};

template <class T>
class LinkedList {
 public:
  void add(T* item) noexcept {
    std::lock_guard lock(mutex_);
    item->next = first_;
    if (first_ != nullptr) first_->previous = item;
    first_ = item;
  }
  void remove(T* item) noexcept {
    std::lock_guard lock(mutex_);
    if (item->previous != nullptr) item->previous->next = item->next;
    if (item->next != nullptr) item->next->previous = item->previous;
    if (first_ == item) first_ = item->next;
  }
  // Null when empty.
  T* take_first() noexcept {
    std::lock_guard lock(mutex_);
    T* item = first_;
    if (item == nullptr) return nullptr;
    first_ = item->next;
    if (first_ != nullptr) first_->previous = nullptr;
    return item;
  }

 private:
  std::mutex mutex_;
  T* first_ = nullptr;
};

using ListHandle = detail::Handle<towline_block_list_t, towline_block_list_destroy>;

inline constexpr uint64_t kDefaultTimeoutNs = 30'000'000'000;  // Towline's

// The two sides of a request.
struct Sides {
  towline_block_list_t* local = nullptr;
  const towline_picks_t* local_picks = nullptr;  // null: all
  towline_block_list_t* remote = nullptr;
  const towline_picks_t* remote_picks = nullptr;
  size_t descs = 0;
  bool host_memory = false;  // both are DRAM
};

}  // namespace towline::nixl

class nixlDlistH : public towline::nixl::Linked<nixlDlistH> {
 public:
  towline::nixl::ListHandle list;
  nixl_mem_t type = DRAM_SEG;
  bool remote = false;
  std::shared_ptr<towline::nixl::Remote> of;  // null: this agent
  std::vector<nixlBackendH*> backends;        // the backends that may use it
  towline::nixl::ListHandle stored;           // the same list for the first backend with objects
  std::vector<std::pair<nixlBackendH*, towline::nixl::EngineList>> engines;  // and for plugins' engines
};

class nixlXferReqH : public towline::nixl::Linked<nixlXferReqH> {
 public:
  // The state of a post that Towline has not accepted.
  enum class Pending : uint8_t {
    kNone,     // accepted
    kWanted,   // the peer had no credit: post again when the status is read
    kTrying,   // a thread is posting it
    kRefused,  // failed permanently, with `refused`
  };

  towline_transfer_t* transfer = nullptr;                 // null: of a plugin's engine
  std::unique_ptr<towline::nixl::EngineRequest> engined;  // null: of Towline
  std::shared_ptr<towline::nixl::Remote> with;            // null: within this agent
  nixlBackendH* backend = nullptr;
  size_t descs = 0;
  uint64_t timeout_ns = 0;
  bool has_notif = false;
  uint64_t long_number = 0;  // of its notification, when that is longer than a notice; else 0
  nixl_blob_t long_notif;
  towline::nixl::Telemetry* events = nullptr;  // of the agent; null: telemetry is off
  bool writes = false;                         // the operation
  std::atomic<bool> told{false};               // the failure of the last post was reported
  std::atomic<bool> ended{false};              // with telemetry: its end has been seen
  std::atomic<Pending> pending{Pending::kNone};
  std::atomic<int32_t> refused{0};  // a towline_status_t
  uint64_t retry_until_ns = 0;
  chrono_point_t started{};
  std::atomic<int64_t> post_us{0};
  std::atomic<int64_t> transfer_us{0};
};

class nixlAgentData final : public towline::nixl::MessageReader, public towline::nixl::DirectoryListener {
 public:
  nixlAgentData(const std::string& agent_name, const nixlAgentConfig& agent_config);
  ~nixlAgentData() override;

  // True if this agent made the backend. Call under the lock of backends.
  [[nodiscard]] bool made(const nixlBackendH* backend) const noexcept;
  // The backends that serve this kind of memory and, if `others`, reach other agents. They are taken from
  // `extra_params` if it names some, else from all created ones in order of creation. Sets the last error if
  // there are none.
  std::vector<nixlBackendH*> candidates(const nixl_opt_args_t* extra_params, nixl_mem_t type, bool others,
                                        const char* call) const;
  // The first backend that serves both kinds of memory and, if `others`, reaches other agents; else null.
  nixlBackendH* backend_for(const nixl_opt_args_t* extra_params, nixl_mem_t local, nixl_mem_t remote,
                            bool others) const noexcept;
  // The first backend that reaches other agents; else null, with the last error set.
  nixlBackendH* transport(const nixl_opt_args_t* extra_params, const char* call) const;
  // The backend that sends a notification to the agent: one that knows it if there is one; else null, with the
  // last error set.
  nixlBackendH* notifier(const nixl_opt_args_t* extra_params, const std::string& agent_name,
                         const char* call) const;
  [[nodiscard]] std::vector<std::string> transport_names() const;
  // Backends that are plugins' engines, in order of creation.
  [[nodiscard]] std::vector<nixlBackendH*> engine_backends() const;
  [[nodiscard]] bool has_engines() const noexcept { return any_engine.load(std::memory_order_acquire); }
  // Makes a backend of a plugin.
  nixl_status_t create_engine(const nixl_backend_t& type, const nixl_b_params_t& params,
                              nixlBackendH*& backend, const char* call);
  // Adds a made backend; NIXL_ERR_INVALID_PARAM if there is one of its name.
  nixl_status_t add_backend(std::unique_ptr<nixlBackendH> made, nixlBackendH*& backend, const char* call);
  // True if the name means a plugin rather than one of Towline's own backends.
  [[nodiscard]] bool is_plugin(const nixl_backend_t& type) const;
  // Gives the metadata of an agent to the engines. `anew`: the agent is another incarnation.
  nixl_status_t load_engines(const towline::nixl::Frame& frame, bool anew);
  void forget_engines(const std::string& agent_name);
  // Makes a request of a plugin's engine from two lists that it made.
  nixl_status_t make_engine_request(nixl_xfer_op_t operation, nixlBackendH* backend,
                                    towline::nixl::EngineList local, towline::nixl::EngineList remote,
                                    const std::string& remote_agent,
                                    std::shared_ptr<towline::nixl::Remote> with,
                                    const nixl_opt_args_t* extra_params, nixlXferReqH*& request,
                                    const char* call);
  // The kinds of memory that a backend of this type serves here; empty if there is no such backend.
  [[nodiscard]] nixl_mem_list_t memories_of(const towline::nixl::BackendType& type) const;

  // Makes a list of the backend's store. kOk, or an error, which is also set as the last error.
  static nixl_status_t make_stored(const nixlBackendH& backend, nixl_mem_t type,
                                   const towline::nixl::Rows& rows, towline::nixl::ListHandle& list,
                                   const char* call);
  nixl_status_t make_list(const std::string& agent_name, nixl_mem_t type, const towline::nixl::Rows& rows,
                          towline::nixl::ListHandle& list, std::shared_ptr<towline::nixl::Remote>& of,
                          const char* call);
  // Makes a list of strided rows, and keeps them as rows if possible.
  nixl_status_t make_list(const std::string& agent_name, nixl_mem_t type, towline::nixl::StridedRows rows,
                          towline::nixl::ListHandle& list, std::shared_ptr<towline::nixl::Remote>& of,
                          const char* call);
  // Finds the agent whose metadata is loaded under this name; null for this agent itself.
  nixl_status_t find_remote(const std::string& agent_name, std::shared_ptr<towline::nixl::Remote>& remote,
                            const char* call);
  // Makes a list of a peer, or for null of this agent. Null if it can't be made.
  [[nodiscard]] towline::nixl::ListHandle try_list(const towline::nixl::Remote* remote,
                                                   const nixl_xfer_dlist_t& descs) const;
  nixl_status_t make_request(nixl_xfer_op_t operation, const towline::nixl::Sides& sides,
                             nixlBackendH* backend, std::shared_ptr<towline::nixl::Remote> with,
                             const nixl_opt_args_t* extra_params, nixlXferReqH*& request, const char* call);
  // `sent_by`: the incarnation of the agent that sent it, which must be its own; empty: the application brought it.
  nixl_status_t load(const nixl_blob_t& blob, std::string& agent_name, std::string_view sent_by = {});
  // Makes room for metadata that its agent sent. False: too many agents that are there have sent theirs.
  [[nodiscard]] bool make_room(const std::string& agent_name, size_t bytes);
  nixl_status_t invalidate(const std::string& agent_name);
  void remove_peer(const towline::Peer& known);
  // The metadata frame of getLocalMD, or with `descs` of getLocalPartialMD. Throws Error.
  [[nodiscard]] towline::nixl::Frame local_frame(const nixl_reg_dlist_t* descs, bool addresses,
                                                 const nixl_opt_args_t* extra_params);
  nixl_status_t begin_send(const char* what, const towline::nixl::Frame& frame,
                           const nixl_opt_args_t& extra_params);
  nixl_status_t send_to(const std::string& address, const std::vector<std::string>& messages);
  nixl_status_t fetch_from(const std::string& address, const std::string& remote_name);
  // Sets the notification of a request. `notice` receives the text of the notice that carries it.
  nixl_status_t set_notif(nixlXferReqH& request, const nixl_blob_t& notif, std::string& notice,
                          const char* call);
  // Sends the pieces of a long notification to `with` or, if that is null, to this agent itself; waits for
  // credit.
  nixl_status_t send_long(uint64_t number, std::string_view text, const towline::nixl::Remote* with,
                          uint64_t until_ns, const char* call);
  // Waits for the peer's credit until the deadline.
  nixl_status_t send_notice(const towline::Peer& peer, std::string_view notice, uint64_t until_ns,
                            const char* call);
  // Processes new messages of peers and of the metadata server. Blocks for a moment at most.
  void catch_up();
  // True if catch_up() already ran in this tick of the clock; marks it as run.
  [[nodiscard]] bool caught_up_lately() noexcept;
  // The directory; null, with `status` set, on failure.
  towline::nixl::MetadataDirectory* directory(const char* call, nixl_status_t& status);

  void read_message(const std::string& sender, std::string_view incarnation,
                    std::string_view message) override;
  void read_all() override;
  // What an agent has sent of itself, and that it takes this back. On the thread of sent_metadata.
  void take_sent(const std::string& sender, towline::nixl::SentMetadata::Frame frame);
  void take_back(const std::string& sender, std::string_view incarnation);
  void gone(const std::string& agent_name) override;

  [[nodiscard]] const towline::Agent& towline_agent() const noexcept { return *agent; }

  const std::string name;
  const nixlAgentConfig config;
  const towline::nixl::Settings settings;
  const uint64_t timeout_ns;
  const bool telemetry;
  const std::unique_ptr<towline::nixl::Telemetry> events;  // null: telemetry is off
  std::optional<towline::Agent> agent;                     // destroyed first

  mutable std::mutex backends_mutex;
  std::map<std::string, std::unique_ptr<nixlBackendH>> backends;
  std::vector<nixlBackendH*> by_creation;
  std::atomic<nixlBackendH*> first_transport{nullptr};  // one of `backends`; read without the lock
  std::atomic<bool> any_engine{false};                  // a plugin's engine is among them
  std::map<nixlMemViewH, nixlBackendH*> views;          // of plugins' engines; under backends_mutex
  std::map<nixlMemViewH, std::unique_ptr<towline::nixl::GpuView>> own_views;  // the same of Towline's own

  towline::nixl::MemoryTable memory;
  towline::nixl::Remotes remotes;
  std::atomic<uint64_t> last_long_number{0};
  std::atomic<int64_t> caught_up_at{0};           // a tick of the coarse clock
  towline::nixl::ArrivingFrames arriving_frames;  // under the inbox's lock
  towline::nixl::Inbox inbox{*this};
  std::mutex notifs_mutex;  // for getNotifs: held while the caller's map is filled
  towline::nixl::LinkedList<nixlDlistH> lists;
  towline::nixl::LinkedList<nixlXferReqH> requests;
  towline::nixl::OfThisProcess<towline::nixl::MetadataCalls> calls;
  towline::nixl::OfThisProcess<towline::nixl::SentMetadata> sent_metadata;
  std::mutex directory_mutex;
  std::unique_ptr<towline::nixl::MetadataDirectory> opened_directory;
};

namespace towline::nixl {

struct AgentAccess {
  static nixlAgentData& data(const nixlAgent& agent) noexcept { return *agent.data; }
};

// Runs a call's work and converts exceptions to a status.
template <class Work, class Map>
nixl_status_t guard(const char* call, Map map, Work work) noexcept {
  try {
    return work();
  } catch (const Error& error) {
    return fail(map(error.code()), "{}: {}", call, error.what());
  } catch (const std::exception& error) {
    return fail(NIXL_ERR_UNKNOWN, "{}: {}", call, error.what());
  }
}
template <class Work>
nixl_status_t guard(const char* call, Work work) noexcept {
  return guard(call, to_nixl, std::move(work));
}

}  // namespace towline::nixl
