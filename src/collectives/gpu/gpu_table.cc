#include "collectives/gpu/gpu_table.h"

#include <cstring>
#include <memory>
#include <thread>

#include "base/error.h"
#include "collectives/calls/guarded.h"
#include "collectives/gpu/gpu_backend.h"
#include "collectives/gpu/image.h"
#include "collectives/gpu/operations.h"

namespace towline::collectives::gpu {
namespace {

struct Opened {
  const towline_collective_host_v1_t* host;
  std::unique_ptr<GpuBackend> backend;
};
Opened& opened(towline_collective_backend* handle) { return *reinterpret_cast<Opened*>(handle); }
GpuMessage& message_of(towline_collective_message* handle) { return *reinterpret_cast<GpuMessage*>(handle); }

template <class E>
void model(const void* argument, uint32_t block, uint32_t blocks) {
  Scratch scratch;
  if constexpr (std::is_same_v<E, NoElement>)
    run_moving(*static_cast<const Job*>(argument), scratch, block, blocks);
  else
    run_reducing<E>(*static_cast<const Job*>(argument), scratch, block, blocks);
}

template <class E>
void small_model(const void* argument, uint32_t block, uint32_t blocks) {
  run_small<E>(*static_cast<const Job*>(argument), block, blocks);
}

#define TOWLINE_KERNEL_NAME(name, datatype, element) "towline_collective_" #name,
#define TOWLINE_KERNEL_MODEL(name, datatype, element) model<element>,
#define TOWLINE_SMALL_NAME(name, datatype, element) "towline_collective_small_" #name,
#define TOWLINE_SMALL_MODEL(name, datatype, element) small_model<element>,
constexpr const char* kNames[] = {
    TOWLINE_COLLECTIVE_KERNELS(TOWLINE_KERNEL_NAME) "towline_collective_moving",
    TOWLINE_COLLECTIVE_KERNELS(TOWLINE_SMALL_NAME) "towline_collective_small_moving"};
constexpr cuda::KernelModel kModels[] = {TOWLINE_COLLECTIVE_KERNELS(TOWLINE_KERNEL_MODEL) model<NoElement>,
                                         TOWLINE_COLLECTIVE_KERNELS(TOWLINE_SMALL_MODEL)
                                             small_model<NoElement>};
static_assert(std::size(kNames) == kKernels && std::size(kModels) == kKernels);

cuda::KernelDevice& (*device_of_table)() = nullptr;

int32_t open_over(const towline_collective_open_args* args, towline_collective_backend** backend,
                  cuda::KernelDevice& (*device)()) {
  return guarded(args->host, [&] {
    const cuda::KernelSet kernels{kernel_image(), kNames, kModels, sizeof(Job), kThreads};
    auto made = std::make_unique<Opened>();
    made->host = args->host;
    made->backend = std::make_unique<GpuBackend>(*args, device(), kernels);
    *backend = reinterpret_cast<towline_collective_backend*>(made.release());
    return Status::kOk;
  });
}

int32_t open_nvidia(const towline_collective_open_args* args, towline_collective_backend** backend) {
  return open_over(args, backend, cuda::nvidia_kernel_device);
}
int32_t open_other(const towline_collective_open_args* args, towline_collective_backend** backend) {
  return open_over(args, backend, device_of_table);
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

int32_t message_start(towline_collective_backend* handle, const towline_collective_t* call,
                      towline_collective_message** message) {
  Opened& self = opened(handle);
  auto* const made = new GpuMessage;
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
    GpuMessage& mine = message_of(message);
    return tell(self, is_error(mine.refused) ? self.backend->breaker().status() : self.backend->test(mine));
  });
}

void message_release(towline_collective_backend* handle, towline_collective_message* message) {
  opened(handle).backend->take_back(std::unique_ptr<GpuMessage>(&message_of(message)));
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

int32_t describe(towline_collective_backend* handle, char* json, size_t capacity, size_t* needed) {
  Opened& self = opened(handle);
  return guarded(self.host, [&] {
    const std::string text = self.backend->describe();
    *needed = text.size() + 1;
    if (capacity >= *needed) std::memcpy(json, text.c_str(), *needed);
    return Status::kOk;
  });
}

towline_collective_table_v1_t make_table() {
  towline_collective_table_v1_t made = {};
  made.struct_size = sizeof made;
  made.major = TOWLINE_COLLECTIVE_MAJOR;
  made.version = "1";
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
  return made;
}

}  // namespace

const towline_collective_table_v1_t& nvidia_table() {
  static const towline_collective_table_v1_t table = [] {
    towline_collective_table_v1_t made = make_table();
    made.open = open_nvidia;
    return made;
  }();
  return table;
}

const towline_collective_table_v1_t& table_over(cuda::KernelDevice& (*device)()) {
  device_of_table = device;
  static const towline_collective_table_v1_t table = [] {
    towline_collective_table_v1_t made = make_table();
    made.open = open_other;
    return made;
  }();
  return table;
}

}  // namespace towline::collectives::gpu
