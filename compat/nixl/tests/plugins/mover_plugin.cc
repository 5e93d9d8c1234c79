// A plugin of NIXL's interface, for the tests: copies host memory within a process and between processes of one
// host, and carries notifications. Its parameters make it fail.
//
//   fail=STEP     the call of this name returns NIXL_ERR_BACKEND
//   throw=STEP    it throws
//   polls=N       requests end after N checks; -1: never
//   cancel=no     a request in progress can't be released
//   ends=twice    a request ends with success, and to whoever asks after that with an error
#include <backend/backend_plugin.h>
#include <common/backend.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>

#ifndef MOVER_API_VERSION
#define MOVER_API_VERSION NIXL_PLUGIN_API_VERSION
#endif
#ifndef MOVER_NAME  // else one of NIXL's names, with that plugin's parameters and kinds of memory
#define MOVER_NAME "MOVER"
#define MOVER_PARAMETERS \
  {"polls", "0"}, { "cancel", "yes" }
#define MOVER_KINDS DRAM_SEG
#endif
#ifdef MOVER_NEEDS
extern "C" int MOVER_NEEDS();  // of a library
#endif

namespace {

constexpr size_t kMostText = 60000;

struct Known : nixlBackendMD {
  explicit Known(pid_t owner) : nixlBackendMD(false), pid(owner) {}
  pid_t pid;
};

struct Request : nixlBackendReqH {
  int checks_left = 0;
  bool over = false;
};

// One per engine, so that a test sees what is left.
std::atomic<int> known_alive{0};
std::atomic<int> asked_after_end{0};

class Mover final : public nixlBackendEngine {
 public:
  explicit Mover(const nixlBackendInitParams* init)
      : nixlBackendEngine(init),
        polls_(nixl::getBackendParamDefaulted(init->customParams, "polls", 0)),
        cancels_(nixl::getBackendParamDefaulted(init->customParams, "cancel", true)) {
    (void)getInitParam("fail", fail_);
    (void)getInitParam("throw", throw_);
    std::string ends;
    twice_ = getInitParam("ends", ends) == NIXL_SUCCESS && ends == "twice";
    maybe_throw("constructor");
    initErr = fail_ == "constructor";
    socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    name_ = "mover-" + std::to_string(getpid()) + "-" + std::to_string(socket_) + "-" + localAgent;
    const sockaddr_un address = address_of(name_);
    if (bind(socket_, reinterpret_cast<const sockaddr*>(&address), bytes_of(name_)) != 0) initErr = true;
  }
  ~Mover() override { close(socket_); }

  bool supportsRemote() const override {
    maybe_throw("supportsRemote");
    return true;
  }
  bool supportsLocal() const override { return true; }
  bool supportsNotif() const override { return fail_ != "supportsNotif"; }
  nixl_mem_list_t getSupportedMems() const override { return {MOVER_KINDS}; }

  nixl_status_t registerMem(const nixlBlobDesc& mem, const nixl_mem_t&, nixlBackendMD*& out) override {
    if (const auto status = step("registerMem"); status != NIXL_SUCCESS) return status;
    if (mem.metaInfo == "refuse") return NIXL_ERR_INVALID_PARAM;
    out = new Known(getpid());
    ++known_alive;
    return NIXL_SUCCESS;
  }
  nixl_status_t deregisterMem(nixlBackendMD* meta) override {
    delete meta;
    --known_alive;
    return step("deregisterMem");
  }
  nixl_status_t connect(const std::string&) override { return step("connect"); }
  nixl_status_t disconnect(const std::string& agent) override {
    peers_.erase(agent);
    return step("disconnect");
  }
  nixl_status_t unloadMD(nixlBackendMD* input) override {
    delete input;
    --known_alive;
    return NIXL_SUCCESS;
  }
  nixl_status_t getPublicData(const nixlBackendMD* meta, std::string& text) const override {
    text = std::to_string(static_cast<const Known*>(meta)->pid);
    return step("getPublicData");
  }
  nixl_status_t getConnInfo(std::string& text) const override {
    text = name_;
    return step("getConnInfo");
  }
  nixl_status_t loadRemoteConnInfo(const std::string& agent, const std::string& info) override {
    peers_[agent] = info;
    return step("loadRemoteConnInfo");
  }
  nixl_status_t loadRemoteMD(const nixlBlobDesc& input, const nixl_mem_t&, const std::string&,
                             nixlBackendMD*& output) override {
    if (const auto status = step("loadRemoteMD"); status != NIXL_SUCCESS) return status;
    output = new Known(std::atoi(input.metaInfo.c_str()));
    ++known_alive;
    return NIXL_SUCCESS;
  }
  nixl_status_t loadLocalMD(nixlBackendMD* input, nixlBackendMD*& output) override {
    if (const auto status = step("loadLocalMD"); status != NIXL_SUCCESS) return status;
    output = input;
    return NIXL_SUCCESS;
  }

  nixl_status_t prepXfer(const nixl_xfer_op_t&, const nixl_meta_dlist_t&, const nixl_meta_dlist_t&,
                         const std::string&, nixlBackendReqH*& handle,
                         const nixl_opt_b_args_t*) const override {
    if (const auto status = step("prepXfer"); status != NIXL_SUCCESS) return status;
    handle = new Request;
    return NIXL_SUCCESS;
  }
  nixl_status_t postXfer(const nixl_xfer_op_t& operation, const nixl_meta_dlist_t& local,
                         const nixl_meta_dlist_t& remote, const std::string& agent, nixlBackendReqH*& handle,
                         const nixl_opt_b_args_t* args) const override {
    if (const auto status = step("postXfer"); status != NIXL_SUCCESS) return status;
    for (int i = 0; i < local.descCount(); ++i) {
      const pid_t owner = static_cast<const Known*>(remote[static_cast<size_t>(i)].metadataP)->pid;
      if (!copy(operation, local[static_cast<size_t>(i)], remote[static_cast<size_t>(i)], owner))
        return NIXL_ERR_REMOTE_DISCONNECT;
    }
    if (args->hasNotif && genNotif(agent, args->notifMsg) != NIXL_SUCCESS) return NIXL_ERR_REMOTE_DISCONNECT;
    static_cast<Request*>(handle)->checks_left = polls_;
    static_cast<Request*>(handle)->over = polls_ == 0;
    return polls_ == 0 ? NIXL_SUCCESS : NIXL_IN_PROG;
  }
  nixl_status_t checkXfer(nixlBackendReqH* handle) const override {
    if (const auto status = step("checkXfer"); status != NIXL_SUCCESS) return status;
    auto& request = static_cast<Request&>(*handle);
    if (request.over) ++asked_after_end;
    if (request.over && twice_) return NIXL_ERR_BACKEND;
    if (request.checks_left > 0) --request.checks_left;
    request.over = request.checks_left == 0;
    return request.over ? NIXL_SUCCESS : NIXL_IN_PROG;
  }
  nixl_status_t releaseReqH(nixlBackendReqH* handle) const override {
    if (!cancels_ && static_cast<Request*>(handle)->checks_left != 0) return NIXL_ERR_BACKEND;
    delete handle;
    return step("releaseReqH");
  }

  nixl_status_t getNotifs(notif_list_t& list) override {
    if (const auto status = step("getNotifs"); status != NIXL_SUCCESS) return status;
    std::string text(kMostText, '\0');
    for (;;) {
      const ssize_t bytes = recv(socket_, text.data(), text.size(), MSG_DONTWAIT);
      if (bytes <= 0) return NIXL_SUCCESS;
      const std::string whole = text.substr(0, static_cast<size_t>(bytes));
      const size_t end = whole.find('\0');
      list.emplace_back(whole.substr(0, end), whole.substr(end + 1));
    }
  }
  nixl_status_t genNotif(const std::string& agent, const std::string& text) const override {
    if (const auto status = step("genNotif"); status != NIXL_SUCCESS) return status;
    const auto peer = peers_.find(agent);
    const std::string& to = agent == localAgent ? name_ : peer == peers_.end() ? text : peer->second;
    const sockaddr_un address = address_of(to);
    const std::string whole = localAgent + '\0' + text;
    const ssize_t sent = sendto(socket_, whole.data(), whole.size(), 0,
                                reinterpret_cast<const sockaddr*>(&address), bytes_of(to));
    return sent == static_cast<ssize_t>(whole.size()) ? NIXL_SUCCESS : NIXL_ERR_REMOTE_DISCONNECT;
  }
  nixl_status_t estimateXferCost(const nixl_xfer_op_t&, const nixl_meta_dlist_t&, const nixl_meta_dlist_t&,
                                 const std::string&, nixlBackendReqH* const&,
                                 std::chrono::microseconds& duration, std::chrono::microseconds& margin,
                                 nixl_cost_t& method, const nixl_opt_args_t*) const override {
    duration = std::chrono::microseconds{42};
    margin = std::chrono::microseconds{1};
    method = nixl_cost_t::ANALYTICAL_BACKEND;
    return NIXL_SUCCESS;
  }
  using nixlBackendEngine::prepMemView;
  nixl_status_t prepMemView(const nixl_meta_dlist_t& list, nixlMemViewH& view,
                            const nixl_opt_b_args_t*) const override {
    view = new size_t{static_cast<size_t>(list.descCount())};
    ++known_alive;
    return NIXL_SUCCESS;
  }
  void releaseMemView(nixlMemViewH view) const override {
    delete static_cast<size_t*>(view);
    --known_alive;
  }

 private:
  static sockaddr_un address_of(const std::string& name) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
    return address;
  }
  static socklen_t bytes_of(const std::string& name) {
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  void maybe_throw(const char* name) const {
    if (throw_ == name) throw std::runtime_error(std::string{"mover was asked to throw in "} + name);
  }
  nixl_status_t step(const char* name) const {
    maybe_throw(name);
    return fail_ == name ? NIXL_ERR_BACKEND : NIXL_SUCCESS;
  }
  static bool copy(nixl_xfer_op_t operation, const nixlMetaDesc& local, const nixlMetaDesc& remote,
                   pid_t owner) {
    void* const here = reinterpret_cast<void*>(local.addr);
    void* const there = reinterpret_cast<void*>(remote.addr);
    if (owner == getpid()) {
      std::memcpy(operation == NIXL_WRITE ? there : here, operation == NIXL_WRITE ? here : there, local.len);
      return true;
    }
    const iovec mine = {here, local.len};
    const iovec theirs = {there, remote.len};
    const ssize_t moved = operation == NIXL_WRITE ? process_vm_writev(owner, &mine, 1, &theirs, 1, 0)
                                                  : process_vm_readv(owner, &mine, 1, &theirs, 1, 0);
    return moved == static_cast<ssize_t>(local.len);
  }

  std::string fail_;
  std::string throw_;
  const int polls_;
  const bool cancels_;
  bool twice_ = false;
  int socket_ = -1;
  std::string name_;
  std::map<std::string, std::string> peers_;
};

nixlBackendPlugin* mover() {
  // Not by NIXL's template, which catches: this one lets the agent see what a constructor throws.
  static nixlBackendPlugin plugin = {MOVER_API_VERSION,
                                     [](const nixlBackendInitParams* init) -> nixlBackendEngine* {
                                       const auto fail = init->customParams->find("fail");
                                       if (fail != init->customParams->end() && fail->second == "create")
                                         return nullptr;
                                       return new Mover(init);
                                     },
                                     [](nixlBackendEngine* engine) { delete engine; },
                                     [] { return MOVER_NAME; },
                                     [] { return "1.0.0"; },
                                     [] { return nixl_b_params_t{MOVER_PARAMETERS}; },
                                     [] { return nixl_mem_list_t{MOVER_KINDS}; }};
#ifdef MOVER_NEEDS
  (void)MOVER_NEEDS();
#endif
  return &plugin;
}

}  // namespace

// How many of what the agent owns exist, over all engines of the process.
extern "C" NIXL_PLUGIN_EXPORT int mover_known_alive() { return known_alive.load(); }
extern "C" NIXL_PLUGIN_EXPORT int mover_asked_after_end() { return asked_after_end.load(); }

#ifdef MOVER_STATIC
nixlBackendPlugin* createStaticMOVERPlugin() { return mover(); }
#else
extern "C" NIXL_PLUGIN_EXPORT nixlBackendPlugin* nixl_plugin_init() { return mover(); }
extern "C" NIXL_PLUGIN_EXPORT void nixl_plugin_fini() {}
#endif
