#include "storage/object/connection.h"

#include <fmt/format.h>

#include <cstdio>

#include "storage/object/backend.h"
#include "towline/towline.h"

namespace towline::object {

Connection::Connection(Backend& backend, uint32_t worker, void* peer)
    : OwnConnection(backend.host(), Backend::kNames, worker, peer), backend_(backend) {}

// ---- regions

int32_t Connection::import(const towline_region_args& args, const void* token, size_t token_bytes,
                           towline_import** import, char how[64]) {
  if (args.region.kind != TOWLINE_MEMORY_OBJECT)
    return host().refuse(Status::kUnsupported, "object: only objects are reached");
  uint64_t id = 0;
  if (const int32_t status = read_token(token, token_bytes, id); status != TOWLINE_OK) return status;
  Object* object = backend_.find(id);
  if (object == nullptr) return host().refuse(Status::kStale, "object: the object has been deregistered");
  *import = reinterpret_cast<towline_import*>(object);
  std::snprintf(how, 64, "%s", object->replaces() ? "multipart upload" : "S3");
  return TOWLINE_OK;
}

// ---- plans

int32_t Connection::prepare(const towline_prepare_args& args, towline_prepared** out) {
  const towline_plan& plan = *args.plan;
  if (const int32_t status = check_local_list(plan); status != TOWLINE_OK) return status;
  auto prepared = std::make_unique<Prepared>();
  prepared->connection = reinterpret_cast<towline_connection*>(this);
  prepared->plan = &plan;
  prepared->op = args.op;
  prepared->queue = &backend_.queue(worker());
  for (uint64_t i = 0; i < plan.remote->region_count; ++i) {
    auto* object = reinterpret_cast<Object*>(args.remote[i]);
    std::lock_guard lock(object->replacement_mutex);
    if (prepared->write() && object->stage != Object::Stage::kOpen)
      return host().refuse(Status::kPermissionDenied,
                           fmt::format("object: {} {} committed: register it anew", object->name().text(),
                                       object->stage == Object::Stage::kCommitted ? "has been" : "is being"));
    if (!prepared->write() && object->replaces() && object->stage != Object::Stage::kCommitted)
      return host().refuse(
          Status::kPermissionDenied,
          fmt::format("object: {} can be read once it has been committed", object->name().text()));
    prepared->objects.push_back(object);
  }
  *out = prepared.release();
  return TOWLINE_OK;
}

void Connection::cancel(uint64_t cookie) noexcept { backend_.queue(worker()).cancel(cookie); }

// ---- the end

void Connection::disconnect() noexcept {
  backend_.queue(worker()).close(*this);
  backend_.release(this);
}

std::string Connection::describe() const { return backend_.describe(worker()); }

}  // namespace towline::object
