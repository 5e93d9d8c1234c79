// How operations get into streams: in the application's, beside it on one of ours, or on one of ours that the caller waits for.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>

#include "base/error.h"
#include "base/sync/spin.h"
#include "collectives/calls/types.h"
#include "collectives/gpu/gpu_backend.h"
#include "collectives/gpu/marks.h"
#include "collectives/gpu/operations.h"

namespace towline::collectives::gpu {
namespace {

// Beyond its time an operation that the GPU has not begun is given up.
constexpr uint64_t kGraceNs = 2 * kSecondNs;

}  // namespace

void GpuBackend::build_message(const towline_collective_t& call, uint64_t timeout_ns, Launch& launch) const {
  const bool sends = call.op == TOWLINE_OP_SEND;
  if (call.root < 0) fail(Status::kUnsupported, "recv from any rank: communicators on GPUs need a rank");
  check_address(sends ? call.input : call.output, sends ? "input" : "output");
  Job& job = launch.job;
  job = base_;
  job.timeout_ns = timeout_ns;
  // Sender and receiver agree on what there is, not on which of them they are.
  job.mark = {0, call.count, 0, call.tag, TOWLINE_OP_SEND, call.datatype, 0, 0};
  job.digest = digest_of(job.mark);
  job.mark.op = call.op;
  job.mark.root = call.root;
  job.bytes = call.count * datatype_bytes(call.datatype);
  job.in[0] = reinterpret_cast<uint64_t>(call.input);
  job.out[0] = reinterpret_cast<uint64_t>(call.output);
  job.peer = static_cast<uint32_t>(call.root);
  job.way = sends ? Way::kSend : Way::kReceive;
  launch.kernel = kMovingKernel;
  launch.blocks = 1;
}

GpuBackend::Channel& GpuBackend::build_any(const towline_collective_t& call, uint64_t number,
                                           uint64_t timeout_ns, Launch& launch) {
  if (call.op != TOWLINE_OP_SEND && call.op != TOWLINE_OP_RECV) {
    build(call, number, timeout_ns, launch);
    return collectives_;
  }
  build_message(call, timeout_ns, launch);
  return channel_to(static_cast<uint32_t>(call.root), call.op == TOWLINE_OP_SEND);
}

void GpuBackend::launch(Channel& channel, const Launch& launch, void* stream, uint64_t graph,
                        cuda::Moment* ended) {
  const std::lock_guard lock(channel.mutex);
  // The application orders graphs among one another when it replays them.
  Tail& tail = graph == 0 ? channel.running : channel.recorded;
  if (tail.last == nullptr) tail.last = device_.make_moment(gpu_);
  cuda::Code code = 0;
  if (tail.used && tail.graph == graph && tail.stream != stream) code = tail.last->precede(stream);
  if (code == 0) code = kernels_->launch(launch.kernel, &launch.job, launch.blocks, stream);
  if (code != 0)
    fail(Status::kIo, "{}: the GPU's driver refused the kernel: {}", op_name(launch.job.mark.op),
         device_.code_text(code));
  code = tail.last->record(stream);
  if (code == 0 && ended != nullptr) code = ended->record(stream);
  if (code != 0) fail(Status::kIo, "cannot follow an operation on its stream: {}", device_.code_text(code));
  tail.stream = stream;
  tail.graph = graph;
  tail.used = true;
}

bool GpuBackend::drained(const Channel& channel) const noexcept {
  return channel.running.last == nullptr || channel.running.last->state() != cuda::Moment::kBusy;
}

GpuBackend::Channel& GpuBackend::channel_to(uint32_t peer, bool send) {
  const std::lock_guard lock(channels_mutex_);
  auto& channel = channels_[peer + (send ? 0 : kMaxRanks)];
  if (channel == nullptr) {
    channel = std::make_unique<Channel>();
  }
  return *channel;
}

void* GpuBackend::own_stream(Channel& channel, bool in_graphs) {
  const std::lock_guard lock(channel.mutex);
  std::unique_ptr<cuda::OwnStream>& own = in_graphs ? channel.in_graphs : channel.own;
  if (own == nullptr) own = device_.make_stream(gpu_);
  return own->native();
}

uint64_t GpuBackend::graph_of(void* stream) const {
  uint64_t graph = 0;
  if (device_.stream_state(gpu_, stream, graph) == cuda::StreamState::kForeign)
    fail(Status::kInvalidArgument, "the stream is not of GPU {}, which this communicator uses", gpu_);
  return graph;
}

void GpuBackend::issue(const towline_collective_t& call, uint64_t number, uint64_t timeout_ns, void* stream) {
  const uint64_t graph = graph_of(stream);
  Launch made;
  Channel& channel = build_any(call, number, timeout_ns, made);
  launch(channel, made, stream, graph, nullptr);
}

std::unique_ptr<GpuMessage> GpuBackend::issue_beside(const towline_collective_t& call, uint64_t number,
                                                     uint64_t timeout_ns, void* stream) {
  const uint64_t graph = graph_of(stream);
  Launch made;
  Channel& channel = build_any(call, number, timeout_ns, made);
  void* const own = own_stream(channel, graph != 0);
  std::unique_ptr<GpuMessage> message;
  {
    const std::lock_guard lock(spare_mutex_);
    if (!spare_.empty()) {
      message = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  if (message == nullptr) {
    message = std::make_unique<GpuMessage>();
    message->ended = device_.make_moment(gpu_);
  }
  message->captured_on = graph != 0 ? own : nullptr;
  message->graph = graph;
  cuda::Code code = message->ended->record(stream);
  if (code == 0) code = message->ended->precede(own);
  if (code != 0) fail(Status::kIo, "cannot order an operation after its stream: {}", device_.code_text(code));
  launch(channel, made, own, graph, message->ended.get());
  return message;
}

void GpuBackend::precede(GpuMessage& message, void* stream) {
  const uint64_t graph = graph_of(stream);
  if (message.graph != 0 && graph != message.graph)
    fail(Status::kInvalidArgument,
         "the operation is part of a graph: only streams of the same capture wait for it");
  if (const cuda::Code code = message.ended->precede(stream); code != 0)
    fail(Status::kIo, "cannot order a stream after an operation: {}", device_.code_text(code));
}

void GpuBackend::take_back(std::unique_ptr<GpuMessage> message) noexcept {
  if (message->ended == nullptr) return;
  message->refused = Status::kOk;
  const std::lock_guard lock(spare_mutex_);
  spare_.push_back(std::move(message));
}

Status GpuBackend::perform(const towline_collective_t& call, uint64_t number, Deadline deadline) {
  const uint64_t now = monotonic_now_ns();
  const uint64_t timeout_ns = deadline.passed(now) ? 0 : deadline.ns() - now;
  Launch made;
  build(call, number, timeout_ns, made);
  launch(collectives_, made, own_stream(collectives_, false), 0, nullptr);
  SpinWait spin(20000, 1000);
  for (;;) {
    const cuda::Code code = collectives_.running.last->state();
    if (code == 0) break;
    if (code != cuda::Moment::kBusy)
      return breaker_.raise(Status::kIo, fmt::format("rank {}: the GPU failed in {}: {}", rank_,
                                                     text_of(made.job.mark), device_.code_text(code)));
    if (spin.again()) continue;
    ::sched_yield();
    if (monotonic_now_ns() - now > kGraceNs && deadline.passed(monotonic_now_ns() - kGraceNs)) {
      abort(Status::kTimedOut, fmt::format("rank {} timed out in {}, which its GPU has not begun", rank_,
                                           text_of(made.job.mark)));
      return breaker_.status();
    }
  }
  look();
  return breaker_.broken() ? breaker_.status() : Status::kOk;
}

// ---- Messages

void GpuBackend::start(const towline_collective_t& call, GpuMessage& message) {
  Channel& channel = channel_to(static_cast<uint32_t>(std::max(0, call.root)), call.op == TOWLINE_OP_SEND);
  Launch made;
  build_message(call, UINT64_MAX, made);
  message.ended = device_.make_moment(gpu_);
  launch(channel, made, own_stream(channel, false), 0, message.ended.get());
}

Status GpuBackend::test(GpuMessage& message) {
  if (message.captured_on != nullptr) {
    // It runs when the graph does. While the capture lasts the application may still make streams wait for it.
    uint64_t graph = 0;
    try {
      (void)device_.stream_state(gpu_, message.captured_on, graph);
    } catch (const Error&) {  // the graph was spoilt, which the application is told
    }
    return graph == message.graph ? Status::kInProgress : Status::kOk;
  }
  const cuda::Code code = message.ended->state();
  if (code == cuda::Moment::kBusy) return Status::kInProgress;
  if (code != 0)
    return breaker_.raise(
        Status::kIo, fmt::format("rank {}: the GPU failed in a message: {}", rank_, device_.code_text(code)));
  look();
  return breaker_.broken() ? breaker_.status() : Status::kOk;
}

}  // namespace towline::collectives::gpu
