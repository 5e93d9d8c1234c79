// Ways of a connection to the peer's regions, and answers to a peer that asks for ours.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "towline/towline.h"
#include "transports/shm/backend.h"
#include "transports/shm/connection.h"
#include "transports/shm/large_copy.h"

namespace towline::shm {

namespace {

constexpr size_t kHowBytes = 64;

void add_reason(std::string& reasons, const char* path, const std::string& reason) {
  if (!reasons.empty()) reasons += "; ";
  reasons += path;
  reasons += ": ";
  reasons += reason;
}

Prepared& make_prepared(std::unique_ptr<Prepared>& prepared, Connection* connection,
                        const towline_prepare_args& args) {
  prepared = std::make_unique_for_overwrite<Prepared>();  // most members set themselves
  prepared->flags = 0;
  prepared->reserved = 0;
  prepared->connection = reinterpret_cast<towline_connection*>(connection);
  prepared->plan = args.plan;
  prepared->op = args.op;
  return *prepared;
}

}  // namespace

// ---- the owner's side

void Connection::on_descriptor_request(const DescriptorRequest& request) {
  if (requests_.size() >= kMostRequests)
    return fail(Status::kProtocol, "shm: the peer asks for descriptors and does not take them");
  requests_.push_back(request);
  if (requests_.size() == 1) answer_requests();
}

// As many as the socket has room for. No descriptor waits here: each is looked up when it can leave.
void Connection::answer_requests() {
  for (; !requests_.empty(); requests_.pop_front()) {
    int fd = -1;
    std::shared_ptr<const void> keep;
    DescriptorAnswer answer = backend_.find_descriptor(requests_.front().key, &fd, &keep);
    answer.request = requests_.front().request;
    // Whatever else the answer says: the peer may now take process_vm.
    if (answer.status != Status::kStale) host().granted(peer_, requests_.front().key);
    const auto send = [&](size_t fds) { return socket_.send(encode(answer), {&fd, fds}); };
    Status sent = send(answer.status == Status::kOk ? 1 : 0);
    if (sent == Status::kLimitExceeded) {
      answer.status = Status::kLimitExceeded;
      answer.text = "too many descriptors of the owner's user are on their way and not taken";
      sent = send(0);
    }
    if (sent == Status::kAgain) break;
    if (sent != Status::kOk) return peer_gone("its socket closed");
  }
  socket_.watch_for_room(!requests_.empty());
}

// ---- the importer's side

int32_t Connection::import(const towline_region_args& args, const void*, size_t, towline_import** out,
                           char how_text[64]) {
  if (state_ == State::kDown) return host().refuse(Status::kPeerLost, "shm: the connection is down");
  auto* import = reinterpret_cast<Import*>(*out);
  if (import == nullptr) {
    if (args.region.kind != TOWLINE_MEMORY_DRAM)
      return host().refuse(Status::kUnsupported, "shm: only dram can be shared");
    import = new Import;
    import->region = args.region;
    *out = reinterpret_cast<towline_import*>(import);
    ++imports_;
  }
  const std::vector<Path>& paths = backend_.settings().paths;
  for (; import->path < paths.size(); ++import->path) {
    const Status status = try_path(*import);
    if (status == Status::kAgain) return TOWLINE_AGAIN;
    if (status == Status::kStale) {
      unimport(*out);
      *out = nullptr;
      return host().refuse(status, "shm: the peer has deregistered the region");
    }
    if (status != Status::kOk) continue;
    const std::string text = how(*import);
    const size_t bytes = std::min(text.size(), kHowBytes - 1);
    std::memcpy(how_text, text.data(), bytes);
    how_text[bytes] = 0;
    return TOWLINE_OK;
  }
  const std::string reasons = import->reasons;
  unimport(*out);
  *out = nullptr;
  return host().refuse(Status::kUnsupported, "shm: no path reaches the region: " + reasons);
}

// kOk: it is; kAgain: not known yet; kStale: no path may; anything else: it is not, and why is in the
// reasons.
Status Connection::try_path(Import& import) {
  const bool guarded = (import.region.flags & TOWLINE_REGION_GUARDED) != 0;
  switch (backend_.settings().paths[import.path]) {
    case Path::kMapped:
      if (guarded) {
        add_reason(import.reasons, "mapped", "guarded");
        return Status::kUnsupported;
      }
      if (const Status asked = ask_owner(import); asked != Status::kOk) return asked;
      return import.mapped.address != nullptr ? Status::kOk : Status::kUnsupported;
    case Path::kProcessVm: {
      if (guarded) {
        add_reason(import.reasons, "process_vm", "guarded");
        return Status::kUnsupported;
      }
      if (const Status asked = ask_owner(import); asked != Status::kOk) return asked;
      if (!import.owner_agrees) {
        add_reason(import.reasons, "process_vm", "the owner knows the region otherwise");
        return Status::kUnsupported;
      }
      int error = process_vm_error_;
      if (error == 0) error = try_range(process_.pid, import.region.address, import.region.bytes);
      if (error == 0) return Status::kOk;
      add_reason(import.reasons, "process_vm", process_vm_text(error));
      return Status::kUnsupported;
    }
    case Path::kRing:
      import.ring = true;
      return Status::kOk;
  }
  return Status::kUnsupported;
}

// If this side moves the bytes, it asks the owner first: the peer's metadata may be old, and the owner can't tell
// this side any more once it has had its memory back.
Status Connection::ask_owner(Import& import) {
  if (import.request == 0) {
    if (asking_.size() >= kMostRequests) return Status::kAgain;
    const uint64_t request = ++last_request_;
    const Status sent = socket_.send(encode(DescriptorRequest{request, import.region.key}));
    if (sent != Status::kOk)
      return Status::kAgain;  // the peer is gone or busy: the connection or a later call tells
    import.request = request;
    asking_[request] = &import;
  }
  if (!import.answered) return Status::kAgain;
  return import.stale ? Status::kStale : Status::kOk;
}

void Connection::on_descriptor_answer(const DescriptorAnswer& answer, Packet& packet) {
  const auto found = asking_.find(answer.request);
  if (found == asking_.end()) return;
  Import* const asked = found->second;
  asking_.erase(found);
  if (asked == nullptr) return;
  Import& import = *asked;
  import.answered = true;
  import.stale = answer.status == Status::kStale;
  import.owner_agrees = answer.bytes == 0 ||  // an older owner, which does not say why not
                        (answer.address == import.region.address && answer.bytes == import.region.bytes);
  if (!backend_.settings().allows(Path::kMapped)) return;
  if (answer.status != Status::kOk)
    add_reason(import.reasons, "mapped", answer.text);
  else if (packet.fd_count != 1)
    add_reason(import.reasons, "mapped",
               packet.fds_lost ? "this process is out of descriptors" : "no descriptor came");
  else
    map_answer(import, answer, std::move(packet.fds[0]));
}

void Connection::map_answer(Import& import, const DescriptorAnswer& answer, UniqueFd fd) {
  const towline_region_ref& region = import.region;
  if (!import.owner_agrees)
    return add_reason(import.reasons, "mapped", "the owner knows the region otherwise");
  try {
    const bool writable = (region.access & TOWLINE_ACCESS_WRITE) != 0;
    import.mapped = backend_.mappings().map(fd.get(), answer.file_offset, region.bytes, writable,
                                            backend_.settings().map_unsealed);
    import.way = {true, reinterpret_cast<uint64_t>(import.mapped.address) - region.address};
  } catch (const std::exception& error) {
    add_reason(import.reasons, "mapped", error.what());
  }
}

void Connection::unimport(towline_import* handle) noexcept {
  auto* import = reinterpret_cast<Import*>(handle);
  if (const auto asked = asking_.find(import->request); asked != asking_.end()) asked->second = nullptr;
  delete import;
  --imports_;
}

// Plans that are prepared from it hold the mapping.
int32_t Connection::reach(const towline_import* handle, uint64_t* address) noexcept {
  const auto* import = reinterpret_cast<const Import*>(handle);
  if (!import->way.mapped) return TOWLINE_UNSUPPORTED;
  *address = reinterpret_cast<uint64_t>(import->mapped.address);
  return TOWLINE_OK;
}

std::string Connection::how(const Import& import) const {
  if (import.way.mapped) return import.mapped.sealed ? "mapped memfd" : "mapped file";
  if (!import.ring) return "process_vm";
  return import.reasons.empty() ? "ring" : fmt::format("ring ({})", import.reasons);
}

// ---- plans

int32_t Connection::prepare(const towline_prepare_args& args, towline_prepared** out) {
  if (state_ != State::kUp) return host().refuse(Status::kPeerLost, "shm: the connection is down");
  std::unique_ptr<Prepared> owner;
  Prepared& prepared = make_prepared(owner, this, args);
  const towline_plan& plan = *args.plan;
  bool all_mapped = true;
  bool framed = false;
  prepared.ways.reserve(plan.remote->region_count);
  prepared.deltas.reserve(plan.remote->region_count);
  for (uint64_t i = 0; i < plan.remote->region_count; ++i) {
    const auto& import = *reinterpret_cast<const Import*>(args.remote[i]);
    framed = framed || import.ring;
    all_mapped = all_mapped && import.way.mapped;
    prepared.ways.add(import.way);
    prepared.deltas.add(import.way.delta);
    if (import.way.mapped) prepared.held.push_back(import.mapped.mapping);
  }
  if (framed) {
    if (const int32_t status = paths_.prepare_framed(args, prepared); status != TOWLINE_OK) return status;
    prepared.held.clear();
    *out = owner.release();
    return TOWLINE_OK;
  }
  prepared.path = &direct_;
  prepared.process_vm = !all_mapped;
  const Settings& settings = backend_.settings();
  prepared.inline_bytes = all_mapped ? settings.inline_bytes : settings.process_vm_inline_bytes;
  DirectPath::aim(prepared);
  *out = owner.release();
  return TOWLINE_OK;
}

int32_t Connection::repick(towline_prepared* prepared, const towline_plan* plan) noexcept {
  auto& mine = static_cast<Prepared&>(*prepared);
  mine.plan = plan;
  if (mine.framed != nullptr) return framing::Connection::repick(mine.framed, plan);
  DirectPath::aim(mine);
  return TOWLINE_OK;
}

void Connection::unprepare(towline_prepared* prepared) noexcept {
  auto* mine = static_cast<Prepared*>(prepared);
  direct::Paths::unprepare(*mine);
  delete mine;
}

std::string Connection::describe() const {
  return fmt::format(
      R"({{"transport": "shm", "peer_pid": {}, "process_vm": "{}", "ring_bytes": {}, "imports": {}, "mappings": {}, {}}})",
      process_.pid, process_vm_text(process_vm_error_), backend_.settings().ring_bytes, imports_,
      backend_.mappings().live(), paths_.describe());
}

}  // namespace towline::shm
