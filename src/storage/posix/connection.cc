#include "storage/posix/connection.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstring>

#include "storage/posix/backend.h"
#include "towline/towline.h"

namespace towline::posix {

const plugin::Host& Connection::host() const noexcept { return backend_.host(); }

// ---- regions

int32_t Connection::import(const towline_region_args& args, const void* token, size_t token_bytes,
                           towline_import** import, char how[64]) {
  if (args.region.kind != TOWLINE_FILE && args.region.kind != TOWLINE_BLOCK)
    return host().refuse(Status::kUnsupported, "posix: only files and block devices are reached");
  uint64_t id = 0;
  if (token == nullptr || token_bytes != sizeof id)
    return host().refuse(Status::kProtocol, "posix: the region's token makes no sense");
  std::memcpy(&id, token, sizeof id);
  const File* file = backend_.find(id);
  if (file == nullptr) return host().refuse(Status::kStale, "posix: the file has been closed");
  *import = reinterpret_cast<towline_import*>(const_cast<File*>(file));
  std::snprintf(how, 64, "%s", file->direct() ? "direct I/O" : "page cache");
  return TOWLINE_OK;
}

// ---- plans

int32_t Connection::prepare(const towline_prepare_args& args, towline_prepared** out) {
  const towline_plan& plan = *args.plan;
  for (uint64_t i = 0; i < plan.local->region_count; ++i) {
    if (plan.local->regions[i].kind != TOWLINE_DRAM)
      return host().refuse(Status::kUnsupported, "posix: the local list must be memory: files go through it");
  }
  auto prepared = std::make_unique<Prepared>();
  prepared->connection = reinterpret_cast<towline_connection*>(this);
  prepared->plan = &plan;
  prepared->op = args.op;
  prepared->queue = &backend_.queue(worker_);
  for (uint64_t i = 0; i < plan.remote->region_count; ++i) {
    const File* file = reinterpret_cast<const File*>(args.remote[i]);
    if (prepared->write() && file->committed())
      return host().refuse(Status::kPermissionDenied,
                           fmt::format("posix: {} has been committed: register it anew", file->name()));
    prepared->direct = prepared->direct || file->direct();
    prepared->syncs = prepared->syncs || (prepared->write() && file->syncs());
    prepared->files.push_back(file);
  }
  prepared->queue->get_ready(*prepared);
  const Settings& settings = backend_.settings();
  const bool may_try = settings.engine == Engine::kAuto || settings.engine == Engine::kPread;
  if (may_try && !prepared->direct && !prepared->syncs && plan.bytes <= settings.inline_bytes) {
    prepared->flags = TOWLINE_PREPARED_CONCURRENT | TOWLINE_PREPARED_IMMEDIATE | TOWLINE_PREPARED_TRY;
    towline_segment segments[2];
    plugin::Cursor cursor{plan};
    if (cursor.next(segments, 2, plan.bytes) == 1 && cursor.done()) {
      prepared->single_fd = prepared->files[segments[0].remote_region]->fd();
      prepared->single_offset = segments[0].remote;
      prepared->single = {reinterpret_cast<void*>(segments[0].local), segments[0].length};
    } else {
      prepared->queue->get_batch(*prepared);
    }
  }
  *out = prepared.release();
  return TOWLINE_OK;
}

void Connection::cancel(uint64_t cookie) noexcept { backend_.queue(worker_).cancel(cookie); }

// ---- messages

int32_t Connection::send(const void* message, size_t bytes) noexcept try {
  const auto* begin = static_cast<const uint8_t*>(message);
  messages_.emplace_back(begin, begin + bytes);
  host().wake(worker_);
  return TOWLINE_OK;
} catch (const std::bad_alloc&) {
  return TOWLINE_AGAIN;
}

uint32_t Connection::deliver() noexcept {
  uint32_t done = 0;
  // Those that come in answer wait for the next pass.
  for (size_t count = messages_.size(); count != 0; --count, ++done) {
    const std::vector<uint8_t> message = std::move(messages_.front());
    messages_.pop_front();
    host().message(peer_, message.data(), message.size());
  }
  return done;
}

// ---- the end

void Connection::disconnect() noexcept {
  backend_.queue(worker_).close(*this, Status::kPeerLost);
  backend_.release(this);
}

std::string Connection::describe() const { return backend_.queue(worker_).describe(); }

}  // namespace towline::posix
