// Puts operations into streams: the application's, one of ours beside it, or one of ours that the caller waits for.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "collectives/calls/types.h"
#include "collectives/gpu/gpu_backend.h"
#include "collectives/gpu/marks.h"
#include "collectives/gpu/operations.h"

namespace towline::collectives::gpu {
void GpuBackend::build_message(const towline_collective_t& call, uint64_t timeout_ns, Launch& launch) const {
  const bool sends = call.op == TOWLINE_COLLECTIVE_SEND;
  if (call.root < 0) fail(Status::kUnsupported, "recv from any rank: communicators on GPUs need a rank");
  check_address(sends ? call.input : call.output, sends ? "input" : "output");
  Job& job = launch.job;
  job = base_;
  job.timeout_ns = timeout_ns;
  // Sender and receiver compare all but the direction.
  job.mark = {0, call.count, 0, call.tag, TOWLINE_COLLECTIVE_SEND, call.datatype, 0, 0};
  job.digest = digest_of(job.mark);
  job.mark.op = call.op;
  job.mark.root = called_[static_cast<size_t>(call.root)];
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
  if (call.op != TOWLINE_COLLECTIVE_SEND && call.op != TOWLINE_COLLECTIVE_RECV) {
    build(call, number, timeout_ns, launch);
    return collectives_;
  }
  build_message(call, timeout_ns, launch);
  return channel_to(static_cast<uint32_t>(call.root), call.op == TOWLINE_COLLECTIVE_SEND);
}

void GpuBackend::launch(Channel& channel, const Launch& launch, void* stream, uint64_t graph,
                        cuda::Moment* ended, const Launch* then, const std::optional<Replays::Words>& seen) {
  const char* const what =
      launch.job.mark.op < kOps ? op_name(launch.job.mark.op) : "an operation of a window";
  put(channel, what, stream, graph, ended, [&](void* in) {
    cuda::Code code = seen ? enqueue(count_up(seen->begun), in) : 0;
    if (code == 0) code = enqueue(launch, in);
    if (code == 0 && then != nullptr) code = enqueue(*then, in);
    if (code == 0 && seen) code = enqueue(count_up(seen->ended), in);
    return code;
  });
  note_recorded(launch.job.mark, graph);
}

cuda::Code GpuBackend::enqueue(const Launch& one, void* stream) noexcept {
  const bool norm = one.job.way == Way::kMarkedNorm;
  const cuda::Grid grid{one.blocks, one.threads, norm ? one.job.parts : 1, norm && one.job.clustered != 0};
  return kernels_->launch(one.kernel, &one.job, grid, stream);
}

void GpuBackend::note_recorded(const Mark& mark, uint64_t graph) {
  if (graph != 0 && is_collective(mark)) recorded_.add(mark.number, graph);
}

std::optional<Replays::Words> GpuBackend::seen_in(uint64_t graph, uint64_t op_id, uint32_t op) {
  return op_id != 0 && graph != 0 ? replays_.add(op_id, op) : std::nullopt;
}

GpuBackend::Launch GpuBackend::count_up(uint64_t word) const {
  Launch made{base_, kMovingKernel, 1};
  made.job.way = Way::kSignal;
  made.job.in[0] = word;
  return made;
}

GpuBackend::Channel& GpuBackend::channel_to(uint32_t peer, bool send) {
  const std::lock_guard lock(channels_mutex_);
  auto& channel = channels_[peer + (send ? 0 : kMaxRanks)];
  if (channel == nullptr) {
    channel = std::make_unique<Channel>();
  }
  return *channel;
}

void GpuBackend::issue(const towline_collective_t& call, uint64_t number, uint64_t timeout_ns, void* stream) {
  const uint64_t op_id = std::exchange(watched_, 0);
  const uint64_t graph = graph_of(stream);
  Launch made;
  Channel& channel = build_any(call, number, timeout_ns, made);
  const auto seen = seen_in(graph, op_id, call.op);
  put_in(channel, stream, graph,
         [&](void* in, cuda::Moment* ended) { launch(channel, made, in, graph, ended, nullptr, seen); });
}

std::unique_ptr<StreamMessage> GpuBackend::issue_beside(const towline_collective_t& call, uint64_t number,
                                                        uint64_t timeout_ns, void* stream) {
  const uint64_t op_id = std::exchange(watched_, 0);
  const uint64_t graph = graph_of(stream);
  Launch made;
  Channel& channel = build_any(call, number, timeout_ns, made);
  void* const own = own_stream(channel, graph != 0);
  const auto seen = seen_in(graph, op_id, call.op);
  std::unique_ptr<StreamMessage> message = begin_beside(stream, own, graph);
  launch(channel, made, own, graph, message->ended.get(), nullptr, seen);
  return message;
}

Status GpuBackend::perform(const towline_collective_t& call, uint64_t number, Deadline deadline) {
  const uint64_t now = monotonic_now_ns();
  Launch made;
  build(call, number, deadline.passed(now) ? 0 : deadline.ns() - now, made);
  launch(collectives_, made, own_stream(collectives_, false), 0, nullptr);
  return wait_for(collectives_, deadline, [&] { return text_of(made.job.mark); });
}

void GpuBackend::start(const towline_collective_t& call, StreamMessage& message) {
  Channel& channel =
      channel_to(static_cast<uint32_t>(std::max(0, call.root)), call.op == TOWLINE_COLLECTIVE_SEND);
  Launch made;
  build_message(call, UINT64_MAX, made);
  message.ended = device_.make_moment(gpu_);
  launch(channel, made, own_stream(channel, false), 0, message.ended.get());
}

}  // namespace towline::collectives::gpu
