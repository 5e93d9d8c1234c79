// The host that a backend gives another one inside it: it passes everything on to the backend's own host, which
// Owner::host() gives. The backend replaces what it has something to say to.
#pragma once

#include <string>

#include "towline/plugin/collective.h"

namespace towline::collectives {

template <class Owner>
towline_collective_host_v1_t relay_host(Owner& owner) {
  towline_collective_host_v1_t made = *owner.host();
  made.context = &owner;
  made.fail = [](void* context, const char* text) {
    const auto& host = *static_cast<Owner*>(context)->host();
    host.fail(host.context, text);
  };
  made.broken = [](void* context, int32_t status, const char* text) {
    const auto& host = *static_cast<Owner*>(context)->host();
    host.broken(host.context, status, text);
  };
  made.store_set = [](void* context, const char* key, const void* value, size_t bytes) -> int32_t {
    const auto& host = *static_cast<Owner*>(context)->host();
    return host.store_set(host.context, key, value, bytes);
  };
  made.store_get = [](void* context, const char* key, uint64_t deadline_ns, void* value, size_t capacity,
                      size_t* bytes) -> int32_t {
    const auto& host = *static_cast<Owner*>(context)->host();
    return host.store_get(host.context, key, deadline_ns, value, capacity, bytes);
  };
  made.config = [](void* context, const char* key, const char* fallback) -> const char* {
    const auto& host = *static_cast<Owner*>(context)->host();
    return host.config(host.context, key, fallback);
  };
  made.environment = [](void* context, const char* name) -> const char* {
    const auto& host = *static_cast<Owner*>(context)->host();
    return host.environment(host.context, name);
  };
  return made;
}

// Keys of its own in the store: they begin with Owner::key_prefix().
template <class Owner>
void prefix_keys(towline_collective_host_v1_t& made) {
  made.store_set = [](void* context, const char* key, const void* value, size_t bytes) -> int32_t {
    const auto& owner = *static_cast<Owner*>(context);
    return owner.host()->store_set(owner.host()->context, (owner.key_prefix() + key).c_str(), value, bytes);
  };
  made.store_get = [](void* context, const char* key, uint64_t deadline_ns, void* value, size_t capacity,
                      size_t* bytes) -> int32_t {
    const auto& owner = *static_cast<Owner*>(context);
    return owner.host()->store_get(owner.host()->context, (owner.key_prefix() + key).c_str(), deadline_ns,
                                   value, capacity, bytes);
  };
}

}  // namespace towline::collectives
