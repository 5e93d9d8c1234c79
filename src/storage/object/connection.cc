#include "storage/object/connection.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstring>

#include "storage/object/backend.h"
#include "towline/towline.h"

namespace towline::object {

const plugin::Host& Connection::host() const noexcept { return backend_.host(); }

// ---- regions

int32_t Connection::import(const towline_region_args& args, const void* token, size_t token_bytes,
                           towline_import** import, char how[64]) {
  if (args.region.kind != TOWLINE_OBJECT)
    return host().refuse(Status::kUnsupported, "object: only objects are reached");
  uint64_t id = 0;
  if (token == nullptr || token_bytes != sizeof id)
    return host().refuse(Status::kProtocol, "object: the region's token makes no sense");
  std::memcpy(&id, token, sizeof id);
  Object* object = backend_.find(id);
  if (object == nullptr) return host().refuse(Status::kStale, "object: the object has been deregistered");
  *import = reinterpret_cast<towline_import*>(object);
  std::snprintf(how, 64, "%s", object->replaces() ? "multipart upload" : "S3");
  return TOWLINE_OK;
}

// ---- plans

int32_t Connection::prepare(const towline_prepare_args& args, towline_prepared** out) {
  const towline_plan& plan = *args.plan;
  for (uint64_t i = 0; i < plan.local->region_count; ++i) {
    if (plan.local->regions[i].kind != TOWLINE_DRAM)
      return host().refuse(Status::kUnsupported,
                           "object: the local list must be memory: objects go through it");
  }
  auto prepared = std::make_unique<Prepared>();
  prepared->connection = reinterpret_cast<towline_connection*>(this);
  prepared->plan = &plan;
  prepared->op = args.op;
  prepared->queue = &backend_.queue(worker_);
  for (uint64_t i = 0; i < plan.remote->region_count; ++i) {
    auto* object = reinterpret_cast<Object*>(args.remote[i]);
    std::lock_guard lock(object->replacement_mutex);
    if (prepared->write() && object->committed)
      return host().refuse(
          Status::kPermissionDenied,
          fmt::format("object: {} has been committed: register it anew", object->name().text()));
    if (!prepared->write() && object->replaces() && !object->committed)
      return host().refuse(
          Status::kPermissionDenied,
          fmt::format("object: {} can be read once it has been committed", object->name().text()));
    prepared->objects.push_back(object);
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
  backend_.queue(worker_).close(*this);
  backend_.release(this);
}

std::string Connection::describe() const { return backend_.describe(worker_); }

}  // namespace towline::object
