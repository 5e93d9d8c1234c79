// Plugins of the names GUSLI and INFINIA, for the tests: their parameters and kinds of memory are those of NIXL's plugins,
// and what is stored lies in the engine's memory. GUSLI's takes block devices that its `config_file` names, and memory
// that is registered for one of them; INFINIA's takes objects by their key. Further parameters make them fail, as mover_plugin.cc's
// do: fail=STEP, throw=STEP, polls=N, cancel=no, ends=twice; and full=N, so many bytes a device or object has room for.
#include <backend/backend_plugin.h>
#include <common/backend.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <sstream>
#include <stdexcept>
#include <vector>

#ifdef STORE_GUSLI
#define STORE_NAME "GUSLI"
constexpr nixl_mem_t kStored = BLK_SEG;
const nixl_mem_list_t kKinds = {BLK_SEG, DRAM_SEG};
const nixl_b_params_t kParameters = {
    {"client_name", ""}, {"max_num_simultaneous_requests", "256"}, {"config_file", ""}};
#else
#define STORE_NAME "INFINIA"
constexpr nixl_mem_t kStored = OBJ_SEG;
const nixl_mem_list_t kKinds = {DRAM_SEG, VRAM_SEG, OBJ_SEG};
const nixl_b_params_t kParameters = {};
#endif

namespace {

constexpr size_t kDeviceBytes = 1 << 20;

struct Known final : nixlBackendMD {
  Known() : nixlBackendMD(true) {}
  std::string key;
  nixl_mem_t kind = DRAM_SEG;
};

struct Request final : nixlBackendReqH {
  int checks_left = 0;
  bool over = false;
};

std::atomic<int> known_alive{0};
std::atomic<int> asked_after_end{0};

class Store final : public nixlBackendEngine {
 public:
  explicit Store(const nixlBackendInitParams* init)
      : nixlBackendEngine(init),
        polls_(nixl::getBackendParamDefaulted(init->customParams, "polls", 1)),
        cancels_(nixl::getBackendParamDefaulted(init->customParams, "cancel", true)),
        room_(nixl::getBackendParamDefaulted(init->customParams, "full", SIZE_MAX)) {
    (void)getInitParam("fail", fail_);
    (void)getInitParam("throw", throw_);
    std::string ends;
    twice_ = getInitParam("ends", ends) == NIXL_SUCCESS && ends == "twice";
    if (step("constructor") != NIXL_SUCCESS) initErr = true;
    if (nixl::getBackendParamDefaulted(init->customParams, "max_num_simultaneous_requests", 256U) == 0)
      throw std::runtime_error("max_num_simultaneous_requests is 0");
    std::string config;
    (void)getInitParam("config_file", config);
    std::istringstream lines(config);
    for (std::string line; std::getline(lines, line);)
      if (std::isdigit(static_cast<unsigned char>(line[0])) != 0)
        stored_[line.substr(0, line.find(' '))].resize(kDeviceBytes);
  }

  bool supportsRemote() const override { return false; }
  bool supportsLocal() const override { return true; }
  bool supportsNotif() const override { return false; }
  nixl_mem_list_t getSupportedMems() const override { return kKinds; }

  nixl_status_t registerMem(const nixlBlobDesc& memory, const nixl_mem_t& kind,
                            nixlBackendMD*& out) override {
    if (const auto status = step("registerMem"); status != NIXL_SUCCESS) return status;
    auto made = std::make_unique<Known>();
    made->kind = kind;
    made->key = kind == OBJ_SEG && !memory.metaInfo.empty() ? memory.metaInfo : std::to_string(memory.devId);
    if (kStored == BLK_SEG && !stored_.contains(made->key)) return NIXL_ERR_NOT_FOUND;
    out = made.release();
    ++known_alive;
    return NIXL_SUCCESS;
  }
  nixl_status_t deregisterMem(nixlBackendMD* meta) override {
    delete meta;
    --known_alive;
    return step("deregisterMem");
  }
  nixl_status_t connect(const std::string&) override { return step("connect"); }
  nixl_status_t disconnect(const std::string&) override { return NIXL_SUCCESS; }
  nixl_status_t unloadMD(nixlBackendMD*) override { return NIXL_SUCCESS; }
  nixl_status_t loadLocalMD(nixlBackendMD* input, nixlBackendMD*& output) override {
    if (const auto status = step("loadLocalMD"); status != NIXL_SUCCESS) return status;
    output = input;
    return NIXL_SUCCESS;
  }

  nixl_status_t prepXfer(const nixl_xfer_op_t&, const nixl_meta_dlist_t& local,
                         const nixl_meta_dlist_t& remote, const std::string&, nixlBackendReqH*& handle,
                         const nixl_opt_b_args_t*) const override {
    if (const auto status = step("prepXfer"); status != NIXL_SUCCESS) return status;
    if (local.getType() != DRAM_SEG || remote.getType() != kStored) return NIXL_ERR_INVALID_PARAM;
    handle = new Request;
    return NIXL_SUCCESS;
  }
  nixl_status_t postXfer(const nixl_xfer_op_t& operation, const nixl_meta_dlist_t& local,
                         const nixl_meta_dlist_t& remote, const std::string&, nixlBackendReqH*& handle,
                         const nixl_opt_b_args_t*) const override {
    if (const auto status = step("postXfer"); status != NIXL_SUCCESS) return status;
    static_cast<Request*>(handle)->checks_left = polls_;
    static_cast<Request*>(handle)->over = false;
    for (size_t i = 0; i < static_cast<size_t>(local.descCount()); ++i) {
      std::vector<char>& bytes = stored_[static_cast<const Known*>(remote[i].metadataP)->key];
      if (kStored == OBJ_SEG && operation == NIXL_WRITE)
        bytes.resize(std::max(bytes.size(), remote[i].addr + remote[i].len));
      if (remote[i].addr + local[i].len > std::min(bytes.size(), room_)) return NIXL_ERR_BACKEND;
      auto* const here = reinterpret_cast<char*>(local[i].addr);
      char* const there = bytes.data() + remote[i].addr;
      std::memcpy(operation == NIXL_WRITE ? there : here, operation == NIXL_WRITE ? here : there,
                  local[i].len);
    }
    return NIXL_IN_PROG;
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

 private:
  nixl_status_t step(const char* name) const {
    if (throw_ == name) throw std::runtime_error(std::string{"the store was asked to throw in "} + name);
    return fail_ == name ? NIXL_ERR_BACKEND : NIXL_SUCCESS;
  }

  std::string fail_;
  std::string throw_;
  const int polls_;
  const bool cancels_;
  const size_t room_;
  bool twice_ = false;
  mutable std::map<std::string, std::vector<char>> stored_;  // by device or key
};

}  // namespace

// As mover_plugin.cc has them.
extern "C" NIXL_PLUGIN_EXPORT int mover_known_alive() { return known_alive.load(); }
extern "C" NIXL_PLUGIN_EXPORT int mover_asked_after_end() { return asked_after_end.load(); }

extern "C" NIXL_PLUGIN_EXPORT nixlBackendPlugin* nixl_plugin_init() {
  return nixlBackendPluginCreator<Store>::create(NIXL_PLUGIN_API_VERSION, STORE_NAME, "0.1.0", kParameters,
                                                 kKinds);
}
extern "C" NIXL_PLUGIN_EXPORT void nixl_plugin_fini() {}
