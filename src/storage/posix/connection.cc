#include "storage/posix/connection.h"

#include <fmt/format.h>

#include <cstdio>

#include "storage/posix/backend.h"
#include "towline/towline.h"

namespace towline::posix {

namespace {

struct Unprepare {
  void operator()(Prepared* prepared) const noexcept { Connection::unprepare(prepared); }
};

}  // namespace

Connection::Connection(Backend& backend, uint32_t worker, void* peer)
    : OwnConnection(backend.host(), Backend::kNames, worker, peer), backend_(backend) {}

// ---- regions

int32_t Connection::import(const towline_region_args& args, const void* token, size_t token_bytes,
                           towline_import** import, char how[64]) {
  if (args.region.kind != TOWLINE_MEMORY_FILE && args.region.kind != TOWLINE_MEMORY_BLOCK)
    return host().refuse(Status::kUnsupported, "posix: only files and block devices are reached");
  uint64_t id = 0;
  if (const int32_t status = read_token(token, token_bytes, id); status != TOWLINE_OK) return status;
  const File* file = backend_.find(id);
  if (file == nullptr) return host().refuse(Status::kStale, "posix: the file has been closed");
  *import = reinterpret_cast<towline_import*>(const_cast<File*>(file));
  std::snprintf(how, 64, "%s", file->direct() ? "direct I/O" : "page cache");
  return TOWLINE_OK;
}

// ---- plans

int32_t Connection::prepare(const towline_prepare_args& args, towline_prepared** out) {
  const towline_plan& plan = *args.plan;
  if (const int32_t status = check_local_list(plan); status != TOWLINE_OK) return status;
  std::unique_ptr<Prepared, Unprepare> prepared(new Prepared());
  prepared->queue = &backend_.queue(worker());
  prepared->connection = reinterpret_cast<towline_connection*>(this);
  prepared->plan = &plan;
  prepared->op = args.op;
  for (uint64_t i = 0; i < plan.remote->region_count; ++i) {
    const File* file = reinterpret_cast<const File*>(args.remote[i]);
    if (prepared->write() && file->committed())
      return host().refuse(Status::kPermissionDenied,
                           fmt::format("posix: {} has been committed: register it anew", file->name()));
    prepared->direct = prepared->direct || file->direct();
    prepared->syncs = prepared->syncs || (prepared->write() && file->syncs());
    prepared->files.push_back(file);
  }
  for (uint64_t i = 0; i < plan.local->region_count; ++i)
    prepared->registered = prepared->registered && args.local[i] != nullptr;
  prepared->queue->get_ready(*prepared);
  const Settings& settings = backend_.settings();
  if (settings.engine == Engine::kAuto && !prepared->write() && !prepared->direct)
    prepared->flags = TOWLINE_PREPARED_CACHED;
  const bool may_try = settings.engine == Engine::kAuto || settings.engine == Engine::kPread;
  if (may_try && !prepared->direct && !prepared->syncs && plan.bytes <= settings.inline_bytes) {
    prepared->flags |= TOWLINE_PREPARED_CONCURRENT | TOWLINE_PREPARED_IMMEDIATE | TOWLINE_PREPARED_TRY;
    if (towline_segment segment; plugin::one_segment(plan, segment)) {
      prepared->single_fd = prepared->files[segment.remote_region]->fd();
      prepared->single_offset = segment.remote;
      prepared->single = {reinterpret_cast<void*>(segment.local), segment.length};
    } else {
      prepared->queue->get_batch(*prepared);
    }
  }
  *out = prepared.release();
  return TOWLINE_OK;
}

void Connection::cancel(uint64_t cookie) noexcept { backend_.queue(worker()).cancel(cookie); }

// ---- the end

void Connection::disconnect() noexcept {
  backend_.queue(worker()).close(*this, Status::kPeerLost);
  backend_.release(this);
}

std::string Connection::describe() const { return backend_.queue(worker()).describe(); }

}  // namespace towline::posix
