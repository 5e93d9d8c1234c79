// Transfers in streams of the application's, and in its graphs.
//
// It is unknown when a stream reaches its work, so everything that the work needs must stay until then: a
// valve's words stay for ever (device.h), and the mappings and lists of a plan are released only once its
// valves are closed and quiet.
#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "transports/cuda/backend.h"
#include "transports/cuda/begun_copies.h"
#include "transports/cuda/connection.h"

namespace towline::cuda {

namespace {

using CaptureHandle = std::shared_ptr<Capture>;

Connection& connection_of(const Prepared& prepared) {
  return *reinterpret_cast<Connection*>(prepared.connection);
}

}  // namespace

bool Prepared::settle() noexcept {
  const int32_t down = lost->load();
  bool quiet = true;
  if (valve != nullptr) {
    valve->close();
    quiet = is_quiet(*valve, *queue);
  }
  for (const auto& capture : captures) {
    int32_t open = 0;
    (void)capture->closed.compare_exchange_strong(open,
                                                  down != 0 ? down : static_cast<int32_t>(Status::kStale));
    capture->valve->close();
    quiet = is_quiet(*capture->valve, *queue) && quiet;
  }
  return quiet;
}

void keep_for_good(const void* object) noexcept try {
  static std::mutex mutex;
  static auto* const kept = new std::vector<const void*>;
  const std::lock_guard lock(mutex);
  kept->push_back(object);
} catch (const std::bad_alloc&) {  // kept, and not reachable
}

Prepared::~Prepared() {
  const bool runs_on = given_up || (detour != nullptr && detour->given_up);
  if (!runs_on && valve == nullptr && captures.empty()) return;
  const bool quiet = wait_within(kQuietWithinNs, [this] { return settle(); });
  if (valve != nullptr) device->give_valve_back(*valve);
  if (quiet && !runs_on) return;
  TOWLINE_LOG(kError, "cuda: a copy that was begun does not end: what it reaches stays mapped for good");
  keep_value_for_good(std::move(held));
  keep_value_for_good(std::move(pinned));
  keep_value_for_good(std::move(queue));
  keep_for_good(work.release());
  keep_for_good(gathered.release());
  keep_for_good(detour.release());
}

// kRuns or kRecords; a negative status for what can't be used.
int32_t Connection::look_at_stream(Prepared& prepared, void* stream, StreamState& state) noexcept try {
  if (prepared.work == nullptr && !pinned_meanwhile(prepared, PinNow::kYes))
    return host().refuse(Status::kUnsupported,
                         "cuda: the bytes go through host memory, and not in the order of a stream");
  state = prepared.device->stream_state(prepared.gpu, stream);
  if (state != StreamState::kForeign) return TOWLINE_OK;
  return host().refuse(
      Status::kInvalidArgument,
      fmt::format("cuda: the stream is not of GPU {} ({}), whose copies these are, or not of its primary "
                  "context",
                  prepared.gpu, uuid_text(prepared.device->gpus()[prepared.gpu].uuid)));
} catch (const core::Error& error) {
  return host().refuse(error.code(), error.message());
} catch (const std::exception& error) {
  return host().refuse(Status::kInternal, error.what());
}

// The list was sent on this side's queue, for which the application's stream does not wait by itself.
Code Connection::list_first(Prepared& prepared, void* stream, StreamState state) noexcept {
  if (prepared.list_there) return 0;
  Code code = prepared.queue->state();
  if (code == CopyQueue::kBusy && state == StreamState::kRuns) return prepared.queue->precede(stream);
  // A graph's part can't wait for a queue.
  (void)wait_within(kListWithinNs, [&] { return (code = prepared.queue->state()) != CopyQueue::kBusy; });
  prepared.list_there = code == 0;
  return code;
}

int32_t Connection::capture_on(towline_prepared* handle, void* stream, towline_capture** out) noexcept try {
  auto& prepared = *static_cast<Prepared*>(handle);
  Connection& self = connection_of(prepared);
  if (!self.up_) return static_cast<int32_t>(Status::kPeerLost);
  StreamState state{};
  if (const int32_t status = self.look_at_stream(prepared, stream, state); status < 0) return status;
  if (state != StreamState::kRecords) return TOWLINE_AGAIN;
  if (out == nullptr) return TOWLINE_OK;
  auto capture = std::make_shared<Capture>();
  auto owned = std::make_unique<CaptureHandle>(capture);
  prepared.captures.reserve(prepared.captures.size() + 1);
  capture->valve = &prepared.device->take_valve(prepared.gpu);
  capture->runs_before = capture->valve->ended();
  capture->refused_before = capture->valve->refused();
  prepared.captures.push_back(capture);
  const CopyJob work = prepared.work->job(0, prepared.plan->bytes);
  Code code = self.list_first(prepared, stream, state);
  if (code == CopyQueue::kBusy)
    return self.host().refuse(
        Status::kTimedOut,
        fmt::format("cuda: the page list did not reach GPU {} within {} ms, because its default stream or an "
                    "earlier copy is stuck: record the graph later",
                    prepared.gpu, kListWithinNs / kMillisecondNs));
  if (code == 0) code = capture->valve->launch(work, useful_blocks(work, prepared.blocks), stream);
  if (code != 0) {
    capture->valve->close();  // for ever: the graph may hold half of it
    prepared.captures.pop_back();
    return self.refuse_code("recording a copy in a graph failed: ", code);
  }
  *out = reinterpret_cast<towline_capture*>(owned.release());
  return TOWLINE_OK;
} catch (const core::Error& error) {
  return connection_of(*static_cast<Prepared*>(handle)).host().refuse(error.code(), error.message());
} catch (const std::bad_alloc&) {
  return static_cast<int32_t>(Status::kOutOfMemory);
}

int32_t Connection::submit_on(towline_prepared* handle, const towline_submit_args& args,
                              void* stream) noexcept {
  auto& prepared = *static_cast<Prepared*>(handle);
  return connection_of(prepared).begin_on(prepared, args, stream);
}

int32_t Connection::begin_on(Prepared& prepared, const towline_submit_args& args, void* stream) noexcept try {
  if (!up_) return static_cast<int32_t>(Status::kPeerLost);
  Valve*& valve = prepared.valve;
  if (valve != nullptr && valve->ended() != valve->launched()) {
    // A cancelled run that its stream has not reached yet.
    valve->close();
    prepared.device->give_valve_back(*std::exchange(valve, nullptr));
  }
  if (valve == nullptr)
    valve = &prepared.device->take_valve(prepared.gpu);
  else
    valve->open();
  Job& job = make_job(prepared, args);
  job.valve = valve;
  job.value = valve->launched() + 1;
  if (!job.moved) {
    const CopyJob work = prepared.work->job(args.begin, args.end);
    Code code = list_first(prepared, stream, StreamState::kRuns);
    if (code == 0) code = valve->launch(work, useful_blocks(work, prepared.blocks), stream);
    if (code != 0) {
      // A run may have been counted whose copy was refused: what follows counts from another valve.
      valve->close();
      prepared.device->give_valve_back(*std::exchange(valve, nullptr));
      prepared.last_on_stream = false;
      return refuse_code("putting a copy into the stream failed: ", code);
    }
  }
  prepared.last_on_stream = true;
  job_begun();
  return TOWLINE_IN_PROGRESS;
} catch (const core::Error& error) {
  return host().refuse(error.code(), error.message());
} catch (const std::bad_alloc&) {
  return static_cast<int32_t>(Status::kOutOfMemory);
}

int32_t Connection::wait_on(towline_prepared* handle, towline_capture* last, void* stream) noexcept {
  auto& prepared = *static_cast<Prepared*>(handle);
  Connection& self = connection_of(prepared);
  if (!self.up_) return static_cast<int32_t>(Status::kPeerLost);
  if (!prepared.local_hosts.empty() && prepared.detour->under_way != 0)
    return TOWLINE_AGAIN;  // a stream can't wait for host threads
  StreamState state{};
  if (const int32_t status = self.look_at_stream(prepared, stream, state); status < 0) return status;
  Code code = 0;
  if (state == StreamState::kRecords) {
    code = last == nullptr ? 1 : (*reinterpret_cast<CaptureHandle*>(last))->valve->precede(stream);
    if (code != 0)
      return self.host().refuse(
          Status::kUnsupported,
          "cuda: the stream records a graph that the transfer was not captured in: post it on a stream of "
          "the same graph first, or wait before recording");
    return TOWLINE_OK;
  }
  if (prepared.last_on_stream)
    code = prepared.valve->precede(stream);
  else
    code = prepared.queue->precede(stream);
  return code == 0 ? TOWLINE_OK : self.refuse_code("ordering the stream after a copy failed: ", code);
}

void Connection::runs_of(const towline_capture* capture, towline_capture_runs* runs) noexcept {
  const Capture& mine = **reinterpret_cast<const CaptureHandle*>(capture);
  runs->ended = mine.valve->ended() - mine.runs_before;
  runs->refused = mine.valve->refused() - mine.refused_before;
  runs->begun = mine.valve->begun() - mine.runs_before;
  runs->status = mine.closed.load();
}

void Connection::forget(towline_capture* capture) noexcept {
  delete reinterpret_cast<CaptureHandle*>(capture);
}

}  // namespace towline::cuda
