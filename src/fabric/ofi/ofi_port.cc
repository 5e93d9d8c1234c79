#ifdef TOWLINE_HAVE_LIBFABRIC

#include "fabric/ofi/ofi_port.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/os/socket_address.h"
#include "fabric/ofi/ofi_memory.h"
#include "fabric/ofi/shm_files.h"
#include "fabric/topology.h"

namespace towline::fabric {
namespace {
constexpr std::size_t kMostTogether = 4;
}

// All devices of the provider that have what the engine needs: writes, reads and sends, reliable, with
// completions that mean delivery.
OfiInfo find_ofi_devices(const OfiOptions& options) {
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

uint64_t ofi_bandwidth(const fi_info& info) noexcept {
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

namespace {

// libfabric takes any address for one of this host's. Its endpoints would then fail one by one.
void need_own_address(const fi_info& info, const OfiOptions& options) {
  const auto* const address = static_cast<const sockaddr*>(info.src_addr);
  if (options.address.empty() || address == nullptr || info.src_addrlen < sizeof *address) return;
  if (address->sa_family != AF_INET && address->sa_family != AF_INET6) return;
  const auto any_port = SocketAddress{address, static_cast<socklen_t>(info.src_addrlen)}.with_port(0);
  const UniqueFd socket{::socket(address->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
  if (socket && ::bind(socket.get(), any_port.get(), any_port.size()) != 0 && errno == EADDRNOTAVAIL)
    fail(Status::kNotFound, "ofi {}: {} is no address of this host", options.provider, options.address);
}

}  // namespace

OfiPort::OfiPort(OfiInfo info, const OfiOptions& options) : info_(std::move(info)) {
  need_own_address(*info_, options);
  traits_.kind = "ofi:" + options.provider;
  const std::string domain_name = info_->domain_attr->name;
  traits_.name = fmt::format("ofi {} {}", options.provider, domain_name);
  if (options.provider == "efa") traits_.device = domain_name.substr(0, domain_name.find('-'));
  if (!traits_.device.empty()) traits_.numa_node = numa_node_of_device(traits_.device);
  const bool shm = options.provider == "shm";
  if (shm) {
    remove_abandoned_shm_files(kNewShmFileNs);
    const std::string address = unique_shm_address();
    std::free(info_->src_addr);  // NOLINT(cppcoreguidelines-no-malloc): libfabric frees it so, too
    info_->src_addr = strdup(address.c_str());
    if (info_->src_addr == nullptr) fail(Status::kOutOfMemory, "no memory for an address");
    info_->src_addrlen = address.size() + 1;
  }
  fid_fabric* fabric = nullptr;
  check(OfiLibrary::get().open_fabric(info_->fabric_attr, &fabric), "fi_fabric");
  fabric_.reset(fabric);
  fid_domain* domain = nullptr;
  check(fi_domain(fabric, info_.get(), &domain, nullptr), "fi_domain");
  domain_.reset(domain);
  traits_.send_depth = static_cast<uint32_t>(std::clamp<std::size_t>(info_->tx_attr->size, 8, 256));
  traits_.receive_depth = static_cast<uint32_t>(std::clamp<std::size_t>(info_->rx_attr->size, 8, 128));
  traits_.slice_bytes = std::min<uint64_t>(1 << 20, info_->ep_attr->max_msg_size);
  // Over shm the owner copies everything that is queued in one go, and the sender waits meanwhile: the more is
  // queued, the fewer times the two processes wait for each other. send_depth bounds it there.
  traits_.window_bytes = shm ? 64 << 20 : 8 << 20;
  traits_.bandwidth_bytes_per_s = ofi_bandwidth(*info_);
  traits_.ordered = false;
  traits_.completes_in_order = false;
  // Within a process it uses the peer's own mapping, which goes with the peer.
  traits_.other_processes_only = shm;
  traits_.moves_by_polls = shm;
  // With delivery, shm of libfabric 1.17 moves writes of up to 4 KiB and all reads through one buffer: one at a time, and each waits
  // for both sides. Several writes together are copied from where they lie instead, many at a time, and several reads share one turn.
  if (shm) {
    const std::size_t limit = std::min(info_->tx_attr->iov_limit, info_->tx_attr->rma_iov_limit);
    most_together_ = std::clamp<std::size_t>(limit, 1, kMostTogether);
  }
  poller_ = UniqueFd{epoll_create1(EPOLL_CLOEXEC)};
}

void OfiPort::check(int64_t result, const char* call) const {
  if (result < 0) fail(Status::kIo, "{}: {}: {}", traits_.name, call, OfiLibrary::get().error_text(result));
}

Registration OfiPort::register_memory(const MemoryToRegister& memory) {
  fid_mr* const region = ofi_register(*domain_, *info_, OfiLibrary::get().runtime(), memory, traits_.name);
  Registration registration;
  registration.local_key = reinterpret_cast<uint64_t>(fi_mr_desc(region));
  registration.remote_key = fi_mr_key(region);
  const bool by_address = (info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
  registration.base = by_address ? reinterpret_cast<uint64_t>(memory.address) : 0;
  registration.handle = reinterpret_cast<uint64_t>(region);
  return registration;
}

void OfiPort::deregister_memory(const Registration& registration) noexcept {
  if (registration.handle != 0) fi_close(&reinterpret_cast<fid_mr*>(registration.handle)->fid);
}

Fid<fid_cq> OfiPort::open_queue(std::size_t entries, fi_cq_format format) {
  fi_cq_attr attributes{};
  attributes.size = entries;
  attributes.format = format;
  attributes.wait_obj = waits_ ? FI_WAIT_FD : FI_WAIT_NONE;
  fid_cq* queue = nullptr;
  int result = fi_cq_open(domain_.get(), &attributes, &queue, nullptr);
  if (result != 0 && waits_) {
    waits_ = false;
    attributes.wait_obj = FI_WAIT_NONE;
    result = fi_cq_open(domain_.get(), &attributes, &queue, nullptr);
  }
  check(result, "fi_cq_open");
  return Fid<fid_cq>{queue};
}

void OfiPort::watch(fid_cq& queue) noexcept {
  int fd = -1;
  if (!waits_ || fi_control(&queue.fid, FI_GETWAIT, &fd) != 0 || fd < 0) {
    waits_ = false;
    return;
  }
  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll_ctl(poller_.get(), EPOLL_CTL_ADD, fd, &event) != 0) waits_ = false;
}

bool OfiPort::may_wait(fid_cq& queue) const noexcept {
  fid* waited = &queue.fid;
  return fi_trywait(fabric_.get(), &waited, 1) == 0;
}

// libfabric lets wait while a socket has bytes of a write that it has not looked at, and who waits for edges is told of these
// once: a batch of sixteen writes took until the peer asked whether this side lived.
bool OfiPort::is_quiet() const noexcept {
  pollfd level{poller_.get(), POLLIN, 0};
  return ::poll(&level, 1, 0) == 0;
}

OfiEndpoint OfiPort::open_endpoint(fid_cq& queue, std::size_t peers) const {
  OfiEndpoint made;
  fi_av_attr table{};
  table.type = FI_AV_TABLE;
  table.count = peers;
  fid_av* av = nullptr;
  check(fi_av_open(domain_.get(), &table, &av, nullptr), "fi_av_open");
  made.table.reset(av);
  fid_ep* endpoint = nullptr;
  check(fi_endpoint(domain_.get(), info_.get(), &endpoint, nullptr), "fi_endpoint");
  made.endpoint.reset(endpoint);
  check(fi_ep_bind(endpoint, &av->fid, 0), "fi_ep_bind");
  check(fi_ep_bind(endpoint, &queue.fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
  check(fi_enable(endpoint), "fi_enable");
  if (traits_.kind == "ofi:shm") {
    const std::vector<uint8_t> name = name_of(*endpoint);
    made.file = lock_shm_file({name.begin(), name.end()});
  }
  return made;
}

std::vector<uint8_t> OfiPort::name_of(fid_ep& endpoint) const {
  std::vector<uint8_t> name(kMaxEndpointBytes);
  std::size_t bytes = name.size();
  check(fi_getname(&endpoint.fid, name.data(), &bytes), "fi_getname");
  name.resize(bytes);
  return name;
}

OfiEnd OfiPort::decode(std::span<const uint8_t> end) const {
  auto decoded = decode_ofi_end(end);
  if (!decoded)
    fail(Status::kProtocol,
         "{}: the peer's end, of {} bytes, is not understood; run one version on all hosts", traits_.name,
         end.size());
  return *std::move(decoded);
}

fi_addr_t OfiPort::insert(fid_av& table, const OfiEnd& end) const {
  // Providers read an address of the length that theirs have.
  std::vector<uint8_t> name = end.name;
  name.resize(kMaxEndpointBytes);
  fi_addr_t peer = FI_ADDR_UNSPEC;
  if (fi_av_insert(&table, name.data(), 1, &peer, 0, nullptr) != 1)
    fail(Status::kUnreachable, "{}: the peer's address is refused", traits_.name);
  return peer;
}

ssize_t OfiPort::start(fid_ep* endpoint, fi_addr_t peer, uint64_t token, const WorkRequest& request,
                       void* context) noexcept {
  auto* local = reinterpret_cast<void*>(request.local);
  auto* key = reinterpret_cast<void*>(request.local_key);
  switch (request.kind) {
    case RequestKind::kWrite:
      return fi_write(endpoint, local, request.length, key, peer, request.remote, request.remote_key,
                      context);
    case RequestKind::kRead:
      return fi_read(endpoint, local, request.length, key, peer, request.remote, request.remote_key, context);
    case RequestKind::kSend:
      if (token != 0) return fi_senddata(endpoint, local, request.length, key, token, peer, context);
      return fi_send(endpoint, local, request.length, key, peer, context);
    case RequestKind::kWriteImmediate:
      break;  // immediate_bits is 0
  }
  return -FI_ENOSYS;
}

std::span<const WorkRequest> OfiPort::first_together(std::span<const WorkRequest> requests) const noexcept {
  constexpr uint64_t kMostBytes = 64 << 10;
  const WorkRequest& first = requests.front();
  const bool moves = first.kind == RequestKind::kWrite || first.kind == RequestKind::kRead;
  std::size_t count = 1;
  uint64_t bytes = first.length;
  while (moves && count < std::min(most_together_, requests.size())) {
    const WorkRequest& next = requests[count];
    if (next.kind != first.kind || bytes + next.length > kMostBytes) break;
    bytes += next.length;
    ++count;
  }
  return requests.first(count);
}

ssize_t OfiPort::start_together(fid_ep* endpoint, fi_addr_t peer, std::span<const WorkRequest> requests,
                                void* context) noexcept {
  iovec local[kMostTogether];
  void* keys[kMostTogether];
  fi_rma_iov remote[kMostTogether];
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const WorkRequest& request = requests[i];
    local[i] = {reinterpret_cast<void*>(request.local), request.length};
    keys[i] = reinterpret_cast<void*>(request.local_key);
    remote[i] = {request.remote, request.length, request.remote_key};
  }
  fi_msg_rma message{};
  message.msg_iov = local;
  message.desc = keys;
  message.iov_count = requests.size();
  message.addr = peer;
  message.rma_iov = remote;
  message.rma_iov_count = requests.size();
  message.context = context;
  if (requests.front().kind == RequestKind::kRead) return fi_readmsg(endpoint, &message, FI_COMPLETION);
  return fi_writemsg(endpoint, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
}

void OfiPort::tell(int error, const char* provider_text) const noexcept {
  if (error == FI_ECANCELED) return;
  TOWLINE_LOG_EVERY(kInfo, kSecondNs, "fabric: {}: a connection failed: {} ({}){}{}", traits_.name,
                    OfiLibrary::get().plain_error_text(error), error, *provider_text == 0 ? "" : ": ",
                    provider_text);
}

}  // namespace towline::fabric

#endif
