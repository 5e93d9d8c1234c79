// A plugin of NIXL's interface that moves files by pread and pwrite when a request is asked about for the third time.
// fake_nixl_fail makes its steps fail.
#include <backend/backend_plugin.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
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

std::mutex failures_mutex;
std::map<std::string, int> failures;
std::atomic<int> alive{0};  // engines, metadata, requests
std::atomic<bool> held_up{false};
std::atomic<int> asked_after_end{0};  // requests that had told their end

bool fails(const char* what) {
  const std::lock_guard lock(failures_mutex);
  const auto found = failures.find(what);
  if (found == failures.end() || found->second == 0) return false;
  --found->second;
  return true;
}

struct Known : nixlBackendMD {
  Known() : nixlBackendMD(true) { ++alive; }
  ~Known() override { --alive; }
};
struct Request : nixlBackendReqH {
  Request() { ++alive; }
  ~Request() override { --alive; }
  int checks = 0;
  bool over = false;
  bool twice = false;  // it ends: first with success, then with an error, to whoever asks or releases it
  bool never = false;  // ends
  bool held = false;   // can't be released before its end
  bool write = false;
  const nixl_meta_dlist_t* memory = nullptr;
  const nixl_meta_dlist_t* files = nullptr;
};

class Fake final : public nixlBackendEngine {
 public:
  explicit Fake(const nixlBackendInitParams* init) : nixlBackendEngine(init) {
    if (fails("create_throws")) throw std::runtime_error("this engine never starts");
    initErr = fails("start");
    ++alive;
  }
  ~Fake() override { --alive; }

  bool supportsRemote() const override { return false; }
  bool supportsLocal() const override { return !fails("no_local"); }
  bool supportsNotif() const override { return false; }
  nixl_mem_list_t getSupportedMems() const override {
    return fails("no_files") ? nixl_mem_list_t{DRAM_SEG} : nixl_mem_list_t{DRAM_SEG, FILE_SEG};
  }
  nixl_status_t registerMem(const nixlBlobDesc&, const nixl_mem_t& kind, nixlBackendMD*& out) override {
    if (kind == FILE_SEG && fails("register")) return NIXL_ERR_NOT_SUPPORTED;
    out = kind == FILE_SEG ? new Known : nullptr;  // NIXL's plugin for files keeps none of memory either
    return NIXL_SUCCESS;
  }
  nixl_status_t deregisterMem(nixlBackendMD* meta) override {
    delete meta;
    return NIXL_SUCCESS;
  }
  nixl_status_t connect(const std::string&) override {
    return fails("connect") ? NIXL_ERR_BACKEND : NIXL_SUCCESS;
  }
  nixl_status_t disconnect(const std::string&) override { return NIXL_SUCCESS; }
  nixl_status_t unloadMD(nixlBackendMD* meta) override { return deregisterMem(meta); }
  nixl_status_t loadLocalMD(nixlBackendMD*, nixlBackendMD*& out) override {
    if (fails("local")) return NIXL_ERR_BACKEND;
    out = new Known;
    return NIXL_SUCCESS;
  }

  nixl_status_t prepXfer(const nixl_xfer_op_t&, const nixl_meta_dlist_t&, const nixl_meta_dlist_t&,
                         const std::string&, nixlBackendReqH*& handle,
                         const nixl_opt_b_args_t*) const override {
    if (fails("prepare")) return NIXL_ERR_INVALID_PARAM;
    handle = new Request;
    return NIXL_SUCCESS;
  }
  nixl_status_t postXfer(const nixl_xfer_op_t& operation, const nixl_meta_dlist_t& local,
                         const nixl_meta_dlist_t& remote, const std::string&, nixlBackendReqH*& handle,
                         const nixl_opt_b_args_t*) const override {
    if (fails("post")) return NIXL_ERR_BACKEND;
    auto& request = static_cast<Request&>(*handle);
    request.checks = fails("late") ? 200 : kChecks;
    request.never = fails("never");
    request.held = fails("held");
    request.write = operation == NIXL_WRITE;
    request.memory = &local;
    request.files = &remote;
    request.twice = fails("twice");
    if (request.twice && fails("at_once")) return end(request);
    return NIXL_IN_PROG;
  }
  nixl_status_t checkXfer(nixlBackendReqH* handle) const override {
    auto& request = static_cast<Request&>(*handle);
    if (request.over) {
      ++asked_after_end;
      return request.twice ? NIXL_ERR_BACKEND : NIXL_SUCCESS;
    }
    if (request.never || request.held || held_up || --request.checks > 0) return NIXL_IN_PROG;
    return end(request);
  }
  nixl_status_t releaseReqH(nixlBackendReqH* handle) const override {
    if (static_cast<Request*>(handle)->held) return NIXL_ERR_BACKEND;
    const bool twice = static_cast<Request*>(handle)->twice;
    delete handle;
    return twice ? NIXL_ERR_BACKEND : NIXL_SUCCESS;
  }

 private:
  static nixl_status_t end(Request& request) {
    request.over = true;
    if (fails("throw")) throw 1;
    if (fails("check")) return NIXL_ERR_BACKEND;
    for (size_t i = 0; i < static_cast<size_t>(request.memory->descCount()); ++i)
      if (!move(request.write, (*request.memory)[i], (*request.files)[i])) return NIXL_ERR_BACKEND;
    return NIXL_SUCCESS;
  }
  static bool move(bool write, const nixlMetaDesc& memory, const nixlMetaDesc& file) {
    auto* at = reinterpret_cast<char*>(memory.addr);
    const int fd = static_cast<int>(file.devId);
    for (size_t done = 0; done < memory.len;) {
      const auto offset = static_cast<off_t>(file.addr + done);
      const ssize_t moved = write ? ::pwrite(fd, at + done, memory.len - done, offset)
                                  : ::pread(fd, at + done, memory.len - done, offset);
      if (moved < 0) return false;
      if (moved == 0) return true;  // the file's end counts as success, as it does with NIXL's own
      done += static_cast<size_t>(moved);
    }
    return true;
  }
};

}  // namespace

FAKE_API void fake_nixl_fail(const char* what, int times) {
  const std::lock_guard lock(failures_mutex);
  failures[what] = times;
}
FAKE_API void fake_nixl_limit(size_t) {}  // engines move all of a request or fail
// No request ends meanwhile.
FAKE_API void fake_nixl_hold(bool hold) { held_up = hold; }
FAKE_API int fake_nixl_alive() { return alive.load(); }
FAKE_API int fake_nixl_asked_after_end() { return asked_after_end.load(); }

FAKE_API nixlBackendPlugin* nixl_plugin_init() {
  static nixlBackendPlugin plugin = {};
  if (fails("init")) return nullptr;
  if (fails("init_throws")) throw std::runtime_error("this plugin never starts");
  plugin = {fails("version") ? 0 : NIXL_PLUGIN_API_VERSION,
            [](const nixlBackendInitParams* init) -> nixlBackendEngine* {
              return fails("create") ? nullptr : new Fake(init);
            },
            [](nixlBackendEngine* engine) { delete engine; },
            [] { return "FAKE"; },
            [] { return "1.0.0"; },
            nullptr,
            nullptr};
  return &plugin;
}
