#include "gpu/driver_valve.h"

#include <algorithm>
#include <new>

#include "base/error.h"

namespace towline::cuda {

namespace {

using driver::kSuccess;

constexpr size_t kValvesAtOnce = 64;
constexpr size_t kSpacing = 64;  // bytes: no two share a cache line
static_assert(sizeof(ValveWords) <= kSpacing && sizeof(ValveReport) <= kSpacing);

}  // namespace

DriverValve::DriverValve(const driver::Api& api, const Kernels& kernels, driver::Pointer words,
                         ValveReport* report, driver::Pointer report_gpu)
    : api_(api), kernels_(kernels), words_(words), report_(report), report_gpu_(report_gpu) {
  api.check(api.event_create(&after_, driver::kEventWithoutTime), "cuEventCreate");
}

bool DriverValve::take() noexcept {
  if (!free_ || broken_ || ended() != launched_) return false;
  free_ = false;
  open();
  return true;
}

Code DriverValve::launch_both(const CopyJob& job, uint32_t blocks, driver::Stream stream) noexcept {
  driver::Pointer words = words_;
  driver::Pointer report = report_gpu_;
  void* valve_arguments[] = {&words, &report};
  const Code code = api_.launch(kernels_.valve, 1, 1, 1, 1, 1, 1, 0, stream, valve_arguments, nullptr);
  if (code != kSuccess) return code;
  CopyJob mine = job;
  Completion done{words_ + offsetof(ValveWords, arrivals), 0, 0, words_, report_gpu_};
  void* arguments[] = {&mine, &done};
  const driver::Function function = kernels_.copy[static_cast<size_t>(job.form) * 2 + job.aligned];
  const Code second =
      api_.launch(function, blocks, 1, 1, threads_of_block(job, blocks), 1, 1, 0, stream, arguments, nullptr);
  broken_ = broken_ || second != kSuccess;
  return second;
}

Code DriverValve::launch(const CopyJob& job, uint32_t blocks, void* stream) noexcept {
  if (broken_) return driver::kInvalidHandle;
  const Current current(api_, kernels_.context);
  auto* const theirs = static_cast<driver::Stream>(stream);
  driver::CaptureStatus status = driver::kCaptureNone;
  driver::Graph graph = nullptr;
  const driver::GraphNode* last = nullptr;
  size_t count = 0;
  uint64_t capture = 0;
  // Asked beforehand: an error after the launch would deny a copy that takes place.
  Code code = api_.stream_get_capture(theirs, &status, &capture, &graph, &last, &count);
  if (code == kSuccess) code = launch_both(job, blocks, theirs);
  if (code != kSuccess) return code;
  capture_ = 0;
  if (status != driver::kCaptureActive) {
    ++launched_;
    (void)api_.event_record(after_, theirs);
    return kSuccess;
  }
  code = api_.stream_get_capture(theirs, &status, &capture, &graph, &last, &count);
  if (code != kSuccess) return code;
  try {
    nodes_.assign(last, last + count);
  } catch (const std::bad_alloc&) {
    return 2;  // CUDA_ERROR_OUT_OF_MEMORY
  }
  capture_ = capture;
  return kSuccess;
}

Code DriverValve::precede(void* stream) noexcept {
  const Current current(api_, kernels_.context);
  auto* const theirs = static_cast<driver::Stream>(stream);
  if (capture_ == 0) return api_.stream_wait_event(theirs, after_, 0);
  driver::CaptureStatus status = driver::kCaptureNone;
  driver::Graph graph = nullptr;
  const driver::GraphNode* last = nullptr;
  size_t count = 0;
  uint64_t capture = 0;
  const Code code = api_.stream_get_capture(theirs, &status, &capture, &graph, &last, &count);
  if (code != kSuccess) return code;
  if (status != driver::kCaptureActive || capture != capture_) return driver::kCaptureUnjoined;
  return api_.stream_update_capture(theirs, nodes_.data(), nodes_.size(), driver::kAddDependencies);
}

DriverValve& DriverValves::take() {
  for (int turn = 0; turn < 2; ++turn) {
    for (const auto& valve : valves_)
      if (valve->take()) return *valve;
    grow();
  }
  fail(Status::kInternal, "cuda: no valve is free");
}

void DriverValves::grow() {
  const Current current(api_, kernels_.context);
  if (stream_ == nullptr)
    api_.check(api_.stream_create(&stream_, driver::kStreamNonBlocking), "cuStreamCreate");
  driver::Pointer words = 0;
  void* reports = nullptr;
  driver::Pointer reports_gpu = 0;
  api_.check(api_.memory_alloc(&words, kValvesAtOnce * kSpacing), "memory for stream-ordered transfers");
  api_.check(api_.memory_set32_async(words, 0, kValvesAtOnce * kSpacing / 4, stream_), "cuMemsetD32Async");
  api_.check(api_.stream_synchronize(stream_), "clearing words");
  api_.check(api_.host_alloc(&reports, kValvesAtOnce * kSpacing, driver::kHostPortableMapped),
             "pinned memory for stream-ordered transfers");
  api_.check(api_.host_device_pointer(&reports_gpu, reports, 0), "cuMemHostGetDevicePointer");
  for (size_t i = 0; i < kValvesAtOnce; ++i) {
    auto* const report = new (static_cast<uint8_t*>(reports) + i * kSpacing) ValveReport{};
    valves_.push_back(std::make_unique<DriverValve>(api_, kernels_, words + i * kSpacing, report,
                                                    reports_gpu + i * kSpacing));
    valves_.back()->give_back();
  }
}

}  // namespace towline::cuda
