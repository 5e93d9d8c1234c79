#include "collectives/streams/stream_table.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "base/error.h"

namespace towline::collectives {
namespace {

struct Opened {
  const towline_collective_host_v1_t* host;
  std::unique_ptr<StreamBackend> backend;
};
Opened& opened(towline_collective_backend* handle) { return *reinterpret_cast<Opened*>(handle); }
StreamMessage& message_of(towline_collective_message* handle) {
  return *reinterpret_cast<StreamMessage*>(handle);
}

void close(towline_collective_backend* self) { delete &opened(self); }

// Sets the reason of the break together with the status.
Status tell(Opened& self, Status status) {
  if (is_error(status)) self.host->fail(self.host->context, self.backend->breaker().breakage().text.c_str());
  return status;
}

int32_t perform(towline_collective_backend* handle, const towline_collective_t* call, uint64_t number,
                uint64_t deadline_ns) {
  Opened& self = opened(handle);
  return guarded(self.host, [&] {
    try {
      return tell(self, self.backend->perform(*call, number, Deadline::at(deadline_ns)));
    } catch (const Error& error) {
      // The operation was accepted: the other ranks must not wait for it.
      self.backend->abort(error.code(), error.message());
      throw;
    }
  });
}

int32_t issue(towline_collective_backend* handle, const towline_collective_t* call, uint64_t number,
              uint64_t timeout_ns, void* stream) {
  Opened& self = opened(handle);
  return guarded(self.host, [&] {
    if (self.backend->breaker().broken()) return tell(self, self.backend->breaker().status());
    self.backend->issue(*call, number, timeout_ns, stream);
    return Status::kOk;
  });
}

int32_t issue_norm(towline_collective_backend* handle, const towline_collective_norm_t* norm, uint64_t number,
                   uint64_t timeout_ns, void* stream) {
  Opened& self = opened(handle);
  return guarded(self.host, [&] {
    if (self.backend->breaker().broken()) return tell(self, self.backend->breaker().status());
    self.backend->issue_norm(*norm, number, timeout_ns, stream);
    return Status::kOk;
  });
}

int32_t message_start(towline_collective_backend* handle, const towline_collective_t* call,
                      towline_collective_message** message) {
  Opened& self = opened(handle);
  auto* const made = new StreamMessage;
  *message = reinterpret_cast<towline_collective_message*>(made);
  return guarded(self.host, [&] {
    try {
      self.backend->start(*call, *made);
    } catch (const Error& error) {
      self.backend->abort(error.code(), error.message());
      made->refused = error.code();
      throw;
    }
    return Status::kOk;
  });
}

int32_t message_test(towline_collective_backend* handle, towline_collective_message* message) {
  Opened& self = opened(handle);
  return guarded(self.host, [&] {
    StreamMessage& mine = message_of(message);
    return tell(self, is_error(mine.refused) ? self.backend->breaker().status() : self.backend->test(mine));
  });
}

void message_release(towline_collective_backend* handle, towline_collective_message* message) {
  opened(handle).backend->take_back(std::unique_ptr<StreamMessage>(&message_of(message)));
}

int32_t issue_beside(towline_collective_backend* handle, const towline_collective_t* call, uint64_t number,
                     uint64_t timeout_ns, void* stream, towline_collective_message** message) {
  Opened& self = opened(handle);
  return guarded(self.host, [&] {
    if (self.backend->breaker().broken()) return tell(self, self.backend->breaker().status());
    auto made = self.backend->issue_beside(*call, number, timeout_ns, stream);
    *message = reinterpret_cast<towline_collective_message*>(made.release());
    return Status::kOk;
  });
}

int32_t message_precede(towline_collective_backend* handle, towline_collective_message* message,
                        void* stream) {
  Opened& self = opened(handle);
  return guarded(self.host, [&] {
    self.backend->precede(message_of(message), stream);
    return Status::kOk;
  });
}

void message_wait(towline_collective_backend*, uint64_t until_ns) {
  const uint64_t now = monotonic_now_ns();
  if (until_ns > now)
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(until_ns - now, 20 * kMicrosecondNs)));
}

void abort(towline_collective_backend* handle, int32_t status, const char* text) {
  opened(handle).backend->abort(Status{status}, text);
}

int32_t look(towline_collective_backend* handle) {
  Opened& self = opened(handle);
  self.backend->look();
  return static_cast<int32_t>(tell(self, self.backend->breaker().status()));
}

int32_t describe(towline_collective_backend* handle, char* json, size_t capacity, size_t* needed) {
  Opened& self = opened(handle);
  return guarded(self.host, [&] {
    const std::string text = self.backend->describe();
    *needed = text.size() + 1;
    if (capacity >= *needed) std::memcpy(json, text.c_str(), *needed);
    return Status::kOk;
  });
}

int32_t messages_together(towline_collective_backend* handle, int32_t begin) {
  Opened& self = opened(handle);
  return guarded(self.host, [&] {
    try {
      self.backend->together(begin != 0);
    } catch (const Error& error) {
      self.backend->abort(error.code(), error.message());
      throw;
    }
    return Status::kOk;
  });
}

}  // namespace

towline_collective_table_v1_t make_stream_table(OpenFunction open) {
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
  made.issue = issue;
  made.issue_beside = issue_beside;
  made.message_precede = message_precede;
  made.messages_together = messages_together;
  made.issue_norm = issue_norm;
  made.look = look;
  return made;
}

StreamBackend& backend_of(towline_collective_backend* handle) { return *opened(handle).backend; }

towline_collective_backend* hand_out(const towline_collective_open_args& args,
                                     std::unique_ptr<StreamBackend> backend) {
  return reinterpret_cast<towline_collective_backend*>(new Opened{args.host, std::move(backend)});
}

}  // namespace towline::collectives
