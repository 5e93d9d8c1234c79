#include "agent/host_services.h"

#include <cstring>

#include "agent/agent.h"
#include "agent/builtin_backends.h"
#include "agent/link.h"
#include "agent/post.h"
#include "base/log.h"
#include "base/per_thread.h"
#include "base/sync/wake_path.h"
#include "memory/pin_access.h"

namespace towline {

namespace {

Backend& backend_of(void* context) noexcept { return *static_cast<Backend*>(context); }
Agent& agent_of(void* context) noexcept { return *backend_of(context).agent; }

uint64_t now_ns(void* context) { return agent_of(context).now_ns(); }

void log(void* context, int32_t level, const char* text) {
  const std::string& name = backend_of(context).name;
  switch (level) {
    case 0:
      TOWLINE_LOG(kError, "{}: {}", name, text);
      return;
    case 1:
      TOWLINE_LOG(kWarning, "{}: {}", name, text);
      return;
    case 2:
      TOWLINE_LOG(kInfo, "{}: {}", name, text);
      return;
    default:
      TOWLINE_LOG(kDebug, "{}: {}", name, text);
  }
}

void fail_with(void*, const char* text) { set_failure_text(text == nullptr ? "" : text); }

// What a thread was last told of a setting: valid until it asks again.
struct ConfigValue {
  std::string text;
};

const char* config(void* context, const char* key, const char* fallback) {
  std::string& value = PerThread<ConfigValue>::get().text;
  value = agent_of(context).config().get_string(key, fallback == nullptr ? "" : fallback);
  return value.c_str();
}

const towline_identity* self(void* context) { return &agent_of(context).identity(); }
uint32_t worker_count(void* context) { return static_cast<uint32_t>(agent_of(context).workers().size()); }

int32_t watch(void* context, uint32_t worker, int fd, uint32_t events, towline_ready_fn ready,
              void* argument) {
  return agent_of(context).workers()[worker]->watch(fd, events, ready, argument, false);
}
int32_t rewatch(void* context, uint32_t worker, int fd, uint32_t events, towline_ready_fn ready,
                void* argument) {
  return agent_of(context).workers()[worker]->watch(fd, events, ready, argument, true);
}
void unwatch(void* context, uint32_t worker, int fd) { agent_of(context).workers()[worker]->unwatch(fd); }
void wake(void* context, uint32_t worker) { agent_of(context).workers()[worker]->wake(); }
TOWLINE_WAKE_PATH uint32_t urgent_waits(void* context, uint32_t worker) {
  return agent_of(context).workers()[worker]->urgent_waits() ? 1 : 0;
}

// One that a newer or older backend filled in, as this library knows it.
template <class T>
const T* taken(const T* given, size_t minimum, T& room) noexcept {
  if (given->struct_size >= sizeof(T)) [[likely]]
    return given;
  return towline_take(&room, sizeof room, minimum, given) != 0 ? &room : nullptr;
}

void complete(void*, uint64_t cookie, const towline_part_result* given) {
  towline_part_result room;
  const towline_part_result* result = taken(given, TOWLINE_PART_RESULT_MINIMUM, room);
  if (result == nullptr) {
    TOWLINE_LOG(kError, "a backend completed a part with a result of {} bytes: it says nothing",
                given->struct_size);
    room = {sizeof room, TOWLINE_INTERNAL, 0, 0, 0, 0, 0, 0};
    result = &room;
  }
  // Parts live as long as their transfer, which is not destroyed while the backend has any of them.
  auto* part = reinterpret_cast<Part*>(cookie);
  if (!part->submitted) {
    TOWLINE_LOG(kError, "a backend completed a part that is not in flight; ignored");
    return;
  }
  part->post->part_ended(*part, *result);
}

TOWLINE_WAKE_PATH void message(void*, void* peer, const void* data, size_t bytes) {
  static_cast<Link*>(peer)->on_message(static_cast<const uint8_t*>(data), bytes);
}

int32_t accepted(void* context, uint32_t worker, towline_connection* connection,
                 const towline_identity* given, void** peer) {
  towline_identity room;
  const towline_identity* const identity = taken(given, TOWLINE_IDENTITY_MINIMUM, room);
  if (identity == nullptr) {
    set_failure_text("the identity that the backend gives has no struct_size");
    return TOWLINE_INVALID_ARGUMENT;
  }
  return static_cast<int32_t>(
      agent_of(context).accepted(backend_of(context), worker, connection, *identity, peer));
}

void connection_event(void*, void* peer, uint32_t event, int32_t status, const char* text) {
  static_cast<Link*>(peer)->on_event(event, static_cast<Status>(status), text);
}

// A backend that moves bytes by the processor can't use a GPU's address, whatever a peer requests.
int32_t pin(void* context, uint64_t key, uint64_t address, uint64_t bytes, uint32_t access, void** pointer,
            void** pin) {
  const Backend& backend = backend_of(context);
  const bool vram =
      (backend.remote_kinds & (1u << TOWLINE_MEMORY_VRAM)) != 0 && !backend.has_trait(TOWLINE_TRAIT_LANDS);
  access = (access & TOWLINE_ACCESS_ALL) | (vram ? kPinVram : 0);
  return static_cast<int32_t>(agent_of(context).regions().pin(key, address, bytes, access, pointer, pin));
}
void unpin(void*, void* pin) { RegionTable::unpin(pin); }

void served(void*, void* peer, uint32_t direction, uint64_t bytes) {
  static_cast<Link*>(peer)->on_served(direction == TOWLINE_SERVED_READ ? Direction::kTx : Direction::kRx,
                                      bytes);
}

TOWLINE_WAKE_PATH void heard(void*, void* peer) { static_cast<Link*>(peer)->on_heard(); }

void refused(void* context, uint32_t worker, void* peer, int32_t status) {
  if (peer != nullptr) return static_cast<Link*>(peer)->on_refused(static_cast<Status>(status));
  agent_of(context).refused_stranger(backend_of(context).name, worker, static_cast<Status>(status));
}

void granted(void*, void* peer, uint64_t key) { static_cast<Link*>(peer)->on_granted(key); }

int32_t landing(void* context, const towline_landing_table_v1** table, towline_backend** backend) {
  std::string reasons;
  for (const auto& other : backend_of(context).all->backends()) {
    if (other->landing != nullptr && other->open()) {
      *table = other->landing;
      *backend = other->handle;
      return TOWLINE_OK;
    }
    if (other->plugin != nullptr && other->landing == nullptr) continue;
    if (!other->open()) reasons += fmt::format("; {}: {}", other->name, other->why_not_open());
  }
  set_failure_text("no open backend of this agent copies GPU memory (cuda does)" + reasons);
  return TOWLINE_NOT_FOUND;
}

int32_t pin_landing(void* context, uint64_t key, uint64_t address, uint64_t bytes, uint32_t access,
                    uint64_t* device, void** pin) {
  RegionTable& regions = agent_of(context).regions();
  void* pointer = nullptr;
  const Status status =
      regions.pin(key, address, bytes, (access & TOWLINE_ACCESS_ALL) | kPinVram, &pointer, pin);
  if (status != Status::kOk) return static_cast<int32_t>(status);
  bool vram = false;
  const auto look = [&](const Region& region) {
    vram = region.ref.kind == TOWLINE_MEMORY_VRAM;
    *device = region.ref.device;
  };
  if (regions.look_at(key, look) && vram) return TOWLINE_OK;
  RegionTable::unpin(*pin);
  return TOWLINE_PERMISSION_DENIED;
}

int32_t run(void* context, uint32_t worker, void (*work)(void* argument), void* argument) {
  Agent& agent = agent_of(context);
  return static_cast<int32_t>(agent.blocking_work().add(*agent.workers()[worker], work, argument));
}

const towline_plugin_v1_t* builtin(void*, const char* name) {
  for (const BuiltinBackend& each : builtin_backends())
    if (std::strcmp(each.name, name) == 0) return each.plugin();
  return nullptr;
}

}  // namespace

towline_host_v1_t host_services() noexcept {
  return {sizeof(towline_host_v1_t),
          nullptr,
          now_ns,
          log,
          fail_with,
          config,
          self,
          worker_count,
          watch,
          rewatch,
          unwatch,
          wake,
          complete,
          message,
          accepted,
          connection_event,
          pin,
          unpin,
          served,
          heard,
          refused,
          granted,
          landing,
          pin_landing,
          urgent_waits,
          run,
          builtin};
}

}  // namespace towline
