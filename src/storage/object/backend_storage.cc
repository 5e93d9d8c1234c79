// Opening, querying, listing and committing: by the thread that asks, which waits for the server.
#include <fmt/format.h>

#include <algorithm>

#include "base/id.h"
#include "storage/object/backend.h"
#include "storage/object/checksum.h"
#include "storage/object/upload.h"
#include "towline/storage.h"
#include "towline/towline.h"

namespace towline::object {

namespace {

[[noreturn]] void refuse(Status status, std::string text) { throw plugin::Failure(status, std::move(text)); }

void fill(const Version& version, towline_storage_attributes& attributes) {
  attributes = {sizeof attributes, version.exists ? 1u : 0u,
                version.exists ? uint32_t{TOWLINE_MEMORY_OBJECT} : 0u, version.bytes, version.modified_ns};
}

Object& object_of(towline_storage* storage) noexcept { return *reinterpret_cast<Object*>(storage); }

// Names the missing parts of a replacement; checks the order and size of its parts.
void check_parts(const Object& object, const Settings& settings) {
  uint64_t at = 0;
  uint64_t last_bytes = settings.least_part_bytes;
  for (const auto& [number, part] : object.parts) {
    if (part.begin != at)
      refuse(Status::kInvalidArgument,
             fmt::format("{}: bytes {} to {} have not been written", object.name().text(), at, part.begin));
    if (last_bytes < settings.least_part_bytes)
      refuse(Status::kInvalidArgument,
             fmt::format("{}: the part before byte {} has {} bytes, and only the last one may "
                         "have less than {}",
                         object.name().text(), at, last_bytes, settings.least_part_bytes));
    at += part.bytes;
    last_bytes = part.bytes;
  }
  if (at == 0)
    refuse(Status::kInvalidArgument, fmt::format("{}: nothing has been written", object.name().text()));
}

void begin_commit(Object& object, const Settings& settings) {
  const std::lock_guard lock(object.replacement_mutex);
  if (object.stage == Object::Stage::kCommitted)
    refuse(Status::kStale, object.name().text() + " has been committed already");
  if (object.stage == Object::Stage::kCommitting)
    refuse(Status::kBusy, object.name().text() + " is being committed already");
  check_parts(object, settings);
  object.stage = Object::Stage::kCommitting;
}

// An object that is written new, or whose size the application knows, is not looked up where nothing depends on what
// is there: a round trip for each of many small objects would cost more than the objects. One that is written whole but
// read in several requests is looked up, for its checksum.
bool needs_look(const towline_storage_args& args, const Settings& settings) noexcept {
  if ((args.flags & (TOWLINE_STORAGE_CONDITIONAL | TOWLINE_STORAGE_REPLACE)) != 0) return true;
  constexpr uint32_t kAnew = TOWLINE_STORAGE_CREATE | TOWLINE_STORAGE_TRUNCATE;
  if ((args.flags & kAnew) == kAnew) return false;
  const bool known = (args.access & TOWLINE_ACCESS_WRITE) == 0 ||
                     (settings.writes_whole && (args.flags & TOWLINE_STORAGE_CREATE) != 0 &&
                      args.bytes <= settings.part_bytes);
  return args.bytes == 0 || !known;
}

}  // namespace

// HEAD answers without a body: where it is refused, a GET of a byte says why.
Version Backend::look(const ObjectName& name) {
  const uint64_t deadline_ns = service_.control_deadline_ns();
  service_.credentials.wait_until_ready(deadline_ns);
  Client& client = next_client();
  Call head;
  protocol().make_head(head, name);
  head.deadline_ns = deadline_ns;
  Answer answer = client.ask(head);
  if (!answer.ok() && answer.http_status != 0 && monotonic_now_ns() < deadline_ns) {
    Call byte;
    byte.method = "GET";
    byte.name = name;
    byte.headers = {{"range", "bytes=0-0"}};
    byte.deadline_ns = deadline_ns;
    Answer why = client.ask(byte);
    // It succeeds if the clock or the keys were the problem: those are corrected by now.
    answer = why.ok() ? client.ask(head) : std::move(why);
  }
  if (answer.ok()) return protocol().version_of(answer.headers);
  const bool absent = answer.code.empty() || answer.code == "NoSuchKey" || answer.code == "BlobNotFound" ||
                      answer.code == "NotFound";
  if (answer.status == Status::kNotFound && absent) return {.looked = true};
  throw plugin::Failure(answer.status, answer.code == "AccessDenied"
                                           ? answer.text + " (the key may also not be there)"
                                           : answer.text);
}

int32_t Backend::storage_open(const towline_storage_args& args, towline_storage** storage,
                              towline_storage_attributes& attributes) {
  if (args.uri == nullptr) refuse(Status::kUnsupported, "a descriptor is no object");
  ObjectName name = protocol().parse_uri(args.uri);
  start_clients();
  service_.credentials.wait_until_ready(service_.control_deadline_ns());
  const bool makes = (args.flags & (TOWLINE_STORAGE_CREATE | TOWLINE_STORAGE_REPLACE)) != 0;
  const bool conditional = (args.flags & TOWLINE_STORAGE_CONDITIONAL) != 0;
  if (conditional && !protocol().has_conditions())
    refuse(Status::kUnsupported,
           fmt::format("{}: a write here can't be made to depend on what is there (conditional)",
                       shown(name.text())));
  Version version = {.exists = !makes, .bytes = args.bytes};
  if (needs_look(args, service_.settings)) {
    try {
      version = look(name);
    } catch (const plugin::Failure& failure) {
      // A client with write access only can't see whether the object exists.
      if (!makes || conditional || failure.status() != Status::kPermissionDenied ||
          std::string_view(failure.what()).find("AccessDenied") == std::string_view::npos)
        throw;
    }
  }
  if (!version.exists && !makes)
    refuse(Status::kNotFound, fmt::format("{} is not there; option create makes it", shown(name.text())));
  if ((args.flags & TOWLINE_STORAGE_TRUNCATE) != 0) {
    version.bytes = 0;
    version.crc32c.clear();
    version.sha256.clear();
  }
  if ((args.access & TOWLINE_ACCESS_WRITE) != 0) reap_old_uploads(name);
  fill(version, attributes);
  attributes.kind = TOWLINE_MEMORY_OBJECT;
  std::unique_lock lock(objects_mutex_);
  const uint64_t id = ++last_object_;
  lock.unlock();
  auto object = std::make_unique<Object>(id, std::move(name), args, std::move(version));
  if (object->replaces()) object->upload_id = begin_upload(*object);
  *storage = reinterpret_cast<towline_storage*>(object.get());
  lock.lock();
  objects_.emplace(id, std::move(object));
  return TOWLINE_OK;
}

std::string Backend::begin_upload(const Object& object) {
  if (!protocol().keeps_uploads()) return Id::random().to_hex();
  Call call;
  std::string upload_id;
  protocol().make_create(call, object, service_.settings.checksum);
  call.check = [&](const Answer& answer) { return check_created(answer, upload_id); };
  call.deadline_ns = service_.control_deadline_ns();
  if (const Answer answer = next_client().ask(call); !answer.ok())
    throw plugin::Failure(answer.status, answer.text);
  return upload_id;
}

// Removes what killed writers left under this key.
void Backend::reap_old_uploads(const ObjectName& name) {
  const uint64_t age_ns = service_.settings.reap_after_ns;
  if (age_ns == UINT64_MAX || !protocol().keeps_uploads()) return;
  Call call;
  call.method = "GET";
  call.name.bucket = name.bucket;
  call.query = {{"uploads", ""}, {"prefix", name.key}};
  call.deadline_ns = service_.control_deadline_ns();
  const Answer answer = next_client().ask(call);
  const auto uploads = answer.ok() ? decode_uploads(answer.body) : std::nullopt;
  if (!uploads) {
    service_.note_failure("looking for unfinished uploads: " + answer.text);
    return;
  }
  const std::time_t now = std::time(nullptr) + service_.clock_offset_s.load();
  for (const Upload& upload : *uploads) {
    const auto age_s = static_cast<int64_t>(now - upload.initiated);
    if (upload.key != name.key || age_s < 0 || static_cast<uint64_t>(age_s) < age_ns / kSecondNs) continue;
    host().log(2,
               fmt::format("aborting the upload {} of {}, {} s old", shown(upload.id), name.text(), age_s));
    reaper_->add(name, upload.id);
  }
}

int32_t Backend::storage_query(const char* uri, towline_storage_attributes& attributes) {
  const ObjectName name = protocol().parse_uri(uri);
  start_clients();
  fill(look(name), attributes);
  return TOWLINE_OK;
}

int32_t Backend::storage_list(const char* prefix, towline_storage_found_fn found, void* argument) {
  const ObjectName name = protocol().parse_prefix(prefix);
  start_clients();
  service_.credentials.wait_until_ready(service_.control_deadline_ns());
  std::string next;
  do {  // each page has its own time
    Call call;
    protocol().make_list(call, name, next);
    call.deadline_ns = service_.control_deadline_ns();
    const Answer answer = next_client().ask(call);
    if (!answer.ok()) throw plugin::Failure(answer.status, answer.text);
    const auto listing = protocol().decode_list(answer.body);
    if (!listing) refuse(Status::kProtocol, fmt::format("{}: the listing makes no sense", shown(prefix)));
    if (!next.empty() && listing->next == next)
      refuse(Status::kProtocol,
             fmt::format("{}: the listing does not end: its next page is the same one", shown(prefix)));
    for (const ListedObject& object : listing->objects) {
      const std::string uri = ObjectName{name.bucket, object.key, name.scheme}.text();
      const towline_storage_attributes attributes = {sizeof attributes, 1, TOWLINE_MEMORY_OBJECT,
                                                     object.bytes, object.modified_ns};
      if (found(argument, uri.c_str(), &attributes) != 0) return TOWLINE_OK;
    }
    next = listing->next;
  } while (!next.empty());
  return TOWLINE_OK;
}

// Is what should have been made there? Then `version` has its ETag; else throws what the commit came to.
void Backend::settle_commit(const Object& object, Version& version, const Answer& lost) {
  std::string why;
  try {
    Version there = look(object.name());
    if (is_what_was_made(there, version)) {
      version = std::move(there);
      return;
    }
  } catch (const plugin::Failure& failure) {
    why = fmt::format(" ({})", failure.what());
  }
  throw plugin::Failure(lost.ok() ? Status::kIo : lost.status,
                        lost.uncertain ? why_not_there(lost, object.name()) + why : lost.text);
}

int32_t Backend::storage_commit(towline_storage* storage) {
  Object& object = object_of(storage);
  if (!object.replaces()) return TOWLINE_OK;  // what is done is durable
  begin_commit(object, service_.settings);
  try {
    object.set_version(complete(object));
  } catch (...) {
    const std::lock_guard lock(object.replacement_mutex);
    object.stage = Object::Stage::kOpen;
    throw;
  }
  const std::lock_guard lock(object.replacement_mutex);
  object.stage = Object::Stage::kCommitted;
  object.upload_id.clear();
  return TOWLINE_OK;
}

Version Backend::complete(const Object& object) {
  Call call;
  protocol().make_complete(call, object, object.upload_id, object.parts, service_.settings.checksum);
  object.add_conditions(call.headers);
  call.check = [this](Answer& done) { return protocol().check_completed(done); };
  call.deadline_ns = service_.control_deadline_ns();
  const Answer answer = next_client().ask(call);
  Version version = {.looked = true, .exists = true};
  for (const auto& [number, part] : object.parts) version.bytes += part.bytes;
  if (service_.settings.checksum == Checksum::kCrc32c) version.crc32c = crc32c_text(joined_crc(object.parts));
  if (protocol().tags_writes()) version.tag = object.upload_id;
  if (!answer.ok()) {
    // An attempt before may have done it, with its answer lost: then there is no such upload any more.
    if (!answer.uncertain && answer.code != "NoSuchUpload") throw plugin::Failure(answer.status, answer.text);
    settle_commit(object, version, answer);
  } else {
    version.etag = etag_of(answer);
    // A server that was killed during an attempt before may take that for still at work, and answer so
    // although nobody is.
    if (answer.uncertain) settle_commit(object, version, answer);
  }
  return version;
}

void Backend::storage_close(towline_storage* storage) noexcept {
  std::unique_ptr<Object> object;
  {
    std::lock_guard lock(objects_mutex_);
    const auto found = objects_.find(object_of(storage).id());
    if (found == objects_.end()) return;
    object = std::move(found->second);
    objects_.erase(found);
  }
  if (object->upload_id.empty() || !protocol().keeps_uploads()) return;
  try {
    reaper_->add(object->name(), object->upload_id);
  } catch (const std::exception& error) {
    host().log(
        1, fmt::format("the unfinished upload of {} stays behind: {}", object->name().text(), error.what()));
  }
}

}  // namespace towline::object
