// HostsBackend behind a table. Messages are those of the backend inside.
#include <sched.h>

#include <cstring>
#include <memory>

#include "base/clock.h"
#include "base/error.h"
#include "collectives/calls/guarded.h"
#include "collectives/hosts_backend.h"

namespace towline::collectives {
namespace hosts_slots {
namespace {

HostsBackend& of(towline_collective_backend* handle) { return *reinterpret_cast<HostsBackend*>(handle); }

// Sets the reason of the break together with the status.
int32_t tell(const HostsBackend& self, int32_t status) {
  if (status < 0 && self.breaker().broken()) {
    self.host()->fail(self.host()->context, self.breaker().breakage().text.c_str());
    return static_cast<int32_t>(self.breaker().status());
  }
  return status;
}

int32_t never_open(const towline_collective_open_args*, towline_collective_backend**) {
  return TOWLINE_UNSUPPORTED;
}
void close(towline_collective_backend* handle) { delete &of(handle); }
int32_t perform(towline_collective_backend* handle, const towline_collective_t* call, uint64_t number,
                uint64_t deadline_ns) {
  return guarded(of(handle).host(), [&] {
    return Status{
        tell(of(handle), static_cast<int32_t>(of(handle).perform(*call, number, Deadline::at(deadline_ns))))};
  });
}
int32_t issue(towline_collective_backend* handle, const towline_collective_t* call, uint64_t number,
              uint64_t timeout_ns, void* stream) {
  return guarded(of(handle).host(), [&] {
    of(handle).issue(*call, number, timeout_ns, stream, nullptr);
    return Status::kOk;
  });
}
int32_t issue_beside(towline_collective_backend* handle, const towline_collective_t* call, uint64_t number,
                     uint64_t timeout_ns, void* stream, towline_collective_message** message) {
  return guarded(of(handle).host(), [&] {
    of(handle).issue(*call, number, timeout_ns, stream, message);
    return Status::kOk;
  });
}
int32_t issue_norm(towline_collective_backend* handle, const towline_collective_norm_t* norm, uint64_t number,
                   uint64_t timeout_ns, void* stream) {
  return guarded(of(handle).host(), [&] {
    of(handle).issue_norm(*norm, number, timeout_ns, stream);
    return Status::kOk;
  });
}
int32_t message_start(towline_collective_backend* handle, const towline_collective_t* call,
                      towline_collective_message** message) {
  return guarded(of(handle).host(), [&] {
    *message = of(handle).start(*call);
    return Status::kOk;
  });
}
// A failure inside breaks the communicator, but the hosts agree on the reason first: until then it is in progress.
int32_t message_test(towline_collective_backend* handle, towline_collective_message* message) {
  const int32_t status = of(handle).inside_table().message_test(of(handle).inside(), message);
  return status < 0 && !of(handle).breaker().broken() ? TOWLINE_IN_PROGRESS : tell(of(handle), status);
}
void message_release(towline_collective_backend* handle, towline_collective_message* message) {
  of(handle).inside_table().message_release(of(handle).inside(), message);
}
void message_wait(towline_collective_backend* handle, uint64_t until_ns) {
  of(handle).inside_table().message_wait(of(handle).inside(), until_ns);
}
int32_t message_precede(towline_collective_backend* handle, towline_collective_message* message,
                        void* stream) {
  return guarded(of(handle).host(), [&] {
    of(handle).check_inside(of(handle).inside_table().message_precede(of(handle).inside(), message, stream));
    return Status::kOk;
  });
}
int32_t messages_together(towline_collective_backend* handle, int32_t begin) {
  return tell(of(handle), of(handle).inside_table().messages_together(of(handle).inside(), begin));
}
void abort(towline_collective_backend* handle, int32_t status, const char* text) {
  of(handle).abort(Status{status}, text);
}
// As for message_test, but there is no later look: the reason that the hosts agree on is waited for.
int32_t look(towline_collective_backend* handle) {
  constexpr uint64_t kAgreedWithinNs = 1'000'000'000;
  const towline_collective_table_v1_t& inside = of(handle).inside_table();
  if (inside.look != nullptr && inside.look(of(handle).inside()) < 0) {
    const uint64_t until = monotonic_now_ns() + kAgreedWithinNs;
    while (!of(handle).breaker().broken() && monotonic_now_ns() < until) ::sched_yield();
  }
  return tell(of(handle), static_cast<int32_t>(of(handle).breaker().status()));
}
int32_t describe(towline_collective_backend* handle, char* json, size_t capacity, size_t* needed) {
  return guarded(of(handle).host(), [&] {
    const std::string text = of(handle).describe();
    *needed = text.size() + 1;
    if (capacity >= *needed) std::memcpy(json, text.c_str(), *needed);
    return Status::kOk;
  });
}

// ---- Windows

HostsWindow& window_of(towline_collective_window* handle) { return *reinterpret_cast<HostsWindow*>(handle); }

template <class Call>
int32_t with_window(towline_collective_window* handle, Call&& call) {
  const HostsBackend& backend = window_of(handle).backend();
  return tell(backend, guarded(backend.host(), [&] {
                call(window_of(handle));
                return Status::kOk;
              }));
}

int32_t window_open(towline_collective_backend* handle, void* address, uint64_t bytes, uint64_t number,
                    uint64_t deadline_ns, towline_collective_window** window) {
  return guarded(of(handle).host(), [&] {
    if (of(handle).inside_table().window_open == nullptr)
      fail(Status::kUnsupported, "this backend of GPUs has no windows");
    *window = reinterpret_cast<towline_collective_window*>(
        new HostsWindow(of(handle), address, bytes, number, Deadline::at(deadline_ns)));
    return Status::kOk;
  });
}
int32_t window_close(towline_collective_window* handle, uint64_t number, uint64_t deadline_ns) {
  const std::unique_ptr<HostsWindow> window(&window_of(handle));
  return with_window(handle, [&](HostsWindow& mine) { mine.close(number, Deadline::at(deadline_ns)); });
}
int32_t window_map(towline_collective_window* handle, int32_t rank, void** address, uint64_t* bytes) {
  window_of(handle).map(rank, *address, *bytes);
  return TOWLINE_OK;
}
int32_t window_put(towline_collective_window* handle, int32_t rank, uint64_t offset, const void* from,
                   uint64_t bytes) {
  return with_window(handle, [&](HostsWindow& window) { window.put(rank, offset, from, bytes); });
}
int32_t window_get(towline_collective_window* handle, int32_t rank, uint64_t offset, void* to,
                   uint64_t bytes) {
  return with_window(handle, [&](HostsWindow& window) { window.get(rank, offset, to, bytes); });
}
int32_t window_signal(towline_collective_window* handle, int32_t rank) {
  return with_window(handle, [&](HostsWindow& window) { window.signal(rank); });
}
int32_t window_wait_signal(towline_collective_window* handle, int32_t rank, uint64_t deadline_ns) {
  Status status = Status::kOk;
  const int32_t failed = with_window(
      handle, [&](HostsWindow& window) { status = window.wait_signal(rank, Deadline::at(deadline_ns)); });
  return failed < 0 ? failed : static_cast<int32_t>(status);
}
int32_t window_issue(towline_collective_window* handle, const towline_window_call_t* call,
                     uint64_t timeout_ns, void* stream) {
  return with_window(handle, [&](HostsWindow& window) { window.issue(*call, timeout_ns, stream); });
}
int32_t window_symmetric(towline_collective_window* handle, void* symmetric, size_t bytes) {
  return with_window(handle, [&](HostsWindow& window) { window.symmetric(symmetric, bytes); });
}

}  // namespace
}  // namespace hosts_slots

const towline_collective_table_v1_t& hosts_table() {
  static const towline_collective_table_v1_t table = [] {
    towline_collective_table_v1_t made = {};
    made.struct_size = sizeof made;
    made.major = TOWLINE_COLLECTIVE_MAJOR;
    made.version = "1";
    made.open = hosts_slots::never_open;
    made.close = hosts_slots::close;
    made.perform = hosts_slots::perform;
    made.message_start = hosts_slots::message_start;
    made.message_test = hosts_slots::message_test;
    made.message_release = hosts_slots::message_release;
    made.message_wait = hosts_slots::message_wait;
    made.abort = hosts_slots::abort;
    made.describe = hosts_slots::describe;
    made.issue = hosts_slots::issue;
    made.issue_beside = hosts_slots::issue_beside;
    made.issue_norm = hosts_slots::issue_norm;
    made.message_precede = hosts_slots::message_precede;
    made.messages_together = hosts_slots::messages_together;
    made.look = hosts_slots::look;
    made.window_open = hosts_slots::window_open;
    made.window_close = hosts_slots::window_close;
    made.window_map = hosts_slots::window_map;
    made.window_put = hosts_slots::window_put;
    made.window_get = hosts_slots::window_get;
    made.window_signal = hosts_slots::window_signal;
    made.window_wait_signal = hosts_slots::window_wait_signal;
    made.window_issue = hosts_slots::window_issue;
    made.window_symmetric = hosts_slots::window_symmetric;
    return made;
  }();
  return table;
}

int32_t open_over_hosts(const towline_collective_open_args& args, const towline_collective_table_v1_t& inside,
                        const std::vector<std::vector<int>>& hosts, towline_collective_backend** backend) {
  return guarded(args.host, [&] {
    *backend = reinterpret_cast<towline_collective_backend*>(new HostsBackend(args, inside, hosts));
    return Status::kOk;
  });
}

}  // namespace towline::collectives
