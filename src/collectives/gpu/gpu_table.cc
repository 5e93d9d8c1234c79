#include "collectives/gpu/gpu_table.h"

#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "base/error.h"
#include "collectives/gpu/gpu_backend.h"
#include "collectives/gpu/gpu_window.h"
#include "collectives/gpu/image.h"
#include "collectives/gpu/operations.h"
#include "collectives/streams/stream_table.h"

namespace towline::collectives::gpu {
namespace {

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

template <class E, uint32_t kRanks>
void line_model(const void* argument, uint32_t block, uint32_t blocks) {
  run_in_lines<E, kRanks>(*static_cast<const Job*>(argument), block, blocks);
}

template <class E>
void norm_model(const void* argument, uint32_t block, uint32_t blocks) {
  Scratch scratch;
  run_norm<E>(*static_cast<const Job*>(argument), scratch, block, blocks);
}

template <class E, uint32_t kRanks>
void marked_norm_model(const void* argument, uint32_t block, uint32_t blocks) {
  Scratch scratch;
  run_marked_norm<E, kRanks>(*static_cast<const Job*>(argument), scratch, block, blocks);
}

template <class E, uint32_t kRanks>
void marked_row_model(const void* argument, uint32_t block, uint32_t blocks) {
  Scratch scratch;
  run_marked_rows<E, kRanks>(*static_cast<const Job*>(argument), scratch, block, blocks);
}

template <class E, uint32_t kRanks>
void marked_sum_model(const void* argument, uint32_t block, uint32_t blocks) {
  run_marked_sum<E, kRanks>(*static_cast<const Job*>(argument), block, blocks);
}

template <class E, uint32_t kRanks>
void owned_model(const void* argument, uint32_t block, uint32_t blocks) {
  Scratch scratch;
  run_owned<E, kRanks>(*static_cast<const Job*>(argument), scratch, block, blocks);
}

template <class E, uint32_t kRanks>
void line_norm_model(const void* argument, uint32_t block, uint32_t blocks) {
  Scratch scratch;
  run_line_norm<E, kRanks>(*static_cast<const Job*>(argument), scratch, block, blocks);
}

#define TOWLINE_KERNEL_NAME(name, datatype, element) "towline_collective_" #name,
#define TOWLINE_KERNEL_MODEL(name, datatype, element) model<element>,
#define TOWLINE_SMALL_NAME(name, datatype, element) "towline_collective_small_" #name,
#define TOWLINE_SMALL_MODEL(name, datatype, element) small_model<element>,
#define TOWLINE_NORM_NAME(name, element) "towline_collective_norm_" #name,
#define TOWLINE_NORM_MODEL(name, element) norm_model<element>,
#define TOWLINE_MARKED_NORM_NAME(name, element, ranks) "towline_collective_marked_norm_" #name "_" #ranks,
#define TOWLINE_MARKED_NORM_MODEL(name, element, ranks) marked_norm_model<element, ranks>,
#define TOWLINE_MARKED_SUM_NAME(name, element, ranks) "towline_collective_marked_sum_" #name "_" #ranks,
#define TOWLINE_MARKED_SUM_MODEL(name, element, ranks) marked_sum_model<element, ranks>,
#define TOWLINE_MARKED_ROW_NAME(name, element, ranks) "towline_collective_marked_row_" #name "_" #ranks,
#define TOWLINE_MARKED_ROW_MODEL(name, element, ranks) marked_row_model<element, ranks>,
#define TOWLINE_OWNED_NAME(name, element, ranks) "towline_collective_owned_" #name "_" #ranks,
#define TOWLINE_OWNED_MODEL(name, element, ranks) owned_model<element, ranks>,
#define TOWLINE_LINE_NAME(name, element, ranks) "towline_collective_lines_" #name "_" #ranks,
#define TOWLINE_LINE_MODEL(name, element, ranks) line_model<element, ranks>,
#define TOWLINE_LINE_NORM_NAME(name, element, ranks) "towline_collective_line_norm_" #name "_" #ranks,
#define TOWLINE_LINE_NORM_MODEL(name, element, ranks) line_norm_model<element, ranks>,
constexpr const char* kNames[] = {
    TOWLINE_COLLECTIVE_KERNELS(TOWLINE_KERNEL_NAME) "towline_collective_moving",
    TOWLINE_COLLECTIVE_KERNELS(TOWLINE_SMALL_NAME) "towline_collective_small_moving",
    TOWLINE_FLOAT_KERNELS(TOWLINE_NORM_NAME) TOWLINE_RANKED_FLOAT_KERNELS(TOWLINE_MARKED_NORM_NAME)
        TOWLINE_LINE_KERNELS(TOWLINE_LINE_NAME) TOWLINE_RANKED_FLOAT_KERNELS(TOWLINE_LINE_NORM_NAME)
            TOWLINE_RANKED_FLOAT_KERNELS(TOWLINE_MARKED_SUM_NAME)
                TOWLINE_RANKED_FLOAT_KERNELS(TOWLINE_MARKED_ROW_NAME)
                    TOWLINE_OWNED_FLOAT_KERNELS(TOWLINE_OWNED_NAME)};
constexpr cuda::KernelModel kModels[] = {
    TOWLINE_COLLECTIVE_KERNELS(TOWLINE_KERNEL_MODEL) model<NoElement>,
    TOWLINE_COLLECTIVE_KERNELS(TOWLINE_SMALL_MODEL) small_model<NoElement>,
    TOWLINE_FLOAT_KERNELS(TOWLINE_NORM_MODEL) TOWLINE_RANKED_FLOAT_KERNELS(TOWLINE_MARKED_NORM_MODEL)
        TOWLINE_LINE_KERNELS(TOWLINE_LINE_MODEL) TOWLINE_RANKED_FLOAT_KERNELS(TOWLINE_LINE_NORM_MODEL)
            TOWLINE_RANKED_FLOAT_KERNELS(TOWLINE_MARKED_SUM_MODEL)
                TOWLINE_RANKED_FLOAT_KERNELS(TOWLINE_MARKED_ROW_MODEL)
                    TOWLINE_OWNED_FLOAT_KERNELS(TOWLINE_OWNED_MODEL)};
static_assert(std::size(kNames) == kKernels && std::size(kModels) == kKernels);

std::unique_ptr<StreamBackend> make_backend(const towline_collective_open_args& args,
                                            cuda::KernelDevice& device) {
  const cuda::KernelSet kernels{kernel_image(), kNames, kModels, sizeof(Job), kThreads, true};
  return std::make_unique<GpuBackend>(args, device, kernels);
}

// Sets the reason of the break together with the status.
Status said(GpuWindow& window, Status status) {
  const StreamBackend& backend = window.backend();
  if (is_error(status) && backend.breaker().broken())
    backend.host()->fail(backend.host()->context, backend.breaker().breakage().text.c_str());
  return status;
}

GpuWindow& window_of(towline_collective_window* handle) { return *reinterpret_cast<GpuWindow*>(handle); }
const towline_collective_host_v1_t* host_of(towline_collective_window* handle) {
  return window_of(handle).backend().host();
}

GpuBackend& gpu_of(towline_collective_backend* handle) {
  return static_cast<GpuBackend&>(backend_of(handle));
}

int32_t window_open(towline_collective_backend* handle, void* address, uint64_t bytes, uint64_t number,
                    uint64_t deadline_ns, towline_collective_window** window) {
  return guarded(gpu_of(handle).host(), [&] {
    *window = reinterpret_cast<towline_collective_window*>(
        new GpuWindow(gpu_of(handle), address, bytes, number, Deadline::at(deadline_ns)));
    return Status::kOk;
  });
}
int32_t window_close(towline_collective_window* handle, uint64_t number, uint64_t deadline_ns) {
  const std::unique_ptr<GpuWindow> window(&window_of(handle));
  return guarded(window->backend().host(),
                 [&] { return said(*window, window->close(number, Deadline::at(deadline_ns))); });
}
int32_t window_map(towline_collective_window* handle, int32_t rank, void** address, uint64_t* bytes) {
  *address = window_of(handle).address(static_cast<uint32_t>(rank));
  *bytes = window_of(handle).bytes(static_cast<uint32_t>(rank));
  return TOWLINE_OK;
}
int32_t window_put(towline_collective_window* handle, int32_t rank, uint64_t offset, const void* from,
                   uint64_t bytes) {
  return guarded(host_of(handle), [&] {
    GpuWindow& window = window_of(handle);
    return said(window, window.put(static_cast<uint32_t>(rank), offset, from, bytes));
  });
}
int32_t window_get(towline_collective_window* handle, int32_t rank, uint64_t offset, void* to,
                   uint64_t bytes) {
  return guarded(host_of(handle), [&] {
    GpuWindow& window = window_of(handle);
    return said(window, window.get(static_cast<uint32_t>(rank), offset, to, bytes));
  });
}
int32_t window_signal(towline_collective_window* handle, int32_t rank) {
  return guarded(host_of(handle), [&] {
    return said(window_of(handle), window_of(handle).signal(static_cast<uint32_t>(rank)));
  });
}
int32_t window_wait_signal(towline_collective_window* handle, int32_t rank, uint64_t deadline_ns) {
  return guarded(host_of(handle), [&] {
    GpuWindow& window = window_of(handle);
    return said(window, window.wait_signal(static_cast<uint32_t>(rank), Deadline::at(deadline_ns)));
  });
}
int32_t window_issue(towline_collective_window* handle, const towline_window_call_t* call,
                     uint64_t timeout_ns, void* stream) {
  return guarded(host_of(handle), [&] {
    GpuWindow& window = window_of(handle);
    if (window.backend().breaker().broken()) return said(window, window.backend().breaker().status());
    window.issue(*call, timeout_ns, stream);
    return Status::kOk;
  });
}
int32_t window_symmetric(towline_collective_window* handle, void* symmetric, size_t bytes) {
  return guarded(host_of(handle), [&] {
    const device::Symmetric made = window_of(handle).symmetric();
    if (bytes != sizeof made)
      fail(Status::kInvalidArgument, "a Symmetric has {} bytes in this build, not {}", sizeof made, bytes);
    std::memcpy(symmetric, &made, sizeof made);
    return Status::kOk;
  });
}

int32_t hops_open(towline_collective_backend* handle, uint64_t bytes, Hops::Run run, void* context,
                  void** memory) {
  return guarded(gpu_of(handle).host(), [&] {
    *memory = gpu_of(handle).open_hops(bytes, run, context);
    return Status::kOk;
  });
}
int32_t issue_steps(towline_collective_backend* handle, const towline_collective_step_t* steps, size_t count,
                    uint64_t number, uint64_t timeout_ns, void* stream,
                    towline_collective_message** message) {
  return guarded(gpu_of(handle).host(), [&] {
    if (gpu_of(handle).breaker().broken()) return gpu_of(handle).breaker().status();
    auto made = gpu_of(handle).issue_steps({steps, count}, number, timeout_ns, stream, message != nullptr);
    if (message != nullptr) *message = reinterpret_cast<towline_collective_message*>(made.release());
    return Status::kOk;
  });
}
int32_t perform_steps(towline_collective_backend* handle, const towline_collective_step_t* steps,
                      size_t count, uint64_t number, uint64_t deadline_ns) {
  return guarded(gpu_of(handle).host(), [&] {
    return gpu_of(handle).perform_steps({steps, count}, number, Deadline::at(deadline_ns));
  });
}

int32_t strand_open(towline_collective_backend* handle, uint64_t bytes, uint32_t ahead, Hops::Run run,
                    void* context, void** memory, uint32_t* strand) {
  return guarded(gpu_of(handle).host(), [&] {
    *memory = gpu_of(handle).open_strand(bytes, ahead, run, context, *strand);
    return Status::kOk;
  });
}
int32_t start_steps(towline_collective_backend* handle, const towline_collective_step_t* steps, size_t count,
                    towline_collective_message** message) {
  return guarded(gpu_of(handle).host(), [&] {
    auto made = std::make_unique<StreamMessage>();
    gpu_of(handle).start_steps({steps, count}, *made);
    *message = reinterpret_cast<towline_collective_message*>(made.release());
    return Status::kOk;
  });
}

void watch_replays(towline_collective_backend* handle, uint64_t op_id) {
  gpu_of(handle).watch_replays(op_id);
}

void complete(towline_collective_table_v1_t& made) {
  made.window_open = window_open;
  made.window_close = window_close;
  made.window_map = window_map;
  made.window_put = window_put;
  made.window_get = window_get;
  made.window_signal = window_signal;
  made.window_wait_signal = window_wait_signal;
  made.window_issue = window_issue;
  made.window_symmetric = window_symmetric;
  made.hops_open = hops_open;
  made.issue_steps = issue_steps;
  made.perform_steps = perform_steps;
  made.strand_open = strand_open;
  made.start_steps = start_steps;
  made.watch_replays = watch_replays;
}

using Tables = DeviceTables<make_backend, complete>;

}  // namespace

const towline_collective_table_v1_t& nvidia_table() { return Tables::nvidia(); }
const towline_collective_table_v1_t& table_over(cuda::KernelDevice& (*device)()) {
  return Tables::over(device);
}

}  // namespace towline::collectives::gpu
