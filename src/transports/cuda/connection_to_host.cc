// Copies by the copy engine, and which way large copies to host memory take.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "transports/cuda/backend.h"
#include "transports/cuda/connection.h"

namespace towline::cuda {

namespace {

constexpr size_t kMostCuts = 8;  // two on each side, unless regions were pinned in yet more pieces

}  // namespace

// Describes the present way of copies to the host, and the measured speed of either way.
std::string Connection::describe_queue(const QueueName& name, const OneQueue& queue) const {
  const Settings& settings = backend_.settings();
  HostWay way = queue.choice.better();
  if (settings.beside == Beside::kCopy) way = HostWay::kDirect;
  if (settings.beside == Beside::kModel) way = HostWay::kGathered;
  std::string why;
  if (settings.reserve.any() && queue.queue->reserved_sms() == 0)
    why = settings.after_default_stream ? "ordered with the default stream"
                                        : backend_.device().reserve(name.gpu, settings.reserve).why_not;
  return fmt::format(
      R"({{"by": "{} {}", "urgent": {}, "reserved_sms": {}, "none_reserved": {}, "beside": "{}", "large_to_host": "{}", )"
      R"("gathered_gb_per_s": {:.1f}, "direct_gb_per_s": {:.1f}, )"
      R"("scattered_to_host": "{}", "scattered_by_threads_gb_per_s": {:.1f}, "scattered_direct_gb_per_s": {:.1f}}})",
      name.op == TOWLINE_READ ? "pull by" : "push by", uuid_text(backend_.device().gpus()[name.gpu].uuid),
      name.urgent, queue.queue->reserved_sms(),
      nlohmann::json(why).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
      beside_name(settings.beside), way == HostWay::kGathered ? "gathered" : "direct",
      queue.choice.gb_per_s(HostWay::kGathered), queue.choice.gb_per_s(HostWay::kDirect),
      settings.beside == Beside::kCopy                        ? "direct"
      : queue.scattered_choice.better() == HostWay::kGathered ? "gathered"
                                                              : "direct",
      queue.scattered_choice.gb_per_s(HostWay::kGathered), queue.scattered_choice.gb_per_s(HostWay::kDirect));
}

void Connection::make_gathered(Prepared& prepared, const Ways& ways) {
  try {
    const bool threads = backend_.settings().host_threads != 0 && backend_.device().same_addresses();
    prepared.gathered = ToHost::make(*prepared.plan, ways, prepared.queue, prepared.pinned, threads);
    if (prepared.gathered == nullptr || !prepared.gathered->scattered()) return;
    OneQueue& queue = queue_of(queue_name(prepared, prepared.urgent));
    if (queue.scatter == nullptr)
      queue.scatter = std::make_unique<HostScatter>(backend_.device(), backend_.team(),
                                                    backend_.device().gpus()[prepared.gpu].host_node);
  } catch (const core::Error& error) {
    prepared.gathered = nullptr;
    if (!std::exchange(told_of_staging_, true))
      host().log(1, "copies to the host go by the kernel, which may slow a model down: " + error.message());
  }
}

void Connection::find_cuts(Prepared& prepared) {
  prepared.cuts.clear();
  for (const uint64_t side : {prepared.work->to(), prepared.work->from()}) {
    for (const auto& pinned : prepared.pinned) {
      const uint64_t begin = side - pinned->delta();
      const uint64_t end = begin + prepared.plan->bytes;
      for (uint64_t cut = pinned->end_of(begin); cut < end; cut = pinned->end_of(cut))
        prepared.cuts.push_back(cut - begin);
    }
  }
  std::sort(prepared.cuts.begin(), prepared.cuts.end());
  prepared.copy_engine = prepared.cuts.size() <= kMostCuts;
}

Code Connection::copy_by_engine(const Prepared& prepared, const Job& job) noexcept {
  std::array<CopyQueue::Range, kMostCuts + 1> ranges;
  size_t count = 0;
  uint64_t at = job.begin;
  const auto add = [&](uint64_t end) {
    ranges[count++] = {prepared.work->to() + at, prepared.work->from() + at, end - at};
    at = end;
  };
  for (const uint64_t cut : prepared.cuts)
    if (cut > at && cut < job.end) add(cut);
  add(job.end);
  return job.queue->copy({ranges.data(), count}, job.slot, job.value);
}

// Parts of a large copy go the same way, one that is tried out as well.
void Connection::choose_way(const Prepared& prepared, OneQueue& queue, Job& job) noexcept {
  const Settings& settings = backend_.settings();
  if (prepared.gathered == nullptr) return;
  // The speed of the host's threads depends on the machine: so scattered lists always try both.
  const bool scattered = prepared.gathered->scattered();
  const bool given = !scattered && (settings.beside == Beside::kModel || prepared.queue->reserved_sms() != 0);
  const uint64_t bytes = job.end - job.begin;
  if (bytes < (given ? ToHost::kLeastBytes : ToHost::kWorthTrying)) return;
  job.way = given ? HostWay::kGathered : (scattered ? queue.scattered_choice : queue.choice).next();
  job.timed = queue.free_slots.size() == CopyQueue::kSlots;
  job.began_ns = host().now_ns();
  if (job.way == HostWay::kGathered) job.gathered = prepared.gathered.get();
  if (job.gathered != nullptr && scattered) job.scatter = queue.scatter.get();
  job.paced = job.way == HostWay::kDirect;
}

void Connection::feed_scattered(Job& job) noexcept {
  while (job.status == Status::kOk && job.next < job.end && job.scatter->has_room()) {
    const Code code =
        job.scatter->relay(*job.gathered, *job.queue, kGatherBlocks, job.next, job.end, job.chunks);
    if (code == 0) continue;
    job.status = Status::kIo;
    job.code = code;
  }
  job.queued = job.status != Status::kOk || job.next == job.end;
}

// Queues as many chunks as there is room for. After a cancel or a failure the rest is skipped.
void Connection::feed(Job& job) noexcept {
  if (job.scatter != nullptr) return feed_scattered(job);
  CopyQueue& queue = *job.queue;
  while (job.status == Status::kOk && job.next < job.end && queue.relays_under_way() < ToHost::kChunksAhead) {
    const uint64_t before = job.next;
    const Code code = job.gathered->relay(queue, kGatherBlocks, job.next, job.end);
    if (code == 0) continue;
    job.next = before;
    job.status = Status::kIo;
    job.code = code;
  }
  if (job.status == Status::kOk && job.next < job.end) return;
  job.queued = queue.mark(job.slot, job.value) == 0;
}

void Connection::note_time(const Job& job, uint64_t now_ns) noexcept {
  for (auto& [which, queue] : queues_)
    if (queue.queue.get() == job.queue && now_ns > job.began_ns)
      (job.prepared->gathered->scattered() ? queue.scattered_choice : queue.choice)
          .ended(job.way, job.end - job.begin, now_ns - job.began_ns);
}

}  // namespace towline::cuda
