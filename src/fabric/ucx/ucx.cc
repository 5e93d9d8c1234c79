#include "fabric/ucx/ucx.h"

#include "base/error.h"

#ifdef TOWLINE_HAVE_UCX

#include <sys/epoll.h>

#include <algorithm>
#include <deque>
#include <unordered_map>

#include "base/id.h"
#include "base/os/unique_fd.h"
#include "fabric/ucx/ucx_connection.h"

namespace towline::fabric {

UcxLibrary::UcxLibrary() {
  try {
    library_ = DynamicLibrary{"libucp.so.0"};
    services_ = DynamicLibrary{"libucs.so.0"};
  } catch (const core::Error& error) {
    fail(Status::kUnsupported, "UCX is not installed: {}", error.message());
  }
  library_.keep_loaded();
  services_.keep_loaded();
#define TOWLINE_UCX_LOOK_UP(function) function = library_.symbol<decltype(&::function)>(#function);
  TOWLINE_UCX_FUNCTIONS(TOWLINE_UCX_LOOK_UP)
#undef TOWLINE_UCX_LOOK_UP
  status_string_ = services_.symbol<decltype(status_string_)>("ucs_status_string");
  version_ = library_.symbol<const char* (*)()>("ucp_get_version_string")();
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  library_.symbol<void (*)(unsigned*, unsigned*, unsigned*)>("ucp_get_version")(&major, &minor, &release);
  if (major != 1 || minor < 13)
    fail(Status::kUnsupported, "UCX {} is installed; versions from 1.13 on, below 2, can be used", version_);
  // What crashes is the application's own affair, and UCX would print its own report of it.
  if (const auto leave_signals = services_.find_symbol<void (*)()>("ucs_debug_disable_signals"))
    leave_signals();
}

UcxLibrary& UcxLibrary::get() {
  static UcxLibrary* library = new UcxLibrary;
  return *library;
}

std::string UcxLibrary::error_text(ucs_status_t code) const {
  return fmt::format("{} ({})", status_string_(code), static_cast<int>(code));
}

Status status_of_ucx(ucs_status_t code) noexcept {
  switch (code) {
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_NO_DEVICE:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_REJECTED:
      return Status::kUnreachable;
    case UCS_ERR_TIMED_OUT:
    case UCS_ERR_ENDPOINT_TIMEOUT:
      return Status::kTimedOut;
    case UCS_ERR_CANCELED:
      return Status::kCancelled;
    case UCS_ERR_NO_MEMORY:
      return Status::kOutOfMemory;
    case UCS_ERR_INVALID_ADDR:
      return Status::kStale;
    default:
      return Status::kIo;
  }
}

namespace {

// Transports by which a process writes into another one through the kernel.
constexpr const char* kThroughKernel = "^cma,knem,xpmem";

std::string with_commas(std::string text) {
  std::replace(text.begin(), text.end(), '+', ',');
  return text;
}

class UcxDomain final : public Domain, private UcxOwner {
 public:
  explicit UcxDomain(const UcxOptions& options)
      : ucx_(UcxLibrary::get()), id_(Id::random()), tells_failures_(options.transports != "shm") {
    open_context(options);
    traits_.kind = "ucx:" + options.transports;
    traits_.name = "ucx " + options.transports;
    if (!options.devices.empty()) traits_.name += " " + options.devices;
    traits_.name += " (UCX " + ucx_.version() + ")";
    traits_.max_connections = 1024;
    traits_.slice_bytes = 1 << 20;
    traits_.window_bytes = 16 << 20;
    traits_.ordered = false;
    // An early failure names the transport that is not here.
    try {
      (void)UcxConnection{*this, context_, 0, tells_failures_}.address();
    } catch (...) {
      ucx_.ucp_cleanup(context_);
      throw;
    }
    wait_ = UniqueFd{epoll_create1(EPOLL_CLOEXEC)};
  }
  ~UcxDomain() override {
    connections_.clear();
    for (const auto& [number, registered] : registrations_) ucx_.ucp_mem_unmap(context_, registered.memory);
    ucx_.ucp_cleanup(context_);
  }

  const DomainTraits& traits() const noexcept override { return traits_; }

  std::vector<uint8_t> address() const override {
    std::vector<uint8_t> bytes(sizeof id_);
    std::copy_n(reinterpret_cast<const uint8_t*>(&id_), sizeof id_, bytes.begin());
    return bytes;
  }

  Registration register_memory(const MemoryToRegister& memory) override;
  void deregister_memory(const Registration& registration) noexcept override {
    const auto found = registrations_.find(registration.handle);
    if (found == registrations_.end()) return;
    ucx_.ucp_mem_unmap(context_, found->second.memory);
    registrations_.erase(found);
  }

  std::vector<uint8_t> open(uint32_t number) override {
    if (number >= connections_.size()) connections_.resize(number + 1);
    auto connection =
        std::make_unique<UcxConnection>(static_cast<UcxOwner&>(*this), context_, number, tells_failures_);
    auto address = connection->address();
    if (connection->event_fd() >= 0) {
      epoll_event event{};
      event.events = EPOLLIN;
      if (epoll_ctl(wait_.get(), EPOLL_CTL_ADD, connection->event_fd(), &event) != 0)
        fail_errno(errno, "UCX's descriptor can't be waited for");
    }
    connections_[number] = std::move(connection);
    return address;
  }
  void connect(uint32_t number, std::span<const uint8_t> other_end) override {
    connections_[number]->connect(other_end);
  }
  void stop(uint32_t number) noexcept override {
    UcxConnection& connection = *connections_[number];
    if (!connection.stopped() && connection.event_fd() >= 0)
      (void)epoll_ctl(wait_.get(), EPOLL_CTL_DEL, connection.event_fd(), nullptr);
    connection.stop();
  }
  void release(uint32_t number) noexcept override {
    connections_[number].reset();
    std::erase_if(told_, [&](const Completion& completion) { return completion.connection == number; });
  }

  std::size_t post(uint32_t number, const WorkRequest* requests, std::size_t count) noexcept override {
    return connections_[number]->post(requests, count);
  }
  std::size_t post_receives(uint32_t number, const ReceiveRequest* requests,
                            std::size_t count) noexcept override {
    return connections_[number]->post_receives(requests, count);
  }

  std::size_t poll(Completion* completions, std::size_t capacity) noexcept override {
    for (const auto& connection : connections_)
      if (connection != nullptr) connection->progress();
    const std::size_t count = std::min(capacity, told_.size());
    std::copy_n(told_.begin(), count, completions);
    told_.erase(told_.begin(), told_.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }

  int event_fd() const noexcept override { return wait_.get(); }
  bool arm() noexcept override {
    return told_.empty() && std::all_of(connections_.begin(), connections_.end(), [](const auto& connection) {
             return connection == nullptr || connection->arm();
           });
  }

 private:
  struct Registered {
    ucp_mem_h memory = nullptr;
    std::vector<uint8_t> blob;  // empty: not for peers
  };

  void tell(const Completion& completion) noexcept override { told_.push_back(completion); }
  const std::vector<uint8_t>* find_blob(uint64_t key) const noexcept override {
    const auto found = registrations_.find(key);
    return found == registrations_.end() || found->second.blob.empty() ? nullptr : &found->second.blob;
  }

  void open_context(const UcxOptions& options) {
    ucp_config_t* config = nullptr;
    check(ucx_.ucp_config_read(nullptr, nullptr, &config), "its configuration can't be read");
    std::string transports = with_commas(options.transports);
    if (transports == "auto") transports = kThroughKernel;
    if (transports == "shm") transports = "posix,sysv";
    ucs_status_t status = ucx_.ucp_config_modify(config, "TLS", transports.c_str());
    if (status == UCS_OK && !options.devices.empty())
      status = ucx_.ucp_config_modify(config, "NET_DEVICES", with_commas(options.devices).c_str());
    if (status == UCS_OK) {
      ucp_params_t parameters{};
      parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
      parameters.features = UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
      status = ucx_.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &parameters, config, &context_);
    }
    ucx_.ucp_config_release(config);
    if (status != UCS_OK)
      fail(Status::kNotFound, "UCX has no transport {}{}{} here: {}", options.transports,
           options.devices.empty() ? "" : " on ", options.devices, ucx_.error_text(status));
  }
  void check(ucs_status_t status, const char* what) const {
    if (status != UCS_OK) fail(Status::kIo, "UCX: {}: {}", what, ucx_.error_text(status));
  }

  UcxLibrary& ucx_;
  const Id id_;
  const bool tells_failures_;  // shared memory does not: the engine notices by its own means
  DomainTraits traits_;
  ucp_context_h context_ = nullptr;
  UniqueFd wait_;
  std::unordered_map<uint64_t, Registered> registrations_;  // by random numbers, which peers can't guess
  std::vector<std::unique_ptr<UcxConnection>> connections_;
  std::deque<Completion> told_;
};

Registration UcxDomain::register_memory(const MemoryToRegister& memory) {
  if (memory.address == nullptr || memory.bytes == 0)
    fail(Status::kInvalidArgument, "memory at {} of {} bytes can't be registered", memory.address,
         memory.bytes);
  if (memory.dmabuf_fd >= 0) fail(Status::kUnsupported, "ucx registers host memory only");
  ucp_mem_map_params_t parameters{};
  parameters.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  parameters.address = memory.address;
  parameters.length = memory.bytes;
  Registered registered;
  const ucs_status_t status = ucx_.ucp_mem_map(context_, &parameters, &registered.memory);
  if (status != UCS_OK)
    fail(Status::kIo, "UCX can't register {} bytes at {}: {}", memory.bytes, memory.address,
         ucx_.error_text(status));
  if (memory.remote_read || memory.remote_write) {
    void* blob = nullptr;
    std::size_t bytes = 0;
    const ucs_status_t packed = ucx_.ucp_rkey_pack(context_, registered.memory, &blob, &bytes);
    if (packed != UCS_OK) {
      ucx_.ucp_mem_unmap(context_, registered.memory);
      fail(Status::kIo, "UCX has no remote key: {}", ucx_.error_text(packed));
    }
    registered.blob.assign(static_cast<uint8_t*>(blob), static_cast<uint8_t*>(blob) + bytes);
    ucx_.ucp_rkey_buffer_release(blob);
  }
  const uint64_t number = Id::random().lo;
  Registration registration;
  registration.remote_key = registration.handle = number;
  registration.base = reinterpret_cast<uint64_t>(memory.address);
  registrations_[number] = std::move(registered);
  return registration;
}

}  // namespace

std::unique_ptr<Domain> make_ucx_domain(const UcxOptions& options) {
  return std::make_unique<UcxDomain>(options);
}

}  // namespace towline::fabric

#else

namespace towline::fabric {

std::unique_ptr<Domain> make_ucx_domain(const UcxOptions&) {
  fail(Status::kUnsupported, "this build has no UCX: its headers were absent");
}

}  // namespace towline::fabric

#endif  // TOWLINE_HAVE_UCX
