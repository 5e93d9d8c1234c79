// HostsBackend behind a table. Messages are those of the backend inside.
#include <cstring>

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
int32_t issue_norm(towline_collective_backend* handle, const towline_collective_norm_t*, uint64_t, uint64_t,
                   void*) {
  return guarded(of(handle).host(), [&]() -> Status {
    fail(
        Status::kUnsupported,
        "all_reduce is not fused with RMSNorm between hosts: issue the all_reduce, and normalise its result");
  });
}
int32_t message_start(towline_collective_backend* handle, const towline_collective_t* call,
                      towline_collective_message** message) {
  return guarded(of(handle).host(), [&] {
    *message = of(handle).start(*call);
    return Status::kOk;
  });
}
int32_t message_test(towline_collective_backend* handle, towline_collective_message* message) {
  return tell(of(handle), of(handle).inside_table().message_test(of(handle).inside(), message));
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
int32_t describe(towline_collective_backend* handle, char* json, size_t capacity, size_t* needed) {
  return guarded(of(handle).host(), [&] {
    const std::string text = of(handle).describe();
    *needed = text.size() + 1;
    if (capacity >= *needed) std::memcpy(json, text.c_str(), *needed);
    return Status::kOk;
  });
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
