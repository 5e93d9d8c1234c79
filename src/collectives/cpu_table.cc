// The CPU backend behind its table.
#include <cstring>
#include <memory>

#include "base/error.h"
#include "collectives/backend.h"
#include "collectives/calls/guarded.h"
#include "collectives/calls/types.h"
#include "collectives/cpu_backend.h"
#include "collectives/window.h"

struct towline_collective_backend {
  const towline_collective_host_v1_t* host;
  towline::collectives::CpuBackend backend;
};
struct towline_collective_message {
  towline::collectives::Message message;
};
struct towline_collective_window {
  towline_collective_backend* owner;
  towline::collectives::Window window;
};

namespace towline::collectives {
namespace {

// Sets the reason of the break together with the status.
int32_t tell(towline_collective_backend* self, Status status) {
  if (is_error(status))
    self->host->fail(self->host->context, self->backend.breaker().breakage().text.c_str());
  return static_cast<int32_t>(status);
}

int32_t open(const towline_collective_open_args* args, towline_collective_backend** backend) {
  return guarded(args->host, [&] {
    *backend = new towline_collective_backend{args->host, CpuBackend(*args)};
    return Status::kOk;
  });
}

void close(towline_collective_backend* self) { delete self; }

int32_t perform(towline_collective_backend* self, const towline_collective_t* call, uint64_t number,
                uint64_t deadline_ns) {
  const Status status = self->backend.perform(*call, number, Deadline::at(deadline_ns));
  return is_error(status) ? tell(self, status) : TOWLINE_OK;
}

int32_t message_start(towline_collective_backend* self, const towline_collective_t* call,
                      towline_collective_message** message) {
  return guarded(self->host, [&] {
    auto made = std::make_unique<towline_collective_message>(towline_collective_message{message_of(*call)});
    self->backend.messages().start(made->message);
    *message = made.release();
    return Status::kOk;
  });
}

int32_t message_test(towline_collective_backend* self, towline_collective_message* message) {
  return guarded(self->host, [&] {
    const Status status = self->backend.messages().test(message->message);
    if (is_error(status)) tell(self, status);
    return status;
  });
}

int32_t message_source(towline_collective_backend*, towline_collective_message* message) {
  return message->message.peer;
}

void message_release(towline_collective_backend* self, towline_collective_message* message) {
  self->backend.messages().forget(message->message);
  delete message;
}

void message_wait(towline_collective_backend* self, uint64_t until_ns) {
  self->backend.message_wait(until_ns);
}

void abort(towline_collective_backend* self, int32_t status, const char* text) {
  self->backend.abort(Status{status}, text);
}

int32_t describe(towline_collective_backend* self, char* json, size_t capacity, size_t* needed) {
  return guarded(self->host, [&] {
    const std::string text = self->backend.describe();
    *needed = text.size() + 1;
    if (capacity >= *needed) std::memcpy(json, text.c_str(), *needed);
    return Status::kOk;
  });
}

int32_t window_open(towline_collective_backend* self, void* address, uint64_t bytes, uint64_t number,
                    uint64_t deadline_ns, towline_collective_window** window) {
  return guarded(self->host, [&] {
    *window = new towline_collective_window{
        self, Window(self->backend, address, bytes, number, Deadline::at(deadline_ns))};
    return Status::kOk;
  });
}

int32_t window_close(towline_collective_window* window, uint64_t number, uint64_t deadline_ns) {
  const std::unique_ptr<towline_collective_window> owned(window);
  return guarded(owned->owner->host, [&] {
    owned->window.close(number, Deadline::at(deadline_ns));
    return Status::kOk;
  });
}

int32_t window_map(towline_collective_window* window, int32_t rank, void** address, uint64_t* bytes) {
  *address = window->window.address(rank);
  *bytes = window->window.bytes(rank);
  return TOWLINE_OK;
}

int32_t window_put(towline_collective_window* window, int32_t rank, uint64_t offset, const void* from,
                   uint64_t bytes) {
  return guarded(window->owner->host, [&] {
    const Status status = window->window.put(rank, offset, from, bytes);
    if (is_error(status)) tell(window->owner, status);
    return status;
  });
}

int32_t window_get(towline_collective_window* window, int32_t rank, uint64_t offset, void* to,
                   uint64_t bytes) {
  return guarded(window->owner->host, [&] {
    const Status status = window->window.get(rank, offset, to, bytes);
    if (is_error(status)) tell(window->owner, status);
    return status;
  });
}

int32_t window_signal(towline_collective_window* window, int32_t rank) {
  return guarded(window->owner->host, [&] {
    const Status status = window->window.signal(rank);
    if (is_error(status)) tell(window->owner, status);
    return status;
  });
}

int32_t window_wait_signal(towline_collective_window* window, int32_t rank, uint64_t deadline_ns) {
  const Status status = window->window.wait_signal(rank, Deadline::at(deadline_ns));
  if (is_error(status) && status != Status::kNotYet) tell(window->owner, status);
  return static_cast<int32_t>(status);
}

}  // namespace

CpuBackend* cpu_backend_of_one_host(const towline_collective_table_v1_t& table,
                                    towline_collective_backend& backend) noexcept {
  return table.perform == perform && backend.backend.one_host() ? &backend.backend : nullptr;
}

const towline_collective_table_v1_t& cpu_backend() {
  static const towline_collective_table_v1_t table = [] {
    towline_collective_table_v1_t made = {};
    made.struct_size = sizeof made;
    made.major = TOWLINE_COLLECTIVE_MAJOR;
    made.version = "1";
    made.open = open;
    made.close = close;
    made.perform = perform;
    made.message_start = message_start;
    made.message_test = message_test;
    made.message_release = message_release;
    made.message_wait = message_wait;
    made.abort = abort;
    made.describe = describe;
    made.window_open = window_open;
    made.window_close = window_close;
    made.window_map = window_map;
    made.window_put = window_put;
    made.window_get = window_get;
    made.window_signal = window_signal;
    made.window_wait_signal = window_wait_signal;
    made.message_source = message_source;
    return made;
  }();
  return table;
}

}  // namespace towline::collectives
