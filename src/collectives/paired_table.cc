// PairedBackend behind a table. Messages are the own backend's; an operation beside a stream is one of either.
#include <cstring>
#include <memory>

#include "base/error.h"
#include "collectives/calls/guarded.h"
#include "collectives/paired_backend.h"

namespace towline::collectives {
namespace paired_slots {
namespace {

// A message, and the backend that it belongs to.
struct Message {
  PairedBackend::Side side;
  towline_collective_message* inside = nullptr;
};

PairedBackend& of(towline_collective_backend* handle) { return *reinterpret_cast<PairedBackend*>(handle); }
Message& of(towline_collective_message* handle) { return *reinterpret_cast<Message*>(handle); }
towline_collective_message* handle_of(std::unique_ptr<Message> message) {
  return reinterpret_cast<towline_collective_message*>(message.release());
}

int32_t never_open(const towline_collective_open_args*, towline_collective_backend**) {
  return TOWLINE_UNSUPPORTED;
}
void close(towline_collective_backend* handle) { delete &of(handle); }
int32_t perform(towline_collective_backend* handle, const towline_collective_t* call, uint64_t number,
                uint64_t deadline_ns) {
  const PairedBackend::Side side = of(handle).side_of(*call);
  return of(handle).ended(side.table.perform(side.backend, call, number, deadline_ns));
}
int32_t issue(towline_collective_backend* handle, const towline_collective_t* call, uint64_t number,
              uint64_t timeout_ns, void* stream) {
  const PairedBackend::Side side = of(handle).side_of(*call);
  return side.table.issue(side.backend, call, number, timeout_ns, stream);
}
int32_t issue_beside(towline_collective_backend* handle, const towline_collective_t* call, uint64_t number,
                     uint64_t timeout_ns, void* stream, towline_collective_message** message) {
  return guarded(of(handle).host(), [&] {
    auto made = std::make_unique<Message>(Message{of(handle).side_of(*call)});
    const Status status{
        made->side.table.issue_beside(made->side.backend, call, number, timeout_ns, stream, &made->inside)};
    if (!is_error(status)) *message = handle_of(std::move(made));
    return status;
  });
}
int32_t issue_norm(towline_collective_backend* handle, const towline_collective_norm_t* norm, uint64_t number,
                   uint64_t timeout_ns, void* stream) {
  const PairedBackend::Side own = of(handle).own();
  return own.table.issue_norm(own.backend, norm, number, timeout_ns, stream);
}
int32_t message_start(towline_collective_backend* handle, const towline_collective_t* call,
                      towline_collective_message** message) {
  return guarded(of(handle).host(), [&] {
    auto made = std::make_unique<Message>(Message{of(handle).own()});
    const Status status{made->side.table.message_start(made->side.backend, call, &made->inside)};
    if (made->inside != nullptr) *message = handle_of(std::move(made));
    return status;
  });
}
int32_t message_test(towline_collective_backend* handle, towline_collective_message* message) {
  const PairedBackend::Side side = of(message).side;
  return of(handle).ended(side.table.message_test(side.backend, of(message).inside));
}
void message_release(towline_collective_backend*, towline_collective_message* message) {
  const std::unique_ptr<Message> mine(&of(message));
  mine->side.table.message_release(mine->side.backend, mine->inside);
}
void message_wait(towline_collective_backend* handle, uint64_t until_ns) {
  const PairedBackend::Side own = of(handle).own();
  own.table.message_wait(own.backend, until_ns);
}
int32_t message_precede(towline_collective_backend*, towline_collective_message* message, void* stream) {
  const PairedBackend::Side side = of(message).side;
  return side.table.message_precede(side.backend, of(message).inside, stream);
}
int32_t messages_together(towline_collective_backend* handle, int32_t begin) {
  const PairedBackend::Side own = of(handle).own();
  return own.table.messages_together(own.backend, begin);
}
void abort(towline_collective_backend* handle, int32_t status, const char* text) {
  of(handle).abort(status, text);
}
int32_t look(towline_collective_backend* handle) { return of(handle).ended(of(handle).look()); }
int32_t describe(towline_collective_backend* handle, char* json, size_t capacity, size_t* needed) {
  return guarded(of(handle).host(), [&] {
    const std::string text = of(handle).describe();
    *needed = text.size() + 1;
    if (capacity >= *needed) std::memcpy(json, text.c_str(), *needed);
    return Status::kOk;
  });
}
int32_t window_open(towline_collective_backend* handle, void* address, uint64_t bytes, uint64_t number,
                    uint64_t deadline_ns, towline_collective_window** window) {
  const PairedBackend::Side own = of(handle).own();
  return own.table.window_open(own.backend, address, bytes, number, deadline_ns, window);
}

}  // namespace
}  // namespace paired_slots

towline_collective_table_v1_t paired_table(const towline_collective_table_v1_t& own) {
  towline_collective_table_v1_t made = own;  // functions of windows take no backend
  made.open = paired_slots::never_open;
  made.close = paired_slots::close;
  made.perform = paired_slots::perform;
  made.message_start = paired_slots::message_start;
  made.message_test = paired_slots::message_test;
  made.message_release = paired_slots::message_release;
  made.message_wait = paired_slots::message_wait;
  made.message_source = nullptr;
  made.abort = paired_slots::abort;
  made.describe = paired_slots::describe;
  made.issue = paired_slots::issue;
  made.issue_beside = paired_slots::issue_beside;
  made.issue_norm = paired_slots::issue_norm;
  made.message_precede = paired_slots::message_precede;
  made.messages_together = paired_slots::messages_together;
  if (own.look != nullptr) made.look = paired_slots::look;
  if (own.window_open != nullptr) made.window_open = paired_slots::window_open;
  made.hops_open = nullptr;
  made.issue_steps = nullptr;
  made.perform_steps = nullptr;
  made.strand_open = nullptr;
  made.start_steps = nullptr;
  made.watch_replays = nullptr;
  return made;
}

int32_t open_paired(const towline_collective_open_args& args, const towline_collective_table_v1_t& own,
                    towline_collective_backend** backend) {
  return guarded(args.host, [&] {
    *backend = reinterpret_cast<towline_collective_backend*>(new PairedBackend(args, own));
    return Status::kOk;
  });
}

}  // namespace towline::collectives
