#include "fabric/ucx/ucx.h"

#include "base/error.h"

#ifdef TOWLINE_HAVE_UCX

#include <sys/epoll.h>

#include <algorithm>
#include <deque>
#include <initializer_list>
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
  unsigned release = 0;
  library_.symbol<void (*)(unsigned*, unsigned*, unsigned*)>("ucp_get_version")(&major, &minor_, &release);
  if (major != 1 || minor_ < 13)
    fail(Status::kUnsupported, "UCX {} is installed; versions from 1.13 on, below 2, can be used", version_);
  // Crashes are the application's own affair. UCX would print its own report of them.
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

// For UCX's shared memory: a message of kUcxChunkBytes and its header go in one segment. In UCX's own ones of 8 KiB it would be
// taken apart, put together again by a copy, and copied to its place. There are fewer of them, so that a connection takes little
// more memory than with those: the queue has half of UCX 1.22's messages, which is enough for pages of 4 KiB.
constexpr std::pair<const char*, const char*> kSharedMemory[] = {
    {"MM_SEG_SIZE", "36k"}, {"MM_RX_BUFS_GROW", "112"}, {"MM_FIFO_SIZE", "128"}};

// Where tcp may be among them: a message of kUcxChunkBytes is sent from where it lies. UCX 1.22 would copy it into segments of 8 KiB, a system call
// each, and put it together again: a third of the speed.
constexpr std::pair<const char*, const char*> kTcp[] = {{"ZCOPY_THRESH", "8k"}};

// For tcp alone: a message of kUcxLargeChunkBytes and its headers go into one buffer of the receiver, and so with one system
// call. UCX's own buffers have 64 KiB. It makes 8 of them at a time for each connection, which uses one or two.
constexpr std::pair<const char*, const char*> kLargeTcp[] = {{"RX_SEG_SIZE", "1028k"}, {"RX_BUFS_GROW", "2"}};
constexpr unsigned kPrefixFrom = 17;  // the minor version from which on their names begin with TCP_

// UCX writes a message that is larger than the receiver's buffer past its end, so this must be sure of the buffer's size.
bool may_take_large(const UcxOptions& options) {
  return options.transports == "tcp" && options.variables.find("RX_SEG_SIZE") == std::string::npos;
}

// The value for UCX_TLS. UCX's own names for shared memory stand for those transports too.
std::string transports_of(const std::string& wanted) {
  if (wanted == "auto") return kThroughKernel;
  if (wanted.starts_with('^')) return with_commas(wanted) + "," + (kThroughKernel + 1);
  std::string result;
  for (std::size_t at = 0; at <= wanted.size();) {
    const std::size_t end = std::min(wanted.find_first_of("+,", at), wanted.size());
    const std::string one = wanted.substr(at, end - at);
    const bool shared = one == "shm" || one == "sm" || one == "mm";
    if (!one.empty()) result += (result.empty() ? "" : ",") + (shared ? std::string{"posix,sysv"} : one);
    at = end + 1;
  }
  return result;
}

// Whether UCX may open one of these. A list that begins with '^' names those that it may not.
bool may_use(const std::string& transports, std::initializer_list<const char*> wanted) {
  const bool excluded = transports.starts_with('^');
  const std::string list = "," + with_commas(transports.substr(excluded ? 1 : 0)) + ",";
  return std::any_of(wanted.begin(), wanted.end(), [&](const char* one) {
    return (list.find("," + std::string{one} + ",") != std::string::npos) != excluded;
  });
}

// Whether none of these transports has operations on remote memory of its own.
bool in_software(const std::string& transports) {
  if (transports == "auto" || transports.starts_with('^')) return true;
  for (std::size_t at = 0; at <= transports.size();) {
    const std::size_t end = std::min(transports.find_first_of("+,", at), transports.size());
    const std::string one = transports.substr(at, end - at);
    constexpr const char* kSoftware[] = {"", "tcp", "shm", "sm", "mm", "posix", "sysv", "self"};
    if (std::none_of(std::begin(kSoftware), std::end(kSoftware),
                     [&](const char* known) { return one == known; }))
      return false;
    at = end + 1;
  }
  return true;
}

class UcxDomain final : public Domain, private UcxOwner {
 public:
  explicit UcxDomain(const UcxOptions& options)
      : ucx_(UcxLibrary::get()),
        id_(Id::random()),
        connection_{.tells_failures = options.transports != "shm",
                    .by_messages = in_software(options.transports)} {
    open_context(options);
    traits_.kind = "ucx:" + options.transports;
    traits_.name = "ucx " + options.transports;
    if (!options.devices.empty()) traits_.name += " " + options.devices;
    traits_.name += " (UCX " + ucx_.version() + ")";
    traits_.max_connections = 1024;
    traits_.slice_bytes = 1 << 20;
    traits_.window_bytes = 16 << 20;
    traits_.ordered = false;
    traits_.breaks_for_memory = true;
    // An early failure names the transport that is not here.
    try {
      (void)UcxConnection{*this, context_, 0, connection_}.address();
    } catch (...) {
      ucx_.ucp_cleanup(context_);
      throw;
    }
    wait_ = UniqueFd{epoll_create1(EPOLL_CLOEXEC)};
  }
  ~UcxDomain() override {
    connections_.clear();
    for (const auto& [number, registered] : registrations_)
      if (registered.memory != nullptr) ucx_.ucp_mem_unmap(context_, registered.memory);
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
    // Connections that still send from it are closed, or a peer would read from freed memory.
    for (const auto& connection : connections_) {
      if (connection == nullptr || !connection->serves(registration.handle)) continue;
      connection->down(Status::kStale);
      stop_one(*connection);
    }
    if (found->second.memory != nullptr) ucx_.ucp_mem_unmap(context_, found->second.memory);
    registrations_.erase(found);
  }

  std::vector<uint8_t> open(uint32_t number, ConnectionEnd) override {
    if (number >= connections_.size()) connections_.resize(number + 1);
    auto connection =
        std::make_unique<UcxConnection>(static_cast<UcxOwner&>(*this), context_, number, connection_);
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
  void stop(uint32_t number) noexcept override { stop_one(*connections_[number]); }
  void stop_one(UcxConnection& connection) noexcept {
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
    if (lost_ && capacity != 0) {  // nobody can say any more what is complete
      lost_ = false;
      told_.clear();
      completions[0] = {0, 0, 0, 0, Status::kOutOfMemory, CompletionKind::kDomainDown};
      return 1;
    }
    const std::size_t count = std::min(capacity, told_.size());
    std::copy_n(told_.begin(), count, completions);
    told_.erase(told_.begin(), told_.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }

  bool recover() noexcept override { return true; }

  int event_fd() const noexcept override { return wait_.get(); }
  bool arm() noexcept override {
    return !lost_ && told_.empty() &&
           std::all_of(connections_.begin(), connections_.end(),
                       [](const auto& connection) { return connection == nullptr || connection->arm(); });
  }

 private:
  void tell(const Completion& completion) noexcept override try {
    told_.push_back(completion);
  } catch (const std::bad_alloc&) {
    lost_ = true;
  }
  const UcxRegistered* find(uint64_t key) const noexcept override {
    const auto found = registrations_.find(key);
    return found == registrations_.end() ? nullptr : &found->second;
  }

  void open_context(const UcxOptions& options) {
    ucp_config_t* config = nullptr;
    check(ucx_.ucp_config_read(nullptr, nullptr, &config), "its configuration can't be read");
    ucs_status_t status = ucx_.ucp_config_modify(config, "TLS", transports_of(options.transports).c_str());
    if (status == UCS_OK && !options.devices.empty())
      status = ucx_.ucp_config_modify(config, "NET_DEVICES", with_commas(options.devices).c_str());
    if (connection_.by_messages) {
      const auto set = [&](const auto& variables, const std::string& prefix = {}) {
        bool taken = true;
        for (const auto& [name, value] : variables)
          taken &= ucx_.ucp_config_modify(config, (prefix + name).c_str(), value) == UCS_OK;
        return taken;
      };
      // UCX warns of settings for transports that it does not open.
      if (may_use(options.transports, {"auto", "shm", "sm", "mm", "posix", "sysv"})) (void)set(kSharedMemory);
      if (may_use(options.transports, {"auto", "tcp"})) (void)set(kTcp);
      if (may_take_large(options))
        connection_.takes_large = set(kLargeTcp, ucx_.minor() < kPrefixFrom ? "" : "TCP_");
    }
    if (const std::string wrong = set_variables(config, options.variables); !wrong.empty()) {
      ucx_.ucp_config_release(config);
      fail(Status::kInvalidArgument, "UCX does not take \"{}\"; write NAME=VALUE, without UCX_", wrong);
    }
    if (status == UCS_OK) {
      ucp_params_t parameters{};
      parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
      // Without RMA, UCX does not carry out what a peer asks for by its own means.
      parameters.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
      if (!connection_.by_messages) parameters.features |= UCP_FEATURE_RMA;
      status = ucx_.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &parameters, config, &context_);
    }
    ucx_.ucp_config_release(config);
    if (status != UCS_OK)
      fail(Status::kNotFound, "UCX has no transport {}{}{} here: {}", options.transports,
           options.devices.empty() ? "" : " on ", options.devices, ucx_.error_text(status));
  }
  void map(const MemoryToRegister& memory, UcxRegistered& registered);
  // Returns the one that UCX does not take; empty: it took all.
  std::string set_variables(ucp_config_t* config, std::string_view list) {
    while (!list.empty()) {
      const std::string one{list.substr(0, list.find('+'))};
      list.remove_prefix(std::min(one.size() + 1, list.size()));
      const auto equal = one.find('=');
      if (equal == std::string::npos ||
          ucx_.ucp_config_modify(config, one.substr(0, equal).c_str(), one.c_str() + equal + 1) != UCS_OK)
        return one;
    }
    return {};
  }
  void check(ucs_status_t status, const char* what) const {
    if (status != UCS_OK) fail(Status::kIo, "UCX: {}: {}", what, ucx_.error_text(status));
  }

  UcxLibrary& ucx_;
  const Id id_;
  UcxConnection::Options connection_;  // shared memory tells no failures: the engine notices by its own means
  DomainTraits traits_;
  ucp_context_h context_ = nullptr;
  UniqueFd wait_;
  std::unordered_map<uint64_t, UcxRegistered> registrations_;  // by random numbers, which peers can't guess
  std::vector<std::unique_ptr<UcxConnection>> connections_;
  std::deque<Completion> told_;
  bool lost_ = false;  // a completion, for want of memory
};

Registration UcxDomain::register_memory(const MemoryToRegister& memory) {
  if (memory.address == nullptr || memory.bytes == 0)
    fail(Status::kInvalidArgument, "memory at {} of {} bytes can't be registered", memory.address,
         memory.bytes);
  if (memory.dmabuf_fd >= 0) fail(Status::kUnsupported, "ucx registers host memory only");
  UcxRegistered registered;
  registered.address = reinterpret_cast<uint64_t>(memory.address);
  registered.bytes = memory.bytes;
  registered.readable = memory.remote_read;
  registered.writable = memory.remote_write;
  if (!connection_.by_messages) map(memory, registered);
  const uint64_t number = Id::random().lo;
  Registration registration;
  registration.remote_key = registration.handle = number;
  registration.base = reinterpret_cast<uint64_t>(memory.address);
  registrations_[number] = std::move(registered);
  return registration;
}

// With UCX.
void UcxDomain::map(const MemoryToRegister& memory, UcxRegistered& registered) {
  ucp_mem_map_params_t parameters{};
  parameters.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  parameters.address = memory.address;
  parameters.length = memory.bytes;
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
