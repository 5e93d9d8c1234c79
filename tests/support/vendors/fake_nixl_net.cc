// A plugin of NIXL's interface that copies between the memories of agents, of one process or two, from the third time on that
// a request is asked about. It checks what it is given. fake_nixl_net_fail makes its steps fail.
#include <backend/backend_plugin.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>

#define FAKE_API extern "C" __attribute__((visibility("default")))

// The only virtual function of the list that NIXL's header does not define.
template <class T>
int nixlDescList<T>::getIndex(const nixlBasicDesc&) const {
  return static_cast<int>(NIXL_ERR_NOT_SUPPORTED);
}
template class nixlDescList<nixlMetaDesc>;

namespace {

constexpr int kChecks = 3;
constexpr size_t kAtOnce = 4;  // blocks that one check moves

std::mutex mutex;
std::map<std::string, int> failures;
std::set<std::string> engines;  // the names of those that exist
std::atomic<int> alive{0};      // engines, metadata, requests, known peers
std::atomic<int> prepared{0};
std::atomic<int> misused{0};
const char* type = "FAKE";

bool fails(const char* what) {
  const std::lock_guard lock(mutex);
  const auto found = failures.find(what);
  if (found == failures.end() || found->second == 0) return false;
  --found->second;
  return true;
}

// Objects that an engine kept for good still knows; they are no leak.
std::set<const void*>& known() {
  static auto& all = *new std::set<const void*>;
  return all;
}

struct Known : nixlBackendMD {
  Known(uintptr_t where, size_t bytes, bool own) : nixlBackendMD(own), address(where), length(bytes) {
    ++alive;
    const std::lock_guard lock(mutex);
    known().insert(this);
  }
  ~Known() override {
    --alive;
    const std::lock_guard lock(mutex);
    known().erase(this);
  }
  const uintptr_t address;
  const size_t length;
  std::string of;  // a peer's
};
struct Request : nixlBackendReqH {
  Request() { ++alive; }
  ~Request() override { --alive; }
  int checks = 0;
  size_t moved = 0;  // blocks
  bool running = false;
  bool twice = false;  // it ends: first with success, then with an error, to whoever asks or releases it
  bool never = false;  // ends
  bool held = false;   // can't be released before its end
  nixl_xfer_op_t operation = NIXL_READ;
  const nixl_meta_dlist_t* local = nullptr;
  const nixl_meta_dlist_t* remote = nullptr;
  std::string agent;
};

class Fake final : public nixlBackendEngine {
 public:
  explicit Fake(const nixlBackendInitParams* init) : nixlBackendEngine(init) {
    if (fails("create_throws")) throw std::runtime_error("this engine never starts");
    initErr = fails("start");
    const std::lock_guard lock(mutex);
    engines.insert(localAgent);
    ++alive;
  }
  ~Fake() override {
    const std::lock_guard lock(mutex);
    engines.erase(localAgent);
    --alive;
  }

  bool supportsRemote() const override { return !fails("no_remote"); }
  bool supportsLocal() const override { return true; }
  bool supportsNotif() const override { return true; }
  nixl_mem_list_t getSupportedMems() const override {
    return fails("no_memory") ? nixl_mem_list_t{FILE_SEG} : nixl_mem_list_t{DRAM_SEG};
  }
  nixl_status_t registerMem(const nixlBlobDesc& memory, const nixl_mem_t&, nixlBackendMD*& out) override {
    if (fails("register")) return NIXL_ERR_NOT_ALLOWED;
    out = new Known(memory.addr, memory.len, true);
    return NIXL_SUCCESS;
  }
  nixl_status_t deregisterMem(nixlBackendMD* meta) override {
    delete meta;
    return NIXL_SUCCESS;
  }
  nixl_status_t connect(const std::string&) override {
    return fails("connect") ? NIXL_ERR_BACKEND : NIXL_SUCCESS;
  }
  nixl_status_t disconnect(const std::string& agent) override {
    if (peers_.erase(agent) == 0) return NIXL_ERR_NOT_FOUND;
    --alive;
    return NIXL_SUCCESS;
  }
  nixl_status_t unloadMD(nixlBackendMD* meta) override { return deregisterMem(meta); }
  nixl_status_t getPublicData(const nixlBackendMD* meta, std::string& text) const override {
    if (fails("public")) return NIXL_ERR_BACKEND;
    text = "memory of " + std::to_string(static_cast<const Known*>(meta)->length) + '\0';
    return NIXL_SUCCESS;
  }
  nixl_status_t getConnInfo(std::string& text) const override {
    if (fails("info")) return NIXL_ERR_BACKEND;
    text = fails("long_info") ? std::string(1 << 20, 'x') : at(localAgent, ::getpid());
    return NIXL_SUCCESS;
  }
  nixl_status_t loadRemoteConnInfo(const std::string& agent, const std::string& info) override {
    if (fails("load_peer")) return NIXL_ERR_BACKEND;
    const pid_t process = std::atoi(info.c_str());
    if (info != at(agent, process) || !peers_.emplace(agent, process).second) {
      ++misused;
      return NIXL_ERR_INVALID_PARAM;
    }
    ++alive;
    return NIXL_SUCCESS;
  }
  nixl_status_t loadRemoteMD(const nixlBlobDesc& memory, const nixl_mem_t&, const std::string& agent,
                             nixlBackendMD*& output) override {
    if (fails("load_memory")) return NIXL_ERR_BACKEND;
    if (!peers_.contains(agent) || memory.metaInfo != "memory of " + std::to_string(memory.len) + '\0') {
      ++misused;
      return NIXL_ERR_INVALID_PARAM;
    }
    auto known = std::make_unique<Known>(memory.addr, memory.len, false);
    known->of = agent;
    output = known.release();
    return NIXL_SUCCESS;
  }

  nixl_status_t prepXfer(const nixl_xfer_op_t&, const nixl_meta_dlist_t& local,
                         const nixl_meta_dlist_t& remote, const std::string& agent, nixlBackendReqH*& handle,
                         const nixl_opt_b_args_t*) const override {
    if (fails("prepare")) return NIXL_ERR_INVALID_PARAM;
    if (!right(local, {}) || !right(remote, agent) || local.descCount() != remote.descCount()) {
      ++misused;
      return NIXL_ERR_INVALID_PARAM;
    }
    ++prepared;
    handle = new Request;
    return NIXL_SUCCESS;
  }
  nixl_status_t postXfer(const nixl_xfer_op_t& operation, const nixl_meta_dlist_t& local,
                         const nixl_meta_dlist_t& remote, const std::string& agent, nixlBackendReqH*& handle,
                         const nixl_opt_b_args_t*) const override {
    if (fails("post")) return NIXL_ERR_BACKEND;
    auto& request = static_cast<Request&>(*handle);
    if (request.running || !peers_.contains(agent)) ++misused;
    request.checks = fails("late") ? 200 : kChecks;
    request.never = fails("never");
    request.held = fails("held");
    request.running = true;
    request.operation = operation;
    request.local = &local;
    request.remote = &remote;
    request.agent = agent;
    request.moved = 0;
    request.twice = fails("twice");
    return fails("at_once") ? go_on(request, SIZE_MAX) : NIXL_IN_PROG;
  }
  nixl_status_t checkXfer(nixlBackendReqH* handle) const override {
    auto& request = static_cast<Request&>(*handle);
    if (!request.running) ++misused;  // it had told its end
    if (!request.running && request.twice) return NIXL_ERR_BACKEND;
    if (request.never || request.held || --request.checks > 0) return NIXL_IN_PROG;
    if (request.moved == 0 && fails("throw")) throw 1;
    return go_on(request, kAtOnce);
  }
  nixl_status_t releaseReqH(nixlBackendReqH* handle) const override {
    if (static_cast<Request*>(handle)->held) return NIXL_ERR_BACKEND;
    const bool twice = static_cast<Request*>(handle)->twice;
    delete handle;
    return twice ? NIXL_ERR_BACKEND : NIXL_SUCCESS;
  }

 private:
  // Each block lies in the memory that its metadata is of.
  static bool right(const nixl_meta_dlist_t& list, const std::string& agent) {
    return std::all_of(list.begin(), list.end(), [&](const nixlMetaDesc& desc) {
      const auto* known = static_cast<const Known*>(desc.metadataP);
      return known->of == agent && desc.addr >= known->address && desc.len <= known->length &&
             desc.addr - known->address <= known->length - desc.len;
    });
  }
  static std::string at(const std::string& agent, pid_t process) {
    return std::to_string(process) + " has " + agent + '\0';
  }
  // Moves some of its blocks, and ends it with the last one.
  nixl_status_t go_on(Request& request, size_t blocks) const {
    const auto all = static_cast<size_t>(request.local->descCount());
    const size_t until = blocks < all - request.moved ? request.moved + blocks : all;
    request.running = false;
    if (request.moved == 0 && fails("check")) return NIXL_ERR_BACKEND;
    const auto peer = peers_.find(request.agent);
    const pid_t process = peer == peers_.end() || peer->second == ::getpid() ? 0 : peer->second;
    if (process == 0) {
      const std::lock_guard lock(mutex);
      if (!engines.contains(request.agent)) return NIXL_ERR_REMOTE_DISCONNECT;
    }
    if (request.moved == 0 && fails("lost")) return NIXL_ERR_REMOTE_DISCONNECT;
    for (size_t& i = request.moved; i < until; ++i)
      if (!move(process, request.operation, (*request.local)[i], (*request.remote)[i]))
        return NIXL_ERR_REMOTE_DISCONNECT;
    request.running = until != all;
    return request.running ? NIXL_IN_PROG : NIXL_SUCCESS;
  }
  // False: the other process is gone.
  static bool move(pid_t process, nixl_xfer_op_t operation, const nixlMetaDesc& local,
                   const nixlMetaDesc& remote) {
    const iovec here = {reinterpret_cast<void*>(local.addr), local.len};
    const iovec there = {reinterpret_cast<void*>(remote.addr), remote.len};
    if (process == 0) {
      const bool write = operation == NIXL_WRITE;
      std::memcpy(write ? there.iov_base : here.iov_base, write ? here.iov_base : there.iov_base, local.len);
      return true;
    }
    const ssize_t moved = operation == NIXL_WRITE ? ::process_vm_writev(process, &here, 1, &there, 1, 0)
                                                  : ::process_vm_readv(process, &here, 1, &there, 1, 0);
    return moved == static_cast<ssize_t>(local.len);
  }

  std::map<std::string, pid_t> peers_;  // and the processes in which they are
};

}  // namespace

FAKE_API void fake_nixl_net_fail(const char* what, int times) {
  const std::lock_guard lock(mutex);
  failures[what] = times;
}
FAKE_API void fake_nixl_net_type(const char* name) { type = name; }
FAKE_API int fake_nixl_net_alive() { return alive.load(); }
FAKE_API int fake_nixl_net_prepared() { return prepared.load(); }
FAKE_API int fake_nixl_net_misused() { return misused.load(); }

FAKE_API nixlBackendPlugin* nixl_plugin_init() {
  static nixlBackendPlugin plugin = {};
  if (fails("init")) return nullptr;
  if (fails("init_throws")) throw std::runtime_error("this plugin never starts");
  plugin = {fails("version") ? 0 : NIXL_PLUGIN_API_VERSION,
            [](const nixlBackendInitParams* init) -> nixlBackendEngine* {
              return fails("create") ? nullptr : new Fake(init);
            },
            [](nixlBackendEngine* engine) { delete engine; },
            [] { return type; },
            [] { return "1.0.0"; },
            nullptr,
            nullptr};
  return &plugin;
}
