#include "transports/nixl/worker_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <new>
#include <utility>

#include "base/clock.h"
#include "transports/nixl/connection.h"
#include "transports/nixl/wire.h"

namespace towline::nixl_net {

namespace {

constexpr uint64_t kProgressPauseUs = 1000;  // of the engine's own thread, which else may spin
constexpr uint64_t kGraceNs = kSecondNs;     // in which a cancelled request may end by itself
constexpr uint64_t kUrgentForNs = kSecondNs;
constexpr uint64_t kBulkBytes = 512 << 10;  // of a request that is not urgent, while urgent parts come
constexpr std::size_t kMostJobs = 4096;
constexpr std::size_t kSegments = 256;

Status status_of(nixl_status_t status) noexcept {
  switch (status) {
    case NIXL_ERR_INVALID_PARAM:
    case NIXL_ERR_MISMATCH:
      return Status::kInvalidArgument;
    case NIXL_ERR_NOT_FOUND:
      return Status::kStale;
    case NIXL_ERR_NOT_ALLOWED:
      return Status::kPermissionDenied;
    case NIXL_ERR_NOT_SUPPORTED:
      return Status::kUnsupported;
    case NIXL_ERR_REMOTE_DISCONNECT:
      return Status::kPeerLost;
    case NIXL_ERR_CANCELED:
      return Status::kCancelled;
    default:
      return Status::kIo;
  }
}

nixlBlobDesc describe(const towline_region_ref& region, const std::string& text) {
  return {region.address, region.bytes, device_of(region), text};
}

plugin::Failure failure(nixl_status_t status, const char* call, const std::string& what) {
  return {status_of(status), fmt::format("{}: the plugin's engine refuses {}: {} returned {}", kName, what,
                                         call, static_cast<int>(status))};
}

}  // namespace

Job::Job(Connection& of, Prepared& from, const towline_submit_args& args)
    : connection(&of),
      prepared(&from),
      cookie(args.cookie),
      begin(args.begin),
      end(args.end),
      cursor(*from.plan, args.begin, args.end),
      urgent((args.flags & TOWLINE_SUBMIT_URGENT) != 0),
      moved_to(args.begin) {
  const auto* bytes = static_cast<const uint8_t*>(args.message);
  message.assign(bytes, bytes + args.message_bytes);
}

WorkerEngine::WorkerEngine(const plugin::Host& host, const Settings& settings, std::string name)
    : host_(host),
      blocks_(settings.blocks),
      name_(std::move(name)),
      engine_({.backend = kName,
               .file = settings.library,
               .parameters = settings.parameters,
               .agent = name_,
               .progress_pause_us = kProgressPauseUs}) {
  if (!engine_.remote() || !engine_.serves(DRAM_SEG))
    engine_.refuse(Status::kUnsupported, "its engine does not move host memory to and from other agents");
  const bool plain = std::ranges::all_of(
      engine_.type(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-'; });
  if (engine_.type().empty() || engine_.type().size() > kMaxTypeBytes || !plain)
    engine_.refuse(Status::kUnsupported, "it has no name of letters and digits");
  const nixl_status_t told = ask([&] { return engine_.lock()->getConnInfo(info_); });
  if (told != NIXL_SUCCESS)
    engine_.refuse(Status::kIo, fmt::format("its engine failed to start: getConnInfo returned {}",
                                            static_cast<int>(told)));
  if (info_.size() > kMaxInfoBytes)
    engine_.refuse(Status::kLimitExceeded,
                   fmt::format("its engine needs {} bytes to say where it is, and {} are sent", info_.size(),
                               kMaxInfoBytes));
  if (engine_.local()) {
    const nixl_status_t connected = ask([&] { return engine_.lock()->connect(name_); });
    if (connected != NIXL_SUCCESS)
      engine_.refuse(Status::kIo, fmt::format("its engine failed to start: connect returned {}",
                                              static_cast<int>(connected)));
  }
  jobs_.reserve(kMostJobs);
}

WorkerEngine::~WorkerEngine() = default;

// ---- memory

OwnMemory WorkerEngine::add_memory(const towline_region_ref& region) {
  if (!serves(kind_of(region)))
    throw plugin::Failure(
        Status::kUnsupported,
        fmt::format("{}: the engine of {} does not serve this kind of memory", kName, type()));
  OwnMemory memory;
  const auto engine = engine_.lock();
  nixl_status_t status =
      ask([&] { return engine->registerMem(describe(region, {}), kind_of(region), memory.metadata); });
  if (status != NIXL_SUCCESS)
    throw failure(status, "registerMem", fmt::format("memory of {} bytes", region.bytes));
  status = ask([&] { return engine->getPublicData(memory.metadata, memory.public_data); });
  if (status == NIXL_SUCCESS && memory.public_data.size() <= kMaxInfoBytes) return memory;
  (void)ask([&] { return engine->deregisterMem(memory.metadata); });
  throw failure(status == NIXL_SUCCESS ? NIXL_ERR_NOT_SUPPORTED : status, "getPublicData",
                fmt::format("memory of {} bytes", region.bytes));
}

void WorkerEngine::remove_memory(const OwnMemory& memory) noexcept {
  const auto engine = engine_.lock();
  if (engine_.abandoned()) return;  // a request that was not ended may use it
  (void)ask([&] { return engine->deregisterMem(memory.metadata); });
}

// ---- peers

void WorkerEngine::add_peer(const std::string& name, const std::string& info) {
  Peer& peer = peers_[name];
  if (peer.connections != 0 && peer.info != info)
    throw plugin::Failure(Status::kUnreachable,
                          fmt::format("{}: the peer's engine is another one than before", kName));
  if (peer.connections == 0) {
    const nixl_status_t status = ask([&] { return engine_.lock()->loadRemoteConnInfo(name, info); });
    if (status != NIXL_SUCCESS) {
      peers_.erase(name);
      throw failure(status, "loadRemoteConnInfo", "the peer's address");
    }
    peer.info = info;
  }
  ++peer.connections;
}

void WorkerEngine::remove_peer(const std::string& name) noexcept {
  const auto found = peers_.find(name);
  if (found == peers_.end() || --found->second.connections != 0) return;
  peers_.erase(found);
  (void)ask([&] { return engine_.lock()->disconnect(name); });
}

nixlBackendMD* WorkerEngine::load_memory(const std::string& peer, const towline_region_ref& region,
                                         const std::string& public_data) {
  nixlBackendMD* metadata = nullptr;
  const nixl_status_t status = ask([&] {
    return engine_.lock()->loadRemoteMD(describe(region, public_data), kind_of(region), peer, metadata);
  });
  if (status != NIXL_SUCCESS) throw failure(status, "loadRemoteMD", "the peer's memory");
  return metadata;
}

void WorkerEngine::unload_memory(nixlBackendMD* metadata) noexcept {
  const auto engine = engine_.lock();
  if (engine_.abandoned()) return;
  (void)ask([&] { return engine->unloadMD(metadata); });
}

// ---- requests

void WorkerEngine::fill(Job& job, Request& request, uint64_t bytes) {
  const Prepared& prepared = *job.prepared;
  towline_segment segments[kSegments];
  for (uint64_t left = blocks_; left != 0 && bytes != 0 && !job.cursor.done();) {
    const size_t count = job.cursor.next(segments, std::min<uint64_t>(left, kSegments), bytes);
    for (size_t i = 0; i < count; ++i) {
      const towline_segment& segment = segments[i];
      request.local.addDesc({segment.local, segment.length, prepared.local_devices[segment.local_region],
                             prepared.local[segment.local_region]});
      request.remote.addDesc({segment.remote, segment.length, prepared.remote_devices[segment.remote_region],
                              prepared.remote[segment.remote_region]});
      bytes -= segment.length;
    }
    left -= count;
  }
}

nixl_status_t WorkerEngine::post(Job& job) noexcept {
  Request& request = *job.request;
  ++requests_;
  const auto engine = engine_.lock();
  if (request.handle == nullptr) {
    const nixl_status_t status = ask([&] {
      return engine->prepXfer(request.operation, request.local, request.remote, request.agent, request.handle,
                              &request.args);
    });
    if (status != NIXL_SUCCESS) return status < 0 ? status : NIXL_ERR_BACKEND;
  }
  job.fenced = false;
  return ask([&] {
    return engine->postXfer(request.operation, request.local, request.remote, request.agent, request.handle,
                            &request.args);
  });
}

bool WorkerEngine::urgent_parts_come() const noexcept {
  return last_urgent_ns_ != 0 && host_.now_ns() - last_urgent_ns_ < kUrgentForNs;
}

void WorkerEngine::is_back(Job& job) noexcept {
  if (std::exchange(job.posted, false) && !job.urgent) --bulk_posted_;
}

Status WorkerEngine::post_next(Job& job) {
  Prepared& prepared = *job.prepared;
  const bool gives_way = !job.urgent && urgent_parts_come();
  if (gives_way && bulk_posted_ != 0) return Status::kInProgress;
  const uint64_t bytes = gives_way ? kBulkBytes : UINT64_MAX;
  job.whole = job.begin == 0 && job.end == prepared.plan->bytes && job.cursor.position() == 0;
  if (job.whole && prepared.idle != nullptr && prepared.plan->bytes <= bytes) {
    job.request = std::move(prepared.idle);
    job.cursor.seek(job.end, job.end);
  } else {
    job.request = std::make_shared<Request>(prepared.operation, job.connection->engine_name(),
                                            prepared.local_kind, prepared.remote_kind);
    fill(job, *job.request, bytes);
    job.whole = job.whole && job.cursor.done();
  }
  const nixl_status_t status = post(job);
  if (status == NIXL_IN_PROG) {
    job.posted = true;
    if (!job.urgent) ++bulk_posted_;
    return Status::kInProgress;
  }
  end_request(job, status);
  return job.status;
}

// The engine has told the request's end.
void WorkerEngine::end_request(Job& job, nixl_status_t status) noexcept {
  is_back(job);
  if (status == NIXL_SUCCESS) {
    job.moved_to = job.cursor.position();
    job.fenced = true;
    if (job.cursor.done()) job.status = Status::kOk;
    if (job.whole && job.prepared->idle == nullptr && job.prepared->of != nullptr) {
      job.prepared->idle = std::move(job.request);
      return;
    }
  } else {
    // Some of its blocks failed. Only the engine knows whether others still land.
    job.status = status_of(status);
    job.vendor_code = static_cast<int32_t>(status);
  }
  release(job.request, true);
}

void WorkerEngine::release(std::shared_ptr<Request>& request, bool over) noexcept {
  const std::shared_ptr<Request> mine = std::move(request);
  if (mine == nullptr || mine->handle == nullptr) return;
  const auto engine = engine_.lock();
  if (ask([&] { return engine->releaseReqH(mine->handle); }) == NIXL_SUCCESS || over) return;
  try {
    engine_.abandon(mine);
  } catch (const std::bad_alloc&) {  // its end was tried, and there is no memory to keep it by
  }
}

// It is the engine's, which may still move its bytes.
void WorkerEngine::give_up(Job& job, Status status) noexcept {
  is_back(job);
  release(job.request, false);
  job.status = status;
}

void WorkerEngine::release_idle(Prepared& prepared) noexcept { release(prepared.idle, true); }

// ---- parts

Status WorkerEngine::start(Connection& connection, Prepared& prepared,
                           const towline_submit_args& args) noexcept {
  if (jobs_.size() >= kMostJobs) return Status::kAgain;
  try {
    auto job = std::make_unique<Job>(connection, prepared, args);
    if (args.begin == args.end) {  // a message alone
      job->status = Status::kOk;
    } else {
      if (job->urgent) last_urgent_ns_ = host_.now_ns();
      (void)post_next(*job);
      if (job->status == Status::kOk && job->message.empty()) return Status::kOk;
    }
    last_event_ns_ = host_.now_ns();
    jobs_.push_back(std::move(job));
    return Status::kInProgress;
  } catch (const std::bad_alloc&) {
    return Status::kOutOfMemory;
  }
}

void WorkerEngine::cancel(const Connection& connection, uint64_t cookie) noexcept {
  for (const auto& job : jobs_)
    if (job->connection == &connection && job->cookie == cookie && job->give_up_ns == UINT64_MAX)
      job->give_up_ns = host_.now_ns() + kGraceNs;
}

// True: it has ended.
bool WorkerEngine::look_after(Job& job, uint64_t now_ns) {
  if (job.status != Status::kInProgress) return true;
  const bool cancelled = job.give_up_ns != UINT64_MAX;
  if (job.request == nullptr) {  // between two of its requests
    if (cancelled) {
      job.status = Status::kCancelled;
      return true;
    }
    return post_next(job) != Status::kInProgress;
  }
  const nixl_status_t status = ask([&] { return engine_.lock()->checkXfer(job.request->handle); });
  if (status == NIXL_IN_PROG) {
    if (now_ns < job.give_up_ns) return false;
    give_up(job, Status::kCancelled);
    return true;
  }
  end_request(job, status);
  return job.status != Status::kInProgress;
}

bool WorkerEngine::deliver(Job& job) noexcept {
  if (job.status != Status::kOk || job.message.empty()) return true;
  const int32_t sent = job.connection->send(job.message.data(), job.message.size());
  if (sent == TOWLINE_AGAIN) return false;
  if (sent < 0) job.status = static_cast<Status>(sent);
  return true;
}

void WorkerEngine::complete(Job& job) noexcept {
  auto result = plugin::sized<towline_part_result>();
  result.status = static_cast<int32_t>(job.status);
  result.vendor_code = job.vendor_code;
  result.fences = job.fenced ? TOWLINE_PART_FENCED_LOCAL | TOWLINE_PART_FENCED_REMOTE : 0;
  result.bytes = job.moved_to - job.begin;
  if (job.status != Status::kOk) {
    result.failed_begin = job.moved_to;
    result.failed_end = job.end;
  }
  host_.complete(job.cookie, result);  // may start others, or end connections
}

uint32_t WorkerEngine::progress(uint64_t now_ns) noexcept {
  uint32_t done = 0;
  in_progress_ = true;
  // Callbacks may add jobs at the end, and drop_jobs() may remove some: those are null meanwhile.
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    if (jobs_[i] == nullptr) continue;
    try {
      if (!look_after(*jobs_[i], now_ns)) continue;
    } catch (const std::bad_alloc&) {
      jobs_[i]->status = Status::kOutOfMemory;
    }
    if (!deliver(*jobs_[i])) continue;
    const std::unique_ptr<Job> job = std::move(jobs_[i]);
    const bool lost = job->status == Status::kPeerLost;
    Connection* const connection = job->connection;
    complete(*job);
    if (lost) connection->engine_lost();
    ++done;
  }
  in_progress_ = false;
  std::erase(jobs_, nullptr);
  if (done != 0) last_event_ns_ = now_ns;
  return done;
}

void WorkerEngine::drop_jobs(const Connection& connection, Status status) noexcept {
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    if (jobs_[i] == nullptr || jobs_[i]->connection != &connection) continue;
    const std::unique_ptr<Job> job = std::move(jobs_[i]);
    if (job->status == Status::kInProgress) give_up(*job, status);
    if (job->status == Status::kOk && !job->message.empty()) job->status = status;
    complete(*job);
  }
  if (!in_progress_) std::erase(jobs_, nullptr);
}

}  // namespace towline::nixl_net
