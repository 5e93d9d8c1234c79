// Operations in steps: kernels among the ranks of this host, and hops between them that processors carry out.
#include <algorithm>

#include "base/error.h"
#include "collectives/gpu/gpu_backend.h"
#include "collectives/gpu/marks.h"
#include "collectives/gpu/operations.h"

namespace towline::collectives::gpu {
namespace {

// Hops have the operation's time; the kernel that waits for one lets it say why it did not come in time.
constexpr uint64_t kHopGraceNs = 2 * kSecondNs;

}  // namespace

void* GpuBackend::open_hops(uint64_t bytes, Hops::Run run, void* context) {
  if (hops_ != nullptr) fail(Status::kAlreadyExists, "hops were opened already");
  hops_ = std::make_unique<Hops>(device_, gpu_, bytes, 0, run, context);
  return hops_->memory();
}

void* GpuBackend::open_strand(uint64_t bytes, uint32_t ahead, Hops::Run run, void* context,
                              uint32_t& strand) {
  auto hops = std::make_unique<Hops>(device_, gpu_, bytes, ahead, run, context);
  void* const memory = hops->memory();
  std::unique_ptr<cuda::StreamsAhead> streams = device_.make_streams_ahead(gpu_, wish_.any() ? 0 : 1);
  std::unique_ptr<cuda::OwnStream> own = device_.make_stream(gpu_, wish_);
  const std::lock_guard lock(strands_mutex_);
  Strand& made = strands_.emplace_back();
  made.hops = std::move(hops);
  made.ahead = std::move(streams);
  made.channel.own = std::move(own);
  strand = static_cast<uint32_t>(strands_.size());
  return memory;
}

Hops& GpuBackend::hops_of(uint32_t strand) {
  const std::lock_guard lock(strands_mutex_);
  if (strand == 0 ? hops_ == nullptr : strand > strands_.size())
    fail(Status::kInternal, "steps of strand {} before it was opened", strand);
  return strand == 0 ? *hops_ : *strands_[strand - 1].hops;
}

GpuBackend::Channel& GpuBackend::channel_of(std::span<const towline_collective_step_t> steps) {
  const std::lock_guard lock(strands_mutex_);
  const uint32_t strand = steps.front().strand;
  return strand == 0 ? collectives_ : strands_[strand - 1].channel;
}

std::vector<GpuBackend::Launch> GpuBackend::build_steps(std::span<const towline_collective_step_t> steps,
                                                        uint64_t number, uint64_t timeout_ns) {
  std::vector<Launch> made(steps.size());
  Mark mark = {};  // of moves and hops, for messages: the mark of the step before
  mark.number = number;
  for (size_t i = 0; i < steps.size(); ++i) {
    const towline_collective_step_t& step = steps[i];
    Launch& launch = made[i];
    if (step.kind == TOWLINE_STEP_CALL) {
      build(*step.call, number, timeout_ns, launch);
      mark = launch.job.mark;
      continue;
    }
    Job& job = launch.job;
    job = base_;
    job.mark = mark;
    job.digest = digest_of(mark);
    job.timeout_ns = timeout_ns > UINT64_MAX - kHopGraceNs ? UINT64_MAX : timeout_ns + kHopGraceNs;
    launch.kernel = kMovingKernel;
    launch.blocks = 1;
    if (step.kind == TOWLINE_STEP_NORM) {
      const auto& norm = *static_cast<const towline_collective_norm_t*>(step.from);
      check_address(norm.residual, "residual");
      check_address(norm.weight, "weight");
      build_rows(norm, launch);
    } else if (step.kind == TOWLINE_STEP_POST) {
      hops_of(step.strand).make_post(job, step.words);
    } else if (step.kind == TOWLINE_STEP_AWAIT) {
      hops_of(step.strand).make_await(job);
    } else {
      check_address(step.from, "input");
      check_address(step.to, "output");
      job.way = Way::kMove;
      job.in[0] = reinterpret_cast<uint64_t>(step.from);
      job.out[0] = reinterpret_cast<uint64_t>(step.to);
      job.bytes = step.bytes;
      launch.blocks = blocks_for(step.bytes);
    }
  }
  return made;
}

void GpuBackend::launch_steps(std::span<const towline_collective_step_t> steps,
                              const std::vector<Launch>& launches, void* stream, uint64_t graph,
                              cuda::Moment* ended) {
  hops_of(steps.front().strand)
      .expect(static_cast<uint64_t>(std::ranges::count_if(
                  launches, [](const Launch& one) { return one.job.way == Way::kPost; })),
              graph != 0);
  size_t begun = 0;
  try {
    put(channel_of(steps), "an operation between hosts", stream, graph, ended, [&](void* in) -> cuda::Code {
      for (const Launch& one : launches) {
        if (const cuda::Code code = enqueue(one, in); code != 0) return code;
        ++begun;
      }
      return 0;
    });
  } catch (const Error& error) {
    // The other ranks must not wait for the rest of it.
    if (begun != 0) abort(error.code(), error.message());
    throw;
  }
  note_recorded(launches.back().job.mark, graph);
}

std::unique_ptr<StreamMessage> GpuBackend::issue_steps(std::span<const towline_collective_step_t> steps,
                                                       uint64_t number, uint64_t timeout_ns, void* stream,
                                                       bool beside) {
  const uint64_t graph = graph_of(stream);
  const std::vector<Launch> launches = build_steps(steps, number, timeout_ns);
  Channel& channel = channel_of(steps);
  if (!beside) {
    put_in(channel, stream, graph,
           [&](void* in, cuda::Moment* ended) { launch_steps(steps, launches, in, graph, ended); });
    return nullptr;
  }
  void* const own = own_stream(channel, graph != 0);
  std::unique_ptr<StreamMessage> message = begin_beside(stream, own, graph);
  launch_steps(steps, launches, own, graph, message->ended.get());
  return message;
}

Status GpuBackend::perform_steps(std::span<const towline_collective_step_t> steps, uint64_t number,
                                 Deadline deadline) {
  const uint64_t now = monotonic_now_ns();
  const std::vector<Launch> launches =
      build_steps(steps, number, deadline.passed(now) ? 0 : deadline.ns() - now);
  launch_steps(steps, launches, own_stream(collectives_, false), 0, nullptr);
  // Hops and kernels say better why they ended late.
  return wait_for(collectives_, Deadline::after(deadline.ns(), 2 * kHopGraceNs),
                  [&] { return text_of(launches.back().job.mark); });
}

void GpuBackend::start_steps(std::span<const towline_collective_step_t> steps, StreamMessage& message) {
  const std::vector<Launch> launches = build_steps(steps, 0, UINT64_MAX);
  message.ended = device_.make_moment(gpu_);
  launch_steps(steps, launches, own_stream(channel_of(steps), false), 0, message.ended.get());
}

}  // namespace towline::collectives::gpu
