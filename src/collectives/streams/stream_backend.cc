#include "collectives/streams/stream_backend.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "base/sync/spin.h"

namespace towline::collectives {
namespace {

// Beyond its time an operation that the GPU has not begun is given up.
constexpr uint64_t kGraceNs = 2 * kSecondNs;

}  // namespace

StreamBackend::StreamBackend(const towline_collective_open_args& args, cuda::KernelDevice& device)
    : host_(args.host),
      rank_(static_cast<uint32_t>(args.rank)),
      size_(static_cast<uint32_t>(args.size)),
      device_(device) {
  const bool named = args.struct_size >= TOWLINE_BYTES_THROUGH(towline_collective_open_args, called) &&
                     args.called != nullptr;
  for (int32_t rank = 0; rank < args.size; ++rank) called_.push_back(named ? args.called[rank] : rank);
  device_.start();
  gpu_ = static_cast<uint32_t>(number_setting("tuning.collectives.gpu", device_.current_gpu(), 1 << 16));
  if (gpu_ >= device_.gpus().size())
    fail(Status::kInvalidArgument, "there is no GPU {}: this process sees {}", gpu_, device_.gpus().size());
}

uint64_t StreamBackend::number_setting(const char* key, uint64_t fallback, uint64_t most) const {
  const std::string text = host_->config(host_->context, key, "");
  if (text.empty()) return fallback;
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text.c_str(), &end, 10);
  if (*end != 0 || value > most)
    fail(Status::kInvalidArgument, "{} = \"{}\": expected a number up to {}", key, text, most);
  return value;
}

cuda::Noticeboard StreamBackend::board() const {
  return {[this](const std::string& key, std::span<const uint8_t> value) {
            const int32_t status = host_->store_set(host_->context, key.c_str(), value.data(), value.size());
            if (status < 0) fail(Status{status}, "the store did not take {} of this rank", key);
          },
          [this](const std::string& key, Deadline deadline) {
            std::vector<uint8_t> value(4096);
            size_t bytes = 0;
            const int32_t status = host_->store_get(host_->context, key.c_str(), deadline.ns(), value.data(),
                                                    value.size(), &bytes);
            if (status < 0) fail(Status{status}, "{} of another rank did not come", key);
            value.resize(std::min(bytes, value.size()));
            return value;
          }};
}

void StreamBackend::issue_norm(const towline_collective_norm_t&, uint64_t, uint64_t, void*) {
  fail(Status::kUnsupported,
       "this backend does not fuse all_reduce with RMSNorm: issue the all_reduce, and normalise its result");
}

// ---- Checks

void StreamBackend::check_address(const void* address, const char* what) const {
  if (address != nullptr && !device_.usable(gpu_, reinterpret_cast<uint64_t>(address)))
    fail(Status::kInvalidArgument,
         "{} at {} is neither memory of GPU {} nor pinned: kernels of this communicator cannot reach it",
         what, address, gpu_);
}

void StreamBackend::check_memory(const towline_collective_t& call, const Call& parts) const {
  if (call.inputs == nullptr)
    check_address(parts.op == TOWLINE_COLLECTIVE_BROADCAST ? parts.input : call.input, "input");
  else if (!parts.in.at.empty())
    for (const uint8_t* part : parts.in.at) check_address(part, "a part of the input");
  if (call.outputs == nullptr && call.output == call.input && call.inputs == nullptr) return;  // looked at
  if (call.outputs == nullptr)
    check_address(parts.op == TOWLINE_COLLECTIVE_BROADCAST ? parts.output : call.output, "output");
  else if (!parts.out.at.empty())
    for (const uint8_t* part : parts.out.at) check_address(part, "a part of the output");
}

uint64_t StreamBackend::graph_of(void* stream) const {
  uint64_t graph = 0;
  if (device_.stream_state(gpu_, stream, graph) == cuda::StreamState::kForeign)
    fail(Status::kInvalidArgument,
         "the stream is not of GPU {}, which this communicator uses, or not of its primary context", gpu_);
  if (graph != 0) in_graphs_.store(true, std::memory_order_relaxed);
  return graph;
}

// ---- Streams

void* StreamBackend::own_stream(Channel& channel, bool in_graphs) {
  const std::lock_guard lock(channel.mutex);
  std::unique_ptr<cuda::OwnStream>& own = in_graphs ? channel.in_graphs : channel.own;
  if (own == nullptr) own = device_.make_stream(gpu_, wish_);
  return own->native();
}

cuda::Code StreamBackend::come_after(Channel& channel, void* stream, uint64_t graph) {
  if (channel.running.last == nullptr) channel.running.last = device_.make_moment(gpu_);
  if (graph == 0) {
    // The last may be a replay's, in a stream that nobody here knows.
    const bool elsewhere = channel.running.used && channel.running.stream != stream;
    const bool replays = order_replays_ && channel.recorded.used;
    return elsewhere || replays ? channel.running.last->precede(stream) : 0;
  }
  Tail& tail = channel.recorded;
  if (tail.last == nullptr) tail.last = device_.make_moment(gpu_);
  if (tail.used && tail.graph == graph) return tail.stream != stream ? tail.last->precede(stream) : 0;
  tail.place = {};
  return order_replays_ ? channel.running.last->precede_replays(stream) : 0;
}

cuda::Code StreamBackend::go_before(Channel& channel, void* stream, uint64_t graph) noexcept {
  Tail& tail = graph == 0 ? channel.running : channel.recorded;
  tail.stream = stream;
  tail.graph = graph;
  tail.used = true;
  cuda::Code code = tail.last->record(stream);
  if (code == 0 && graph != 0 && order_replays_)
    code = channel.running.last->record_in_replays(stream, tail.place);
  return code;
}

bool StreamBackend::drained(const Channel& channel) noexcept {
  return channel.running.last == nullptr || channel.running.last->state() != cuda::Moment::kBusy;
}

std::unique_ptr<StreamMessage> StreamBackend::begin_beside(void* stream, void* own, uint64_t graph) {
  std::unique_ptr<StreamMessage> message;
  {
    const std::lock_guard lock(spare_mutex_);
    if (!spare_.empty()) {
      message = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  if (message == nullptr) {
    message = std::make_unique<StreamMessage>();
    message->ended = device_.make_moment(gpu_);
  }
  message->captured_on = graph != 0 ? own : nullptr;
  message->graph = graph;
  cuda::Code code = message->ended->record(stream);
  if (code == 0) code = message->ended->precede(own);
  if (code != 0) fail(Status::kIo, "cannot order an operation after its stream: {}", device_.code_text(code));
  return message;
}

void StreamBackend::precede(StreamMessage& message, void* stream) {
  const uint64_t graph = graph_of(stream);
  if (message.graph != 0 && graph != message.graph)
    fail(Status::kInvalidArgument,
         "the operation is part of a graph: only streams of the same capture wait for it");
  if (const cuda::Code code = message.ended->precede(stream); code != 0)
    fail(Status::kIo, "cannot order a stream after an operation: {}", device_.code_text(code));
}

void StreamBackend::take_back(std::unique_ptr<StreamMessage> message) noexcept {
  if (message->ended == nullptr) return;
  message->refused = Status::kOk;
  const std::lock_guard lock(spare_mutex_);
  spare_.push_back(std::move(message));
}

Status StreamBackend::test(StreamMessage& message) {
  if (message.captured_on != nullptr) {
    // It runs when the graph does. While the capture lasts the application may still make streams wait for it.
    const bool captured = device_.recorded_graph(gpu_, message.captured_on) == message.graph;
    return captured ? Status::kInProgress : Status::kOk;
  }
  const cuda::Code code = message.ended->state();
  if (code == cuda::Moment::kBusy) return Status::kInProgress;
  if (code != 0)
    return breaker_.raise(Status::kIo, fmt::format("rank {}: the GPU failed in a message: {}", called_[rank_],
                                                   device_.code_text(code)));
  look();
  return breaker_.broken() ? breaker_.status() : Status::kOk;
}

Status StreamBackend::wait_for(Channel& channel, Deadline deadline,
                               const std::function<std::string()>& text) {
  const uint64_t begun = monotonic_now_ns();
  constexpr uint64_t kBusyNs = kMillisecondNs;
  constexpr auto kPause = std::chrono::microseconds(50);
  SpinWait spin(20000, 1000);
  for (;;) {
    const cuda::Code code = channel.running.last->state();
    if (code == 0) break;
    if (code != cuda::Moment::kBusy)
      return breaker_.raise(Status::kIo, fmt::format("rank {}: the GPU failed in {}: {}", called_[rank_],
                                                     text(), device_.code_text(code)));
    if (spin.again()) continue;
    const uint64_t now = monotonic_now_ns();
    // Each look takes the driver's lock. Threads of 27 ranks that never rested kept others from making a stream for a minute.
    if (now - begun < kBusyNs)
      ::sched_yield();
    else
      std::this_thread::sleep_for(kPause);
    if (now - begun > kGraceNs && deadline.passed(now - kGraceNs)) {
      abort(Status::kTimedOut,
            fmt::format("rank {} timed out in {}, which its GPU has not begun", called_[rank_], text()));
      return breaker_.status();
    }
  }
  look();
  return breaker_.broken() ? breaker_.status() : Status::kOk;
}

}  // namespace towline::collectives
