#include "transports/shm/backend.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "base/sync/wake_path.h"
#include "towline/towline.h"

namespace towline::shm {

namespace {

// Yama may restrict who reads another process's memory. Then this process says that its peers may.
void allow_process_vm(const plugin::Host& host) noexcept {
  const auto scope = read_text_file("/proc/sys/kernel/yama/ptrace_scope");
  if (!scope || scope->starts_with('0')) return;
  if (prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0) != 0)
    host.log(2, "shm: Yama did not take PR_SET_PTRACER: " + errno_text(errno));
}

}  // namespace

Backend::Backend(const plugin::Host& host) try
    : BackendBase(host),
      settings_(Settings::read(host)),
      worker_count_(host.worker_count()),
      cookie_{host.self().incarnation[0], host.self().incarnation[1]},
      owner_pid_(getpid()),
      workers_(std::make_unique<Worker[]>(host.worker_count())) {
  if (!settings_.socket_dir.empty()) sweep_dead_sockets(settings_.socket_dir);
  if (settings_.allow_ptracer && settings_.allows(Path::kProcessVm)) allow_process_vm(host);
  spare_ = open_spare();
  listening_on_ = socket_name(cookie_, settings_.socket_dir);
  listener_ = listen_on(listening_on_);
  const int32_t status =
      host.watch(0, listener_.get(), EPOLLIN, &plugin::ready<&Backend::accept_visitors>, this);
  if (status != TOWLINE_OK)
    throw Error(static_cast<Status>(status), "shm: the worker can't watch the listening socket");
} catch (const Error& error) {
  throw plugin::Failure(error.code(), error.message());
}

Backend::~Backend() {
  while (!visitors_.empty()) dismiss(*visitors_.back());
  host().unwatch(0, listener_.get());
  if (!listening_on_.abstract && owner_pid_ == getpid()) unlink(listening_on_.name.c_str());
}

// ---- memory

int32_t Backend::add(const towline_region_args& args, towline_registration** registration, void*,
                     size_t* token_bytes) {
  *token_bytes = 0;
  if (args.region.kind != TOWLINE_MEMORY_DRAM)
    return host().refuse(Status::kUnsupported, "shm: only dram can be shared");
  auto region = std::make_unique<Region>(Region{args, {}});
  *registration = reinterpret_cast<towline_registration*>(region.get());
  const std::lock_guard lock(regions_mutex_);
  regions_[args.region.key] = std::move(region);
  return TOWLINE_OK;
}

void Backend::remove(towline_registration* registration) noexcept {
  const std::lock_guard lock(regions_mutex_);
  regions_.erase(reinterpret_cast<const Region*>(registration)->args.region.key);
}

// Is any part of it in a region that peers write on their own? Under regions_mutex_.
bool Backend::peers_may_write(uint64_t address, uint64_t bytes) const noexcept {
  for (const auto& [key, entry] : regions_) {
    const towline_region_ref& region = entry->args.region;
    const bool writable = (region.access & TOWLINE_ACCESS_WRITE) != 0;
    if (writable && (region.flags & TOWLINE_REGION_GUARDED) == 0 && region.address < address + bytes &&
        address < region.address + region.bytes)
      return true;
  }
  return false;
}

// With a descriptor of its file, peers would also have memory that this agent keeps to itself. Under regions_mutex_.
bool Backend::file_has_own_memory(const towline_region_ref& given, const SharedRange& range) const noexcept {
  const uint64_t begin = given.address - range.offset;
  const uint64_t end = begin + file_bytes(range.file->fd());
  for (const auto& [key, entry] : regions_) {
    const towline_region_ref& region = entry->args.region;
    if (region.access != TOWLINE_ACCESS_NONE) continue;
    const bool in_file = region.address < end && begin < region.address + region.bytes;
    const bool given_too =
        region.address >= given.address && region.address + region.bytes <= given.address + given.bytes;
    if (in_file && !given_too) return true;
  }
  return false;
}

// Empty when a descriptor may go to those who reach the region. With it they have the whole file, and all
// rights to it: a descriptor for reading is opened anew for writing through /proc. So a file that is given
// for reading is sealed against writers.
std::string Backend::why_not_given(const towline_region_ref& region, const SharedRange& range) {
  const int fd = range.file->fd();
  if (file_has_own_memory(region, range))
    return "its file has memory that was registered without access; register that from memory of its own";
  const bool sealed = sealed_against_writing(fd);
  if ((region.access & TOWLINE_ACCESS_WRITE) != 0) {
    if (sealed) return "other memory of its file was given to peers to read, which sealed the file";
  } else if (!sealed && range.file->ours() &&
             !peers_may_write(region.address - range.offset, file_bytes(fd))) {
    seal_future_writes(fd);
  } else if (!sealed && !settings_.map_unsealed) {
    return "peers may only read it, but they could write its file (tuning.shm.map_unsealed allows that)";
  }
  if (!sealed_against_shrinking(fd) && !settings_.map_unsealed)
    return "its file is not sealed against shrinking (tuning.shm.map_unsealed is off)";
  return {};
}

DescriptorAnswer Backend::find_descriptor(uint64_t key, int* fd, std::shared_ptr<const void>* keep) try {
  DescriptorAnswer answer;
  const auto refuse = [&answer](Status status, std::string text) {
    answer.status = status;
    answer.text = std::move(text);
    return answer;
  };
  const std::lock_guard lock(regions_mutex_);
  const auto found = regions_.find(key);
  if (found == regions_.end() || !host().may_be_reached(found->second->args.region))
    return refuse(Status::kStale, "the owner has deregistered the region, or keeps it to itself");
  const towline_region_args& region = found->second->args;
  answer.address = region.region.address;
  answer.bytes = region.region.bytes;
  if (!settings_.allows(Path::kMapped))
    return refuse(Status::kPermissionDenied, "the owner's tuning.shm.paths leaves it out");
  if ((region.region.flags & TOWLINE_REGION_GUARDED) != 0)
    return refuse(Status::kPermissionDenied, "guarded");
  SharedRange& range = found->second->range;
  std::string reason;
  if (range.file == nullptr)
    range =
        find_shared_range(reinterpret_cast<const void*>(region.region.address), region.region.bytes, reason);
  if (range.file == nullptr) return refuse(Status::kUnsupported, reason);
  reason = why_not_given(region.region, range);
  if (!reason.empty()) return refuse(Status::kPermissionDenied, reason);
  *fd = range.file->fd();
  *keep = range.file;
  answer.file_offset = range.offset;
  const bool to_read = (region.region.access & TOWLINE_ACCESS_WRITE) == 0;
  if (to_read && range.file->writable() && !sealed_against_writing(*fd)) {
    auto read_only = std::make_shared<UniqueFd>(
        ::open(fmt::format("/proc/self/fd/{}", *fd).c_str(), O_RDONLY | O_CLOEXEC));
    if (!*read_only) return refuse(Status::kPermissionDenied, "the owner can't reopen its file read-only");
    *fd = read_only->get();
    *keep = read_only;
  }
  return answer;
} catch (const std::exception& error) {
  DescriptorAnswer answer;
  answer.status = Status::kInternal;
  answer.text = error.what();
  return answer;
}

// ---- connections

int32_t Backend::address(void* address, size_t* bytes) {
  const std::vector<uint8_t> encoded = encode(listening_on_);
  if (encoded.size() > *bytes) return host().refuse(Status::kNoSpace, "shm: no room for the address");
  std::memcpy(address, encoded.data(), encoded.size());
  *bytes = encoded.size();
  return TOWLINE_OK;
}

int32_t Backend::probe(const towline_identity& peer, const void* address, size_t bytes) {
  const auto decoded = decode_address({static_cast<const uint8_t*>(address), bytes});
  if (!decoded) return host().refuse(Status::kProtocol, "shm: the peer's address makes no sense");
  const towline_identity& self = host().self();
  if (peer.host[0] != self.host[0] || peer.host[1] != self.host[1])
    return host().refuse(Status::kUnreachable, "shm: the peer is on another host");
  if (decoded->abstract) {
    const bool known = peer.network_namespace != 0 && self.network_namespace != 0;
    if (known && peer.network_namespace != self.network_namespace)
      return host().refuse(
          Status::kUnreachable,
          "shm: the peer is in another network namespace; set shm.socket_dir to a shared directory");
  } else if (access(decoded->name.c_str(), F_OK) != 0) {
    return host().refuse(Status::kUnreachable, fmt::format("shm: the peer's socket {} is not there: {}",
                                                           decoded->name, errno_text(errno)));
  }
  return TOWLINE_OK;
}

int32_t Backend::connect(uint32_t worker, const towline_identity& identity, const void* address, size_t bytes,
                         uint64_t deadline_ns, void* peer, Connection** out) try {
  const auto decoded = decode_address({static_cast<const uint8_t*>(address), bytes});
  if (!decoded) return host().refuse(Status::kProtocol, "shm: the peer's address makes no sense");
  auto connection = std::make_unique<Connection>(*this, worker, peer);
  connection->connect(identity, *decoded, deadline_ns);
  *out = workers_[worker].connections.add(std::move(connection));
  return TOWLINE_OK;
} catch (const Error& error) {
  return host().refuse(error.code(), error.message());
}

TOWLINE_WAKE_PATH uint32_t Backend::progress(uint32_t worker, uint64_t now_ns) noexcept {
  const auto pass = scope(worker);
  Worker& mine = workers_[worker];
  uint32_t done = 0;
  if (!mine.inbox.empty()) done += take_mail(worker);
  done += mine.connections.each([now_ns](Connection& connection) { return connection.progress(now_ns); });
  if (worker == 0 && !visitors_.empty()) dismiss_slow_visitors(now_ns);
  return done;
}

bool Backend::arm(uint32_t worker) noexcept {
  Worker& mine = workers_[worker];
  wake_pages().add_object(mine);
  bool work = !mine.inbox.empty();
  work = work || mine.connections.any([](Connection& connection) { return connection.arm(); });
  if (work) disarm(worker);
  return work;
}

void Backend::disarm(uint32_t worker) noexcept {
  workers_[worker].connections.each([](Connection& connection) { return connection.disarm(), 0u; });
}

}  // namespace towline::shm
