// Each connection is an endpoint of its own with its own completion queue and a table of one address. So closing
// an endpoint ends exactly one connection, as it does with a queue pair, and leaves no stale completions.
#include "fabric/ofi/ofi.h"

#include "base/error.h"

#ifdef TOWLINE_HAVE_LIBFABRIC

#include <sys/epoll.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "base/clock.h"
#include "base/log.h"
#include "base/os/unique_fd.h"
#include "base/short_text.h"
#include "fabric/ofi/ofi_library.h"
#include "fabric/ofi/ofi_memory.h"
#include "fabric/topology.h"

namespace towline::fabric {

OfiLibrary::OfiLibrary() {
  try {
    library_ = DynamicLibrary{"libfabric.so.1"};
  } catch (const core::Error& error) {
    fail(Status::kUnsupported, "libfabric is not installed: {}", error.message());
  }
  library_.keep_loaded();
  getinfo_ = library_.symbol<decltype(&fi_getinfo)>("fi_getinfo");
  freeinfo_ = library_.symbol<decltype(&fi_freeinfo)>("fi_freeinfo");
  dupinfo_ = library_.symbol<decltype(&fi_dupinfo)>("fi_dupinfo");
  fabric_ = library_.symbol<decltype(&fi_fabric)>("fi_fabric");
  strerror_ = library_.symbol<decltype(&fi_strerror)>("fi_strerror");
  runtime_ = library_.symbol<decltype(&fi_version)>("fi_version")();
  version_ = std::min<uint32_t>(runtime_, FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION));
}

OfiLibrary& OfiLibrary::get() {
  static OfiLibrary* library = new OfiLibrary;
  return *library;
}

std::string OfiLibrary::error_text(int64_t code) const {
  return fmt::format("{} ({})", strerror_(static_cast<int>(code < 0 ? -code : code)), code);
}

namespace {

struct OfiInfoDeleter {
  void operator()(fi_info* info) const noexcept { OfiLibrary::get().free_info(info); }
};
using OfiInfo = std::unique_ptr<fi_info, OfiInfoDeleter>;

template <class T>
struct FidDeleter {
  void operator()(T* object) const noexcept { fi_close(&object->fid); }
};
template <class T>
using Fid = std::unique_ptr<T, FidDeleter<T>>;

void check_ofi(int64_t result, const char* call, const std::string& name) {
  if (result < 0) fail(Status::kIo, "{}: {}: {}", name, call, OfiLibrary::get().error_text(result));
}

// All devices of the provider that have what the engine needs: writes, reads and sends, reliable, with
// completions that mean delivery.
OfiInfo find_devices(const OfiOptions& options) {
  OfiLibrary& library = OfiLibrary::get();
  OfiInfo hints{library.empty_info()};
  if (hints == nullptr) fail(Status::kOutOfMemory, "no memory for libfabric's hints");
  hints->caps = FI_MSG | FI_RMA | FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
  hints->fabric_attr->prov_name = strdup(options.provider.c_str());
  fi_info* found = nullptr;
  const char* node = options.address.empty() ? nullptr : options.address.c_str();
  const uint64_t flags = node != nullptr ? FI_SOURCE : 0;
  int result = -FI_ENODATA;
  // Devices that move GPU memory do so where they are asked to.
  if (ofi_moves_gpu_memory(options.provider)) {
    hints->caps |= FI_HMEM;
    hints->domain_attr->mr_mode |= FI_MR_HMEM;
    result = library.get_info(node, flags, hints.get(), &found);
    hints->caps &= ~uint64_t{FI_HMEM};
    hints->domain_attr->mr_mode &= ~FI_MR_HMEM;
  }
  if (result != 0) result = library.get_info(node, flags, hints.get(), &found);
  if (result != 0)
    fail(Status::kNotFound, "libfabric's provider {} has no device with reads, writes and delivery: {}",
         options.provider, library.error_text(result));
  OfiInfo all{found};
  if (options.domain.empty()) return all;
  // Layered providers do not look at the name in hints.
  std::string names;
  for (const fi_info* info = all.get(); info != nullptr; info = info->next) {
    if (options.domain == info->domain_attr->name) return OfiInfo{library.copy_info(info)};
    if (names.find(info->domain_attr->name) == std::string::npos)
      names += fmt::format("{}{}", names.empty() ? "" : ", ", info->domain_attr->name);
  }
  fail(Status::kNotFound, "libfabric's provider {} has no device {}, only {}", options.provider,
       options.domain, names);
}

uint64_t bandwidth_of(const fi_info& info) noexcept {
  return info.nic != nullptr && info.nic->link_attr != nullptr ? info.nic->link_attr->speed / 8 : 0;
}

Status ofi_status_of(int error) noexcept {
  switch (error) {
    case FI_EACCES:
    case FI_EPERM:
      return Status::kPermissionDenied;
    case FI_ENOKEY:
    case FI_EKEYREJECTED:
      return Status::kStale;
    case FI_ECANCELED:
      return Status::kCancelled;
    case FI_ETIMEDOUT:
      return Status::kTimedOut;
    case FI_ECONNREFUSED:
    case FI_EHOSTUNREACH:
    case FI_ENETUNREACH:
      return Status::kUnreachable;
    default:
      return Status::kIo;
  }
}

struct OfiConnection;

// The context given to libfabric, which keeps it until the operation has completed.
struct OfiOperation {
  fi_context2 context;  // first: libfabric knows the operation by it
  uint64_t cookie;
  OfiOperation* next;
  bool receive;
};

struct OfiConnection {
  Fid<fid_cq> queue;
  Fid<fid_av> table;
  Fid<fid_ep> endpoint;
  fi_addr_t peer = FI_ADDR_UNSPEC;
  std::vector<OfiOperation> operations;
  OfiOperation* free = nullptr;
  bool open = false;
  bool failed = false;
  bool failure_told = false;
  Status why = Status::kIo;

  OfiOperation* take() noexcept {
    OfiOperation* operation = free;
    if (operation != nullptr) free = operation->next;
    return operation;
  }
  void give(OfiOperation* operation) noexcept {
    operation->next = free;
    free = operation;
  }
};

class OfiDomain final : public Domain {
 public:
  explicit OfiDomain(const OfiOptions& options) : info_(find_devices(options)) {
    OfiLibrary& library = OfiLibrary::get();
    traits_.kind = "ofi:" + options.provider;
    traits_.name = fmt::format("ofi {} {}", options.provider, info_->domain_attr->name);
    const std::string domain_name = info_->domain_attr->name;
    if (options.provider == "efa") traits_.device = domain_name.substr(0, domain_name.find('-'));
    if (!traits_.device.empty()) traits_.numa_node = numa_node_of_device(traits_.device);
    fid_fabric* fabric = nullptr;
    check_ofi(library.open_fabric(info_->fabric_attr, &fabric), "fi_fabric", traits_.name);
    fabric_.reset(fabric);
    fid_domain* domain = nullptr;
    check_ofi(fi_domain(fabric, info_.get(), &domain, nullptr), "fi_domain", traits_.name);
    domain_.reset(domain);
    traits_.send_depth = static_cast<uint32_t>(std::clamp<std::size_t>(info_->tx_attr->size, 8, 256));
    traits_.receive_depth = static_cast<uint32_t>(std::clamp<std::size_t>(info_->rx_attr->size, 8, 128));
    traits_.completion_depth = 1 << 16;  // each connection has a queue of its own
    traits_.max_connections = 256;
    traits_.slice_bytes = std::min<uint64_t>(1 << 20, info_->ep_attr->max_msg_size);
    // Over shm the owner copies everything that is queued in one go, and the sender waits meanwhile: the more is
    // queued, the fewer times the two processes wait for each other. send_depth bounds it there.
    traits_.window_bytes = options.provider == "shm" ? 64 << 20 : 8 << 20;
    traits_.bandwidth_bytes_per_s = bandwidth_of(*info_);
    traits_.ordered = false;
    traits_.completes_in_order = false;
    // Within a process it uses the peer's own mapping, which goes with the peer.
    traits_.other_processes_only = options.provider == "shm";
    connections_.resize(traits_.max_connections);
    open_.reserve(traits_.max_connections);
    poller_ = UniqueFd{epoll_create1(EPOLL_CLOEXEC)};
  }

  const DomainTraits& traits() const noexcept override { return traits_; }

  // Endpoints are told when a connection is made; there is nothing to know before.
  std::vector<uint8_t> address() const override { return {}; }

  Registration register_memory(const MemoryToRegister& memory) override {
    fid_mr* const region = ofi_register(*domain_, *info_, OfiLibrary::get().runtime(), memory, traits_.name);
    Registration registration;
    registration.local_key = reinterpret_cast<uint64_t>(fi_mr_desc(region));
    registration.remote_key = fi_mr_key(region);
    const bool by_address = (info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
    registration.base = by_address ? reinterpret_cast<uint64_t>(memory.address) : 0;
    registration.handle = reinterpret_cast<uint64_t>(region);
    return registration;
  }
  void deregister_memory(const Registration& registration) noexcept override {
    if (registration.handle != 0) fi_close(&reinterpret_cast<fid_mr*>(registration.handle)->fid);
  }

  std::vector<uint8_t> open(uint32_t number, ConnectionEnd) override {
    OfiConnection& connection = connections_.at(number);
    if (connection.open) fail(Status::kAlreadyExists, "{}: connection {} is open", traits_.name, number);
    OfiConnection made;
    made.operations.resize(std::size_t{traits_.send_depth} + traits_.receive_depth);
    for (OfiOperation& operation : made.operations) made.give(&operation);
    open_queue(made);
    fi_av_attr table{};
    table.type = FI_AV_TABLE;
    table.count = 1;
    fid_av* av = nullptr;
    check_ofi(fi_av_open(domain_.get(), &table, &av, nullptr), "fi_av_open", traits_.name);
    made.table.reset(av);
    fid_ep* endpoint = nullptr;
    check_ofi(fi_endpoint(domain_.get(), info_.get(), &endpoint, nullptr), "fi_endpoint", traits_.name);
    made.endpoint.reset(endpoint);
    check_ofi(fi_ep_bind(endpoint, &av->fid, 0), "fi_ep_bind", traits_.name);
    check_ofi(fi_ep_bind(endpoint, &made.queue->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind", traits_.name);
    check_ofi(fi_enable(endpoint), "fi_enable", traits_.name);
    std::vector<uint8_t> name(kMaxEndpointBytes);
    std::size_t bytes = name.size();
    check_ofi(fi_getname(&endpoint->fid, name.data(), &bytes), "fi_getname", traits_.name);
    name.resize(bytes);
    made.open = true;
    connection = std::move(made);
    watch(connection, number);
    open_.push_back(number);
    return name;
  }

  void connect(uint32_t number, std::span<const uint8_t> other_end) override {
    OfiConnection& connection = connections_.at(number);
    // Providers read an address of the length that theirs have.
    std::vector<uint8_t> name(kMaxEndpointBytes);
    if (other_end.empty() || other_end.size() >= name.size())
      fail(Status::kProtocol, "{}: an address of {} bytes", traits_.name, other_end.size());
    std::copy(other_end.begin(), other_end.end(), name.begin());
    if (fi_av_insert(connection.table.get(), name.data(), 1, &connection.peer, 0, nullptr) != 1)
      fail(Status::kUnreachable, "{}: the peer's address is refused", traits_.name);
  }

  void stop(uint32_t number) noexcept override {
    OfiConnection& connection = connections_[number];
    connection.endpoint.reset();
    connection.failed = connection.failure_told = true;
  }

  void release(uint32_t number) noexcept override {
    OfiConnection& connection = connections_[number];
    connection.endpoint.reset();
    connection = OfiConnection{};
    std::erase(open_, number);
  }

  std::size_t post(uint32_t number, const WorkRequest* requests, std::size_t count) noexcept override {
    OfiConnection& connection = connections_[number];
    if (!connection.open || connection.failed) return 0;
    for (std::size_t i = 0; i < count; ++i) {
      OfiOperation* operation = connection.take();
      if (operation == nullptr) return i;
      operation->cookie = requests[i].cookie;
      operation->receive = false;
      const int64_t result = start(connection, requests[i], operation);
      if (result == 0) continue;
      connection.give(operation);
      if (result != -FI_EAGAIN) fail_connection(connection, static_cast<int>(-result));
      return i;
    }
    return count;
  }

  std::size_t post_receives(uint32_t number, const ReceiveRequest* requests,
                            std::size_t count) noexcept override {
    OfiConnection& connection = connections_[number];
    if (!connection.open || connection.failed) return 0;
    for (std::size_t i = 0; i < count; ++i) {
      OfiOperation* operation = connection.take();
      if (operation == nullptr) return i;
      operation->cookie = requests[i].cookie;
      operation->receive = true;
      int64_t result = -FI_EAGAIN;
      for (int tries = 0; tries < 1000 && result == -FI_EAGAIN; ++tries)
        result = fi_recv(connection.endpoint.get(), reinterpret_cast<void*>(requests[i].address),
                         requests[i].length, reinterpret_cast<void*>(requests[i].local_key), FI_ADDR_UNSPEC,
                         operation);
      if (result == 0) continue;
      connection.give(operation);
      fail_connection(connection, static_cast<int>(-result));
      return i;
    }
    return count;
  }

  // Every connection gets its turn, so that a busy one does not starve the others.
  std::size_t poll(Completion* completions, std::size_t capacity) noexcept override {
    std::size_t count = 0;
    const std::size_t connections = open_.size();
    for (std::size_t i = 0; i < connections && count < capacity; ++i) {
      const uint32_t number = open_[(turn_ + i) % connections];
      count += poll_one(number, completions + count, capacity - count);
    }
    ++turn_;
    return count;
  }

  int event_fd() const noexcept override { return waits_ ? poller_.get() : -1; }

  bool arm() noexcept override {
    if (!waits_) return false;
    for (const uint32_t number : open_) {
      if (connections_[number].failed) continue;
      fid* queue = &connections_[number].queue->fid;
      if (fi_trywait(fabric_.get(), &queue, 1) != 0) return false;
    }
    return true;
  }

 private:
  // With a descriptor to wait on if the provider has one.
  void open_queue(OfiConnection& connection) {
    fi_cq_attr attributes{};
    attributes.size = connection.operations.size();
    attributes.format = FI_CQ_FORMAT_MSG;
    attributes.wait_obj = waits_ ? FI_WAIT_FD : FI_WAIT_NONE;
    fid_cq* queue = nullptr;
    int result = fi_cq_open(domain_.get(), &attributes, &queue, nullptr);
    if (result != 0 && waits_) {
      waits_ = false;
      attributes.wait_obj = FI_WAIT_NONE;
      result = fi_cq_open(domain_.get(), &attributes, &queue, nullptr);
    }
    check_ofi(result, "fi_cq_open", traits_.name);
    connection.queue.reset(queue);
  }

  void watch(OfiConnection& connection, uint32_t number) noexcept {
    int fd = -1;
    if (!waits_ || fi_control(&connection.queue->fid, FI_GETWAIT, &fd) != 0 || fd < 0) {
      waits_ = false;
      return;
    }
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = number;
    if (epoll_ctl(poller_.get(), EPOLL_CTL_ADD, fd, &event) != 0) waits_ = false;
  }

  int64_t start(OfiConnection& connection, const WorkRequest& request, OfiOperation* operation) noexcept {
    auto* local = reinterpret_cast<void*>(request.local);
    auto* key = reinterpret_cast<void*>(request.local_key);
    fid_ep* endpoint = connection.endpoint.get();
    switch (request.kind) {
      case RequestKind::kWrite:
        return fi_write(endpoint, local, request.length, key, connection.peer, request.remote,
                        request.remote_key, operation);
      case RequestKind::kRead:
        return fi_read(endpoint, local, request.length, key, connection.peer, request.remote,
                       request.remote_key, operation);
      case RequestKind::kSend:
        return fi_send(endpoint, local, request.length, key, connection.peer, operation);
      case RequestKind::kWriteImmediate:
        break;  // immediate_bits is 0
    }
    return -FI_ENOSYS;
  }

  void fail_connection(OfiConnection& connection, int error) noexcept {
    if (connection.failed) return;
    connection.failed = true;
    connection.why = ofi_status_of(error);
    tell(error, "");
  }

  // Connections end rarely, so this is no data path.
  void tell(int error, const char* provider_text) noexcept {
    if (error == FI_ECANCELED) return;
    TOWLINE_LOG_EVERY(kInfo, kSecondNs, "fabric: {}: a connection failed: {} ({}){}{}", traits_.name,
                      OfiLibrary::get().plain_error_text(error), error, *provider_text == 0 ? "" : ": ",
                      provider_text);
  }

  std::size_t poll_one(uint32_t number, Completion* completions, std::size_t capacity) noexcept {
    constexpr std::size_t kBatch = 64;
    OfiConnection& connection = connections_[number];
    fi_cq_msg_entry entries[kBatch];
    std::size_t count = 0;
    if (connection.failed && !connection.failure_told) {
      connection.failure_told = true;
      completions[count++] = {0, 0, number, 0, connection.why, CompletionKind::kConnectionDown};
      if (count == capacity) return count;
    }
    const ssize_t read = fi_cq_read(connection.queue.get(), entries, std::min(kBatch, capacity - count));
    if (read == -FI_EAVAIL) {
      count += poll_error(number, connection, completions + count);
    } else if (read < 0 && read != -FI_EAGAIN) {
      fail_connection(connection, static_cast<int>(-read));
    }
    for (ssize_t i = 0; i < read; ++i) {
      auto* operation = static_cast<OfiOperation*>(entries[i].op_context);
      if (operation == nullptr) continue;
      completions[count++] = {operation->cookie,
                              0,
                              number,
                              static_cast<uint32_t>(entries[i].len),
                              Status::kOk,
                              operation->receive ? CompletionKind::kReceive : CompletionKind::kRequest};
      connection.give(operation);
    }
    return count;
  }

  std::size_t poll_error(uint32_t number, OfiConnection& connection, Completion* completion) noexcept {
    fi_cq_err_entry entry{};
    if (fi_cq_readerr(connection.queue.get(), &entry, 0) != 1) return 0;
    tell(entry.err, ShortText("provider's error {}", entry.prov_errno));
    auto* operation = static_cast<OfiOperation*>(entry.op_context);
    if (operation == nullptr) {
      fail_connection(connection, entry.err);
      return 0;
    }
    const auto kind = operation->receive ? CompletionKind::kReceive : CompletionKind::kRequest;
    *completion = {operation->cookie, 0, number, 0, ofi_status_of(entry.err), kind};
    connection.give(operation);
    return 1;
  }

  OfiInfo info_;
  DomainTraits traits_;
  Fid<fid_fabric> fabric_;
  Fid<fid_domain> domain_;
  UniqueFd poller_;
  bool waits_ = true;
  std::vector<OfiConnection> connections_;
  std::vector<uint32_t> open_;
  std::size_t turn_ = 0;
};

}  // namespace

std::vector<OfiDevice> ofi_devices(const std::string& provider) {
  OfiOptions options;
  options.provider = provider;
  const OfiInfo found = find_devices(options);
  std::vector<OfiDevice> devices;
  for (const fi_info* info = found.get(); info != nullptr; info = info->next) {
    const OfiDevice device{info->fabric_attr->prov_name, info->fabric_attr->name, info->domain_attr->name,
                           bandwidth_of(*info)};
    const bool known = std::any_of(devices.begin(), devices.end(),
                                   [&](const OfiDevice& other) { return other.domain == device.domain; });
    if (!known) devices.push_back(device);
  }
  return devices;
}

std::unique_ptr<Domain> make_ofi_domain(const OfiOptions& options) {
  return std::make_unique<OfiDomain>(options);
}

}  // namespace towline::fabric

#else

namespace towline::fabric {

std::vector<OfiDevice> ofi_devices(const std::string&) {
  fail(Status::kUnsupported, "this library was built without libfabric's headers");
}

std::unique_ptr<Domain> make_ofi_domain(const OfiOptions&) {
  fail(Status::kUnsupported, "this library was built without libfabric's headers");
}

}  // namespace towline::fabric

#endif
