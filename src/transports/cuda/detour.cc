#include "transports/cuda/detour.h"

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/short_text.h"
#include "gpu/near_memory.h"
#include "transports/cuda/backend.h"
#include "transports/cuda/connection.h"

namespace towline::cuda {

namespace {

constexpr uint64_t kPoolBytes = kDetourSlots * kDetourSlotBytes;
constexpr std::size_t kMostJobs = 256;
constexpr size_t kWindow = 64;
constexpr uint64_t kUrgentForNs = kSecondNs;
constexpr auto kBulkSlots = 2;  // while urgent parts come
constexpr uint32_t kBothFences = TOWLINE_PART_FENCED_LOCAL | TOWLINE_PART_FENCED_REMOTE;

}  // namespace

Detour::Detour(Backend& backend, Connection& connection, std::optional<uint32_t> node)
    : backend_(backend),
      connection_(connection),
      memory_(allocate_near(node, kPoolBytes)),
      slots_(kDetourSlots) {
  jobs_.reserve(kMostJobs);
  free_.reserve(kMostJobs);
  stretches_.reserve(kMostStretches);
  for (Slot& slot : slots_) slot.request.reserve(TOWLINE_MAX_MESSAGE_BYTES);
  pool_ = backend_.share_pool(memory_->address(), kPoolBytes);
}

Detour::~Detour() { backend_.unshare_pool(pool_.key); }

std::shared_ptr<PieceCopier> Detour::copier(std::optional<uint32_t> gpu, bool read) {
  auto& mine = copiers_[{gpu ? int64_t{*gpu} : -1, read}];
  if (mine == nullptr && !gpu) mine = std::make_shared<PieceCopier>(backend_.team(), read);
  if (mine == nullptr)
    mine = std::make_shared<PieceCopier>(backend_.device(), *gpu, backend_.settings().after_default_stream,
                                         backend_.settings().host_blocks);
  return mine;
}

uint64_t Detour::address_for(std::optional<uint32_t> gpu) {
  if (!gpu) return pool_.address;
  if (pinned_ == nullptr) pinned_ = backend_.device().pin(pool_.address, pool_.bytes);
  return pool_.address + pinned_->delta();
}

// ---- moving

int32_t Detour::begin(DetourPlan& plan, const towline_submit_args& args) noexcept try {
  if (jobs_.size() == kMostJobs) return TOWLINE_AGAIN;
  if (free_.empty()) free_.push_back(std::make_unique<Job>());
  Job& job = *free_.back();
  const auto* message = static_cast<const uint8_t*>(args.message);
  job.message.assign(message, message + args.message_bytes);
  job.cookie = args.cookie;
  job.plan = &plan;
  job.cursor.emplace(*plan.plan, args.begin, args.end);
  job.begin = args.begin;
  job.end = args.end;
  job.failed_begin = UINT64_MAX;
  job.under_way = 0;
  job.unanswered = false;
  job.urgent = (args.flags & TOWLINE_SUBMIT_URGENT) != 0;
  job.status = Status::kOk;
  job.code = 0;
  ++plan.under_way;
  jobs_.push_back(std::move(free_.back()));
  free_.pop_back();
  backend_.host().wake(connection_.worker());
  return TOWLINE_IN_PROGRESS;
} catch (const std::bad_alloc&) {
  return static_cast<int32_t>(Status::kOutOfMemory);
}

void Detour::cancel(uint64_t cookie) noexcept {
  for (const auto& job : jobs_) {
    if (job->cookie != cookie || job->status != Status::kOk) continue;
    job->status = Status::kCancelled;
    backend_.host().wake(connection_.worker());
  }
}

// The part that gets a free slot. Null: none may begin a chunk.
Detour::Job* Detour::next_job(uint64_t now_ns) noexcept {
  const auto oldest = [&](bool urgent) -> Job* {
    const auto found = std::find_if(jobs_.begin(), jobs_.end(), [urgent](const auto& job) {
      return job->urgent == urgent && job->has_chunks();
    });
    return found == jobs_.end() ? nullptr : found->get();
  };
  if (std::any_of(jobs_.begin(), jobs_.end(), [](const auto& job) { return job->urgent; }))
    last_urgent_ns_ = now_ns;
  Job* const urgent = oldest(true);
  Job* bulk = oldest(false);
  if (bulk != nullptr && last_urgent_ns_ != 0 && now_ns - last_urgent_ns_ < kUrgentForNs) {
    const auto busy = std::count_if(slots_.begin(), slots_.end(), [](const Slot& slot) {
      return slot.job != nullptr && !slot.job->urgent;
    });
    if (busy >= kBulkSlots) bulk = nullptr;
  }
  return turns_.take(urgent != nullptr, bulk != nullptr) ? urgent : bulk;
}

bool Detour::begin_chunk(uint32_t index, uint64_t now_ns) noexcept {
  Job* const next = next_job(now_ns);
  if (next == nullptr) return false;
  Slot& slot = slots_[index];
  slot.job = next;
  slot.begin = slot.job->cursor->position();
  ++slot.job->under_way;
  ++chunks_;
  cut(*slot.job, index);
  if (slot.job->plan->read) {
    slot.stage = Stage::kFilled;
    (void)other_side(index);
  } else {
    start(index, Stage::kFilling);
  }
  return true;
}

// One chunk holds a slot's worth at most; where the owner is asked, of regions that one of its GPUs copies.
void Detour::cut(Job& job, uint32_t index) noexcept {
  const DetourPlan& plan = *job.plan;
  plugin::Cursor& cursor = *job.cursor;
  plan.copier->clear(index);
  if (plan.far != nullptr) plan.far->clear(index);
  stretches_.clear();
  const uint64_t offset = index * kDetourSlotBytes;
  uint64_t bytes = 0;
  uint64_t place = 0;
  towline_segment segments[kWindow];
  while (bytes < kDetourSlotBytes && stretches_.size() < kMostStretches && !cursor.done()) {
    uint64_t at = cursor.position();
    const size_t count = cursor.next(segments, std::min(kWindow, kMostStretches - stretches_.size()),
                                     kDetourSlotBytes - bytes);
    for (size_t i = 0; i < count; ++i) {
      const towline_segment& segment = segments[i];
      const DetourPlan::Target& target = plan.targets[segment.remote_region];
      if (stretches_.empty()) place = target.place;
      if (target.place != place && plan.far == nullptr) {
        cursor.seek(at, job.end);
        bytes = kDetourSlotBytes;
        break;
      }
      const uint64_t ours = segment.local + plan.local_deltas[segment.local_region];
      const uint64_t pool = plan.pool + offset + bytes;
      if (plan.far != nullptr) {
        const uint64_t theirs = segment.remote + plan.far_deltas[segment.remote_region];
        const uint64_t far_pool = plan.far_pool + offset + bytes;
        plan.far->add(index, plan.read ? far_pool : theirs, plan.read ? theirs : far_pool, segment.length);
      }
      plan.copier->add(index, plan.read ? ours : pool, plan.read ? pool : ours, segment.length);
      stretches_.push_back({target.key, segment.remote, segment.length});
      bytes += segment.length;
      at += segment.length;
    }
  }
  if (plan.far != nullptr) return;
  Slot& slot = slots_[index];
  slot.number = ++last_number_;
  encode(Move{slot.number, !plan.read, pool_, offset}, stretches_, slot.request);
}

// False: not yet.
bool Detour::other_side(uint32_t index) noexcept {
  Slot& slot = slots_[index];
  if (slot.job->status == Status::kOk) {
    if (slot.job->plan->far == nullptr) return ask(slot);
    start(index, Stage::kFar);
  } else {  // it goes no further
    chunk_failed(slot, slot.job->status, slot.job->code);
  }
  return true;
}

bool Detour::ask(Slot& slot) noexcept {
  const int32_t sent = connection_.send_beside(slot.request);
  if (sent == TOWLINE_AGAIN) return false;
  if (sent < 0)
    chunk_failed(slot, static_cast<Status>(sent), 0);
  else if (down_ != Status::kOk)  // meanwhile
    never_answered(slot, down_);
  else
    slot.stage = Stage::kAsked;
  return true;
}

void Detour::start(uint32_t index, Stage stage) noexcept {
  Slot& slot = slots_[index];
  slot.stage = stage;
  const DetourPlan& plan = *slot.job->plan;
  if (const Code code = (stage == Stage::kFar ? plan.far : plan.copier)->start(index); code != 0)
    chunk_failed(slot, Status::kIo, code);
}

uint32_t Detour::advance(uint32_t index, uint64_t now_ns) noexcept {
  Slot& slot = slots_[index];
  switch (slot.stage) {
    case Stage::kIdle:
      return begin_chunk(index, now_ns) ? 1 : 0;
    case Stage::kAsked:
      return 0;
    case Stage::kFilled:
      return other_side(index) ? 1 : 0;
    case Stage::kAnswered:
      if (slot.job->status == Status::kOk)
        start(index, Stage::kEmptying);
      else
        chunk_failed(slot, slot.job->status, slot.job->code);
      return 1;
    case Stage::kFilling:
    case Stage::kFar:
    case Stage::kEmptying:
      break;
  }
  const DetourPlan& plan = *slot.job->plan;
  const Code code = (slot.stage == Stage::kFar ? plan.far : plan.copier)->look(index, now_ns);
  if (code == CopyQueue::kBusy) return 0;
  if (code != 0) {
    chunk_failed(slot, Status::kIo, code);
  } else if (slot.stage == Stage::kFilling) {
    slot.stage = Stage::kFilled;
    (void)other_side(index);
  } else if (slot.stage == Stage::kFar && plan.read) {
    slot.stage = Stage::kAnswered;
  } else {
    chunk_over(slot);
  }
  return 1;
}

void Detour::on_moved(const Moved& moved) noexcept {
  const auto found = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    return slot.stage == Stage::kAsked && slot.number == moved.number;
  });
  if (found == slots_.end()) return;
  if (moved.status == Status::kOk) {
    if (!found->job->plan->read) return chunk_over(*found);
    found->stage = Stage::kAnswered;
    return;
  }
  const uint64_t now_ns = backend_.host().now_ns();
  if (last_refusal_logged_ns_ == 0 || now_ns - last_refusal_logged_ns_ > kSecondNs) {
    last_refusal_logged_ns_ = now_ns;
    backend_.host().log(
        1, ShortText("the owner of memory that is reached through host memory says: {}", moved.text));
  }
  chunk_failed(*found, moved.status, moved.code);
}

void Detour::chunk_over(Slot& slot) noexcept {
  --slot.job->under_way;
  slot.stage = Stage::kIdle;
  slot.job = nullptr;
}

void Detour::chunk_failed(Slot& slot, Status status, int32_t code) noexcept {
  Job& job = *slot.job;
  job.failed_begin = std::min(job.failed_begin, slot.begin);
  if (job.status == Status::kOk) {
    job.status = status;
    job.code = code;
  }
  chunk_over(slot);
}

uint32_t Detour::finish_jobs() noexcept {
  uint32_t done = 0;
  for (size_t i = 0; i < jobs_.size();) {
    Job& job = *jobs_[i];
    if (job.over() && job.status == Status::kOk && !job.message.empty()) {
      const int32_t sent = connection_.send(job.message.data(), job.message.size());
      if (sent == TOWLINE_AGAIN) {
        ++i;
        continue;
      }
      if (sent < 0) job.status = static_cast<Status>(sent);
    }
    if (!job.over()) {
      ++i;
      continue;
    }
    std::unique_ptr<Job> ended = std::move(jobs_[i]);
    jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
    const uint32_t fences = fences_of(*ended);
    complete(std::move(ended), fences);  // may submit or disconnect
    ++done;
  }
  return done;
}

uint32_t Detour::progress(uint64_t now_ns) noexcept {
  if (jobs_.empty()) return 0;
  uint32_t done = 0;
  for (uint32_t slot = 0; slot < kDetourSlots; ++slot) done += advance(slot, now_ns);
  return done + finish_jobs();
}

bool Detour::busy() const noexcept {
  const bool moving = std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.stage != Stage::kIdle && slot.stage != Stage::kAsked;
  });
  return moving || std::any_of(jobs_.begin(), jobs_.end(), [](const auto& job) { return job->over(); });
}

// Chunks that the owner was asked for and has not answered may still be moving there.
uint32_t Detour::fences_of(const Job& job) noexcept {
  return job.unanswered ? uint32_t{TOWLINE_PART_FENCED_LOCAL} : kBothFences;
}

void Detour::complete(std::unique_ptr<Job> job, uint32_t fences) noexcept {
  // Chunks that did not start count as failed after those that did.
  const uint64_t there = std::min(job->failed_begin, job->cursor->position());
  auto result = plugin::sized<towline_part_result>();
  result.status = static_cast<int32_t>(job->status);
  result.vendor_code = job->code;
  result.fences = fences;
  result.bytes = (job->status == Status::kOk ? job->end : there) - job->begin;
  if (job->status != Status::kOk) {
    result.failed_begin = there;
    result.failed_end = job->end;
  }
  const uint64_t cookie = job->cookie;
  --job->plan->under_way;
  job->plan = nullptr;
  free_.push_back(std::move(job));
  backend_.host().complete(cookie, result);
}

void Detour::never_answered(Slot& slot, Status status) noexcept {
  slot.job->unanswered = true;
  chunk_failed(slot, status, 0);
}

void Detour::call_off(Status status) noexcept {
  down_ = status;
  for (Slot& slot : slots_)
    if (slot.stage == Stage::kAsked) never_answered(slot, status);
  for (const auto& job : jobs_)
    if (job->status == Status::kOk) job->status = status;
}

void Detour::give_up(Status status) noexcept {
  while (!jobs_.empty()) {
    std::unique_ptr<Job> job = std::move(jobs_.back());
    jobs_.pop_back();
    if (job->status == Status::kOk) job->status = status;
    const uint32_t fences = job->under_way == 0 ? fences_of(*job) : 0;
    job->plan->given_up = job->plan->given_up || job->under_way != 0;
    complete(std::move(job), fences);
  }
}

std::string Detour::describe(const std::string& why) const {
  return nlohmann::json{
      {"why", why}, {"bytes", pool_.bytes}, {"chunks", chunks_}, {"under_way", jobs_.size()}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace towline::cuda
