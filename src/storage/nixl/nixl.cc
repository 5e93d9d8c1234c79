#include "storage/nixl/nixl.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/config/config.h"
#include "base/error.h"
#include "storing/calls/pool_settings.h"

namespace towline::nixl_files {

namespace {

constexpr const char* kAgent = "towline";
constexpr uint32_t kMostBatch = 64;  // what a job takes at once
constexpr uint64_t kSpinNs = 20'000;
constexpr std::chrono::microseconds kLongestPause{500};

uint64_t read_timeout(const plugin::Host& host) {
  const std::string text = host.config("tuning.nixl.timeout", "30s");
  const auto parsed = parse_duration_ns(text);
  if (!parsed || *parsed == 0)
    throw plugin::Failure(Status::kInvalidArgument,
                          fmt::format("tuning.nixl.timeout = \"{}\": expected a duration such as 30s", text));
  return *parsed;
}

int error_of(nixl_status_t status) noexcept {
  switch (status) {
    case NIXL_ERR_INVALID_PARAM:
    case NIXL_ERR_MISMATCH:
      return EINVAL;
    case NIXL_ERR_NOT_FOUND:
      return ENOENT;
    case NIXL_ERR_NOT_ALLOWED:
      return EACCES;
    case NIXL_ERR_NOT_SUPPORTED:
      return EOPNOTSUPP;
    default:
      return EIO;
  }
}

}  // namespace

Nixl::Nixl(const plugin::Host& host)
    : pool_(calls::read_pool_settings(host, kNames.backend, kMostBatch, "64", "64MiB")),
      timeout_ns_(read_timeout(host)) {
  engine_.emplace(nixl_plugins::EngineOptions{
      .backend = "nixl",
      .file = nixl_plugins::find_plugin(host, "nixl", "/path/libplugin_POSIX.so"),
      .parameters = host.config("nixl.parameters", ""),
      .agent = kAgent,
  });
  if (!engine_->local() || !engine_->serves(FILE_SEG) || !engine_->serves(DRAM_SEG))
    engine_->refuse(Status::kUnsupported, "its engine does not move files to and from host memory");
  const nixl_status_t connected = ask([&] { return engine_->lock()->connect(kAgent); });
  if (connected != NIXL_SUCCESS)
    engine_->refuse(Status::kIo, fmt::format("its engine failed to start: connect returned {}",
                                             static_cast<int>(connected)));
}

Nixl::~Nixl() = default;

uint32_t Nixl::kinds() const noexcept { return plugin::kinds(TOWLINE_MEMORY_DRAM); }

std::unique_ptr<calls::Caller> Nixl::make_caller() { return std::make_unique<NixlCaller>(*this); }

// ---- what the engine knows

Known Nixl::add(nixl_mem_t kind, const nixlBlobDesc& desc, bool as_other_side) {
  Known known;
  known.bytes = desc.len;
  const auto engine = engine_->lock();
  nixl_status_t status = ask([&] { return engine->registerMem(desc, kind, known.metadata); });
  if (status == NIXL_SUCCESS && as_other_side) {
    status = ask([&] { return engine->loadLocalMD(known.metadata, known.own); });
    if (status != NIXL_SUCCESS) (void)ask([&] { return engine->deregisterMem(known.metadata); });
  }
  if (status != NIXL_SUCCESS)
    throw plugin::Failure(
        status_from_errno(error_of(status)),
        fmt::format("nixl: the plugin's engine does not take {} of {} bytes: status {}",
                    kind == FILE_SEG ? "a file" : "memory", desc.len, static_cast<int>(status)));
  return known;
}

bool Nixl::remove(const Known& known) noexcept {
  const auto engine = engine_->lock();
  if (engine_->abandoned()) return false;
  if (known.own != nullptr && known.own != known.metadata)
    (void)ask([&] { return engine->unloadMD(known.own); });
  (void)ask([&] { return engine->deregisterMem(known.metadata); });
  return true;
}

void* Nixl::attach(const calls::PlainFile& file) {
  UniqueFd fd{::fcntl(file.fd(), F_DUPFD_CLOEXEC, 0)};
  if (!fd.valid())
    throw plugin::Failure(status_from_errno(errno),
                          fmt::format("nixl: {}: {}", file.path(), errno_text(errno)));
  const nixlBlobDesc desc(0, file.attributes().bytes, static_cast<uint64_t>(fd.get()), nixl_blob_t{});
  auto known = std::make_unique<Known>(add(FILE_SEG, desc, true));
  known->fd = std::move(fd);
  return known.release();
}

void Nixl::detach(const calls::PlainFile&, void* handle) noexcept {
  std::unique_ptr<Known> known(static_cast<Known*>(handle));
  if (remove(*known)) return;
  Known* const kept = known.release();  // its descriptor stays open
  try {
    const auto engine = engine_->lock();
    engine_->abandon({kept, [](void*) {}});
  } catch (const std::bad_alloc&) {  // not on the list, but `kept` stays anyway
  }
}

bool Nixl::add_memory(const towline_region_ref& region) {
  Known known = add(DRAM_SEG, nixlBlobDesc(region.address, region.bytes, 0, nixl_blob_t{}), false);
  const std::lock_guard lock(mutex_);
  memory_.emplace(region.address, std::move(known));
  return true;
}

void Nixl::remove_memory(const towline_region_ref& region) noexcept {
  Known known;
  {
    const std::lock_guard lock(mutex_);
    const auto [first, last] = memory_.equal_range(region.address);
    const auto found =
        std::find_if(first, last, [&](const auto& entry) { return entry.second.bytes == region.bytes; });
    if (found == last) return;
    known = std::move(found->second);
    memory_.erase(found);
  }
  (void)remove(known);
}

std::optional<nixlBackendMD*> Nixl::metadata_of(uint64_t address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  for (auto next = memory_.upper_bound(address); next != memory_.begin();) {
    --next;
    if (address - next->first <= next->second.bytes && bytes <= next->second.bytes - (address - next->first))
      return next->second.metadata;
  }
  return std::nullopt;
}

// ---- a thread's caller

// Lists given to the engine stay in place until the request is released.
struct NixlCaller::Request {
  explicit Request(bool write) : operation(write ? NIXL_WRITE : NIXL_READ) {}

  const nixl_xfer_op_t operation;
  const std::string agent = kAgent;
  nixl_meta_dlist_t memory{DRAM_SEG};
  nixl_meta_dlist_t files{FILE_SEG};
  nixl_opt_b_args_t args;
  nixlBackendReqH* handle = nullptr;
};

// Engines report a READ past the file's end as a success: only what is there is asked for.
uint64_t NixlCaller::bytes_there(const calls::Piece& piece) noexcept {
  struct stat found = {};
  if (::fstat(piece.file->fd(), &found) != 0) return piece.bytes;  // the engine will say
  const auto end = static_cast<uint64_t>(found.st_size);
  return piece.offset >= end ? 0 : std::min(piece.bytes, end - piece.offset);
}

nixl_status_t NixlCaller::finish(Request& request) {
  Engine& engine = nixl_.engine();
  const uint64_t begun = monotonic_now_ns();
  auto pause = std::chrono::microseconds{10};
  nixl_status_t status = ask([&] {
    return engine.lock()->postXfer(request.operation, request.memory, request.files, request.agent,
                                   request.handle, &request.args);
  });
  while (status == NIXL_IN_PROG) {
    const uint64_t waited = monotonic_now_ns() - begun;
    if (waited >= nixl_.timeout_ns()) break;
    if (waited < kSpinNs) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, kLongestPause);
    }
    status = ask([&] { return engine.lock()->checkXfer(request.handle); });
  }
  return status;
}

void NixlCaller::run(bool write, std::span<calls::Piece> pieces) {
  auto request = std::make_shared<Request>(write);
  for (calls::Piece& piece : pieces) {
    const uint64_t bytes = write ? piece.bytes : bytes_there(piece);
    piece.result = static_cast<int64_t>(bytes);
    if (bytes == 0) continue;
    const std::optional<nixlBackendMD*> metadata = nixl_.metadata_of(piece.memory, bytes);
    if (!metadata) {
      for (calls::Piece& each : pieces) each.result = -EFAULT;
      return;
    }
    request->memory.addDesc(nixlMetaDesc(piece.memory, bytes, 0, *metadata));
    const auto& file = *static_cast<const Known*>(piece.handle);
    request->files.addDesc(nixlMetaDesc(piece.offset, bytes, static_cast<uint64_t>(file.fd.get()), file.own));
  }
  if (request->memory.isEmpty()) return;
  Engine& engine = nixl_.engine();
  nixl_status_t status = ask([&] {
    return engine.lock()->prepXfer(request->operation, request->memory, request->files, request->agent,
                                   request->handle, &request->args);
  });
  if (status == NIXL_SUCCESS) status = finish(*request);
  bool released = request->handle == nullptr;
  if (!released) {
    const auto locked = engine.lock();
    released =
        ask([&] { return locked->releaseReqH(request->handle); }) == NIXL_SUCCESS || status != NIXL_IN_PROG;
    if (!released) engine.abandon(std::move(request));  // which the engine may go on reading
  }
  if (status == NIXL_SUCCESS) return;
  for (calls::Piece& piece : pieces) {
    piece.result = status == NIXL_IN_PROG ? -ETIMEDOUT : -error_of(status);
    piece.code = static_cast<int32_t>(status);
    piece.fenced = status != NIXL_IN_PROG;
  }
}

void NixlCaller::move(bool write, std::span<calls::Piece> pieces) noexcept try {
  run(write, pieces);
} catch (const std::exception&) {  // for want of memory, before anything was posted
  for (calls::Piece& piece : pieces) piece.result = -ENOMEM;
}

}  // namespace towline::nixl_files
