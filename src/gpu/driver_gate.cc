#include "gpu/driver_gate.h"

#include <algorithm>
#include <new>

#include "base/error.h"

namespace towline::cuda {

namespace {

using driver::kSuccess;

constexpr size_t kGatesAtOnce = 64;
constexpr size_t kSpacing = 64;  // bytes: no two share a cache line
static_assert(sizeof(GateWords) <= kSpacing && sizeof(GateReport) <= kSpacing);

}  // namespace

DriverGate::DriverGate(const driver::Api& api, const Kernels& kernels, driver::Pointer words,
                       GateReport* report, driver::Pointer report_gpu)
    : api_(api), kernels_(kernels), words_(words), report_(report), report_gpu_(report_gpu) {
  api.check(api.event_create(&after_, driver::kEventWithoutTime), "cuEventCreate");
}

bool DriverGate::take() noexcept {
  if (!free_ || broken_ || ended() != launched_) return false;
  free_ = false;
  open();
  return true;
}

Code DriverGate::launch_both(const CopyJob& job, uint32_t blocks, driver::Stream stream) noexcept {
  driver::Pointer words = words_;
  driver::Pointer report = report_gpu_;
  void* gate_arguments[] = {&words, &report};
  const Code code = api_.launch(kernels_.gate, 1, 1, 1, 1, 1, 1, 0, stream, gate_arguments, nullptr);
  if (code != kSuccess) return code;
  CopyJob mine = job;
  Completion done{words_ + offsetof(GateWords, arrivals), 0, 0, words_, report_gpu_};
  void* arguments[] = {&mine, &done};
  const driver::Function function = kernels_.copy[static_cast<size_t>(job.form) * 2 + job.aligned];
  const Code second = api_.launch(function, blocks, 1, 1, kThreads, 1, 1, 0, stream, arguments, nullptr);
  broken_ = broken_ || second != kSuccess;
  return second;
}

Code DriverGate::launch(const CopyJob& job, uint32_t blocks, void* stream) noexcept {
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

Code DriverGate::precede(void* stream) noexcept {
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

DriverGate& DriverGates::take() {
  for (int turn = 0; turn < 2; ++turn) {
    for (const auto& gate : gates_)
      if (gate->take()) return *gate;
    grow();
  }
  fail(Status::kInternal, "cuda: no gate is free");
}

void DriverGates::grow() {
  const Current current(api_, kernels_.context);
  if (stream_ == nullptr)
    api_.check(api_.stream_create(&stream_, driver::kStreamNonBlocking), "cuStreamCreate");
  driver::Pointer words = 0;
  void* reports = nullptr;
  driver::Pointer reports_gpu = 0;
  api_.check(api_.memory_alloc(&words, kGatesAtOnce * kSpacing), "memory for stream-ordered transfers");
  api_.check(api_.memory_set32_async(words, 0, kGatesAtOnce * kSpacing / 4, stream_), "cuMemsetD32Async");
  api_.check(api_.stream_synchronize(stream_), "clearing words");
  api_.check(api_.host_alloc(&reports, kGatesAtOnce * kSpacing, driver::kHostPortableMapped),
             "pinned memory for stream-ordered transfers");
  api_.check(api_.host_device_pointer(&reports_gpu, reports, 0), "cuMemHostGetDevicePointer");
  for (size_t i = 0; i < kGatesAtOnce; ++i) {
    auto* const report = new (static_cast<uint8_t*>(reports) + i * kSpacing) GateReport{};
    gates_.push_back(std::make_unique<DriverGate>(api_, kernels_, words + i * kSpacing, report,
                                                  reports_gpu + i * kSpacing));
    gates_.back()->give_back();
  }
}

}  // namespace towline::cuda
