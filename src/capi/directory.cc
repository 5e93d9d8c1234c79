// C API: directories.
#include "directory/directory.h"

#include "agent/errands.h"
#include "capi/handles.h"
#include "towline/directory.h"

using namespace towline;  // NOLINT: C entry points

struct towline_directory {
  std::shared_ptr<Agent> agent;
  std::shared_ptr<DirectoryHost> host;
  std::shared_ptr<Directory> directory;
};
struct towline_directory_call {
  std::shared_ptr<Agent> agent;
  std::shared_ptr<DirectoryCall> call;
};
struct towline_watch {
  std::shared_ptr<Agent> agent;
  std::shared_ptr<Directory> directory;
  std::shared_ptr<DirectoryWatch> watch;
  DirectoryWatch::Event current;
};

namespace {

Directory& of(towline_directory_t* directory) {
  capi::need(directory, "directory");
  directory->agent->check_usable();
  return *directory->directory;
}

// A child of fork can't end its parent's objects, and leaves them.
template <class Handle>
bool forked(const Handle& handle) noexcept {
  return handle.agent->usable() == Status::kForked;
}

// Its handle is there before the call begins: one that was begun is not refused.
template <class Begin>
Status hand_out(towline_directory_t* directory, towline_directory_call_t** call, Begin&& begin) {
  Directory& with = of(directory);
  std::unique_ptr<towline_directory_call> handle;
  if (call != nullptr) handle.reset(new towline_directory_call{directory->agent, nullptr});
  std::shared_ptr<DirectoryCall> begun = begin(with);
  if (call == nullptr) return Status::kOk;
  handle->call = std::move(begun);
  *call = handle.release();
  return Status::kOk;
}

towline_directory_entry_t view(const DirectoryEntry& entry) noexcept {
  return {entry.key.c_str(), entry.value.data(), entry.value.size(), entry.revision};
}

// Closing a directory asks its servers to remove keys, and waits for them.
class Closing final : public Errand {
 public:
  explicit Closing(std::shared_ptr<Directory> directory) noexcept : directory_(std::move(directory)) {}
  bool step(bool) noexcept override {
    directory_->close(TOWLINE_DEFAULT_TIMEOUT);
    return true;
  }
  [[nodiscard]] bool blocks() const noexcept override { return true; }

 private:
  const std::shared_ptr<Directory> directory_;
};

// The outcome, with its sentence for towline_last_error.
int32_t outcome(const char* function, const DirectoryCall& call, Status status) {
  return is_error(status) ? capi::answer(function, status, call.error()) : static_cast<int32_t>(status);
}

}  // namespace

extern "C" {

int32_t towline_directory_open(towline_agent_t* agent, const char* address, towline_directory_t** directory) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    capi::need(address, "address");
    capi::need(directory, "directory");
    auto made =
        std::unique_ptr<towline_directory>(new towline_directory{agent->agent, agent->directories, nullptr});
    made->directory = agent->directories->open(DirectoryAddress::parse(address));  // last: its handle ends it
    *directory = made.release();
    return Status::kOk;
  });
}

int32_t towline_directory_close(towline_directory_t* directory, uint64_t timeout_ns) {
  return capi::guard(__func__, [&] {
    if (directory == nullptr || forked(*directory)) return Status::kOk;
    directory->host->let_go(directory->directory, timeout_ns);
    delete directory;
    return Status::kOk;
  });
}

void towline_directory_release(towline_directory_t* directory) {
  if (directory == nullptr || forked(*directory)) return;
  const std::unique_ptr<towline_directory> ends(directory);
  if (!ends->host->detach(ends->directory)) return;
  const int32_t status = capi::guard(__func__, [&] {
    ends->agent->errands().add(std::make_unique<Closing>(ends->directory));
    return Status::kOk;
  });
  // The agent closes now, or there is no memory: its keys disappear when their lease runs out.
  if (status != TOWLINE_OK) ends->directory->close(0);
}

int32_t towline_directory_info(towline_directory_t* directory, char* json, size_t capacity, size_t* needed) {
  return capi::guard(__func__, [&] {
    const std::string text = of(directory).info();
    return capi::give(text.data(), text.size(), true, json, capacity, needed);
  });
}

int32_t towline_directory_put(towline_directory_t* directory, const char* key, const void* value,
                              size_t bytes, uint32_t flags, uint64_t timeout_ns,
                              towline_directory_call_t** call) {
  return capi::guard(__func__, [&] {
    capi::need(key, "key");
    if (bytes != 0) capi::need(value, "value");
    const std::string_view view(static_cast<const char*>(value), bytes);
    return hand_out(directory, call, [&](Directory& with) { return with.put(key, view, flags, timeout_ns); });
  });
}

int32_t towline_directory_get(towline_directory_t* directory, const char* key, uint32_t flags,
                              uint64_t timeout_ns, towline_directory_call_t** call) {
  return capi::guard(__func__, [&] {
    capi::need(key, "key");
    return hand_out(directory, call, [&](Directory& with) { return with.get(key, flags, timeout_ns); });
  });
}

int32_t towline_directory_delete(towline_directory_t* directory, const char* key, uint32_t flags,
                                 uint64_t timeout_ns, towline_directory_call_t** call) {
  return capi::guard(__func__, [&] {
    capi::need(key, "key");
    return hand_out(directory, call, [&](Directory& with) { return with.remove(key, flags, timeout_ns); });
  });
}

int32_t towline_directory_publish(towline_directory_t* directory, const char* label,
                                  towline_region_t* const* regions, size_t count, uint64_t timeout_ns,
                                  towline_directory_call_t** call) {
  return capi::guard(__func__, [&] {
    (void)of(directory);
    const std::vector<uint64_t> keys = capi::keys_of(*directory->agent, regions, count);
    return hand_out(directory, call, [&](Directory& with) {
      return with.publish(label == nullptr ? "" : label, count != 0 ? &keys : nullptr, timeout_ns);
    });
  });
}

int32_t towline_directory_unpublish(towline_directory_t* directory, const char* label, uint64_t timeout_ns,
                                    towline_directory_call_t** call) {
  return capi::guard(__func__, [&] {
    return hand_out(directory, call, [&](Directory& with) { return with.unpublish(label, timeout_ns); });
  });
}

int32_t towline_directory_fetch(towline_directory_t* directory, const char* name, const char* label,
                                uint32_t flags, uint64_t timeout_ns, towline_directory_call_t** call) {
  return capi::guard(__func__, [&] {
    capi::need(name, "name");
    return hand_out(directory, call, [&](Directory& with) {
      return with.fetch(name, label == nullptr ? "" : label, flags, timeout_ns);
    });
  });
}

int32_t towline_directory_call_poll(towline_directory_call_t* call) {
  if (call == nullptr) return capi::refuse_null(__func__, "call");
  if (forked(*call)) return capi::answer(__func__, Status::kForked);
  return outcome(__func__, *call->call, call->call->poll());
}

int32_t towline_directory_call_wait(towline_directory_call_t* call, uint64_t timeout_ns) {
  if (call == nullptr) return capi::refuse_null(__func__, "call");
  if (forked(*call)) return capi::answer(__func__, Status::kForked);
  const char* const function = __func__;  // inside, it is the lambda's
  return capi::guard(function, [&] { return outcome(function, *call->call, call->call->wait(timeout_ns)); });
}

int32_t towline_directory_call_cancel(towline_directory_call_t* call) {
  return capi::guard(__func__, [&] {
    capi::need(call, "call");
    if (!forked(*call)) call->call->cancel();
    return Status::kOk;
  });
}

const char* towline_directory_call_error(const towline_directory_call_t* call) {
  return call == nullptr || forked(*call) ? "" : call->call->error().c_str();
}

int32_t towline_directory_call_entries(const towline_directory_call_t* call,
                                       towline_directory_entry_t* entries, size_t entry_bytes,
                                       size_t* count) {
  return capi::guard(__func__, [&] {
    capi::need(call, "call");
    capi::need(count, "count");
    capi::check_element(entry_bytes, capi::kLeastDirectoryEntryBytes, "entry_bytes");
    const std::vector<DirectoryEntry>& found = call->call->entries();
    const size_t capacity = entries == nullptr ? 0 : *count;
    *count = found.size();
    for (size_t i = 0; i < std::min(capacity, found.size()); ++i)
      capi::give_element(entries, entry_bytes, i, view(found[i]));
    return Status::kOk;
  });
}

int32_t towline_directory_call_peer(const towline_directory_call_t* call, towline_peer_t** peer) {
  return capi::guard(__func__, [&] {
    capi::need(call, "call");
    capi::need(peer, "peer");
    Peer* const found = call->call->peer();
    if (found == nullptr) fail(Status::kNotFound, "the call is no fetch that succeeded");
    *peer = new towline_peer{call->agent, PeerHold(found)};
    return Status::kOk;
  });
}

int32_t towline_directory_call_wait_async(towline_directory_call_t* call, towline_queue_t* queue,
                                          void* user_data) {
  return capi::guard(__func__, [&] {
    capi::need(call, "call");
    if (forked(*call)) return Status::kForked;
    call->call->tell(capi::queue_for(*call->agent, queue).ticket(TOWLINE_EVENT_DIRECTORY, user_data));
    return Status::kOk;
  });
}

void towline_directory_call_release(towline_directory_call_t* call) {
  if (call == nullptr || forked(*call)) return;
  call->call->cancel();
  delete call;
}

int32_t towline_directory_watch(towline_directory_t* directory, const char* prefix, towline_watch_t** watch) {
  return capi::guard(__func__, [&] {
    capi::need(prefix, "prefix");
    capi::need(watch, "watch");
    Directory& self = of(directory);
    auto made =
        std::unique_ptr<towline_watch>(new towline_watch{directory->agent, directory->directory, {}, {}});
    made->watch = self.watch(prefix);  // last: only its handle ends it
    *watch = made.release();
    return Status::kOk;
  });
}

int32_t towline_watch_next(towline_watch_t* watch, uint64_t timeout_ns, towline_directory_event_t* event) {
  return capi::guard(__func__, [&] {
    capi::need(watch, "watch");
    capi::need(event, "event");
    if (forked(*watch)) return Status::kForked;
    std::string why;
    const Status status = watch->watch->next(timeout_ns, watch->current, why);
    if (status == Status::kNotYet) fail(status, "no event came in time");
    if (status != Status::kOk) fail(status, "the watch has ended: {}", why);
    *event = {watch->current.kind, 0, view(watch->current.entry)};
    return status;
  });
}

int32_t towline_watch_status(towline_watch_t* watch) {
  if (watch == nullptr) return capi::refuse_null(__func__, "watch");
  if (forked(*watch)) return capi::answer(__func__, Status::kForked);
  return capi::answer(__func__, watch->watch->status());
}

int32_t towline_watch_wait_async(towline_watch_t* watch, towline_queue_t* queue, void* user_data) {
  return capi::guard(__func__, [&] {
    capi::need(watch, "watch");
    if (forked(*watch)) return Status::kForked;
    watch->watch->tell(capi::queue_for(*watch->agent, queue).ticket(TOWLINE_EVENT_DIRECTORY, user_data));
    return Status::kOk;
  });
}

void towline_watch_release(towline_watch_t* watch) {
  if (watch == nullptr || forked(*watch)) return;
  watch->directory->unwatch(*watch->watch);
  watch->watch->released();
  delete watch;
}

}  // extern "C"
