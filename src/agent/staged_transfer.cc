#include "agent/staged_transfer.h"

#include <algorithm>
#include <utility>

#include "agent/agent.h"
#include "agent/leg.h"
#include "agent/link.h"
#include "agent/post.h"
#include "agent/route_planner.h"
#include "base/error.h"

namespace towline {

namespace {

// The largest direct read at a time, about a millisecond. With smaller ones, threads that share a read wait
// for one another more than they copy (stretches of 1 MiB gave 0.89 to 0.97 of the slower leg, of 4 MiB
// 1.11).
constexpr uint64_t kLongestStretch = 8 << 20;
constexpr uint32_t kChunksNotTried = 16;  // after a stretch that was not cached

// For files and objects, whose access says what this agent may do.
void check_local_access(const BlockList& local, uint32_t op) {
  const uint32_t needed = op == TOWLINE_READ ? TOWLINE_ACCESS_WRITE : TOWLINE_ACCESS_READ;
  const auto regions = local.resolved().regions();
  if (std::all_of(regions.begin(), regions.end(), [needed](const towline_region_ref& region) {
        return !is_storage(region.kind) || (region.access & needed) == needed;
      }))
    return;
  fail(Status::kPermissionDenied, "a region of the '{}' list was registered without {} access",
       op == TOWLINE_READ ? "to" : "from", op == TOWLINE_READ ? "write" : "read");
}

template <class Is>
bool has_region(const BlockList& list, Is&& is) noexcept {
  const towline_list& view = list.view();
  return std::any_of(view.regions, view.regions + view.region_count,
                     [&](const towline_region_ref& region) { return is(region.kind); });
}

bool has_objects(const BlockList& list) noexcept {
  return has_region(list, [](uint32_t kind) { return kind == TOWLINE_MEMORY_OBJECT; });
}

}  // namespace

// ---- making it

StagedTransfer::StagedTransfer(Post& whole, const Plan& plan, uint32_t op,
                               const std::shared_ptr<BlockList>& local,
                               const std::shared_ptr<BlockList>& remote, const StagingPlace& place)
    : whole_(whole),
      read_(op == TOWLINE_READ),
      bytes_(plan.bytes()),
      blocks_(plan.view().blocks),
      runs_(plan.view().run_count),
      chunk_bytes_(whole.agent().staging().settings().chunk_bytes),
      chunks_((bytes_ + chunk_bytes_ - 1) / chunk_bytes_),
      far_is_own_(has_region(*remote, is_storage)),
      collects_(chunks_ > 1 && has_objects(read_ ? *local : *remote)),
      post_(std::make_shared<towline_post>(towline_post{sizeof(towline_post), 0, bytes_})),
      staging_(whole.agent().staging()),
      set_(staging_.join(place)) {
  try {
    check_local_access(*local, op);
    const auto slots = static_cast<uint32_t>(std::min<uint64_t>(staging_.settings().depth, chunks_));
    const Bounce bounce{set_.region(), set_.region().address, chunk_bytes_, slots};
    StagedObjects staged =
        collects_ ? stage_objects(plan, op, bounce) : StagedObjects{stage_plan(plan, op, bounce), {}};
    near_ = whole.agent().as_remote(local);
    slots_.resize(slots);
    legs_.reserve(slots);
    for (const StagedObject& object : staged.objects) objects_.push_back({object});
    ranges_.reserve(4 * std::size_t{slots} + 2 + objects_.size());
    for (StagedColumn& plans : staged.columns) {
      legs_.push_back({make_leg(std::move(plans.near), read_ ? TOWLINE_WRITE : TOWLINE_READ, near_),
                       make_leg(std::move(plans.far), op, remote)});
    }
  } catch (...) {
    staging_.leave(set_);
    throw;
  }
}

std::unique_ptr<Leg> StagedTransfer::make_leg(StagedLeg plans, uint32_t op,
                                              const std::shared_ptr<BlockList>& target) {
  auto ours = std::make_shared<BlockList>(std::move(plans.memory), nullptr, RemoteRegions{});
  auto theirs =
      std::make_shared<BlockList>(std::move(plans.target), target->peer(), target->remote_regions());
  return std::make_unique<Leg>(whole_.agent().shared_from_this(), whole_.parts()[0], op, std::move(ours),
                               std::move(theirs), std::move(plans.plan), post_);
}

StagedTransfer::~StagedTransfer() {
  if (straight_ != nullptr) straight_->end_for_good();
  for (Legs& legs : legs_) {
    legs.near->end_for_good();
    legs.far->end_for_good();
  }
  staging_.leave(set_);
}

void StagedTransfer::establish(const std::string& forced, uint64_t deadline_ns) {
  Agent& agent = whole_.agent();
  const Backend* backend = forced.empty() ? nullptr : agent.backends().find(forced);
  if (!forced.empty() && (backend == nullptr || backend->plugin == nullptr))
    agent.backends().fail_lacks(forced);
  const Need whole = need_of(read_ ? TOWLINE_READ : TOWLINE_WRITE, whole_.local(), whole_.remote(), bytes_);
  const bool near = !forced.empty() &&
                    !may_do(*agent.backends().find(forced), *whole_.remote().peer(), far_leg(whole), forced);
  for (Legs& legs : legs_) {
    agent.add_post(*legs.near);
    legs.near->establish(near ? forced : "", LateDeadline::at(deadline_ns), true);
    agent.add_post(*legs.far);
    legs.far->establish(near ? "" : forced, LateDeadline::at(deadline_ns));
  }
  if (!read_ && staging_.settings().straight) establish_straight(deadline_ns);
}

void StagedTransfer::establish_straight(uint64_t deadline_ns) {
  const std::vector<towline_region_ref> here = find_straight_way();
  if (here.empty()) return;
  try {
    straight_ = make_leg(straight_plan(whole_.plan(), TOWLINE_WRITE, here), TOWLINE_READ, near_);
    whole_.agent().add_post(*straight_);
    straight_->establish(legs_.front().near->backend_name(), LateDeadline::at(deadline_ns));
  } catch (const Error&) {  // staging is still possible
    if (straight_ != nullptr) straight_->end_for_good();
    straight_.reset();
  }
}

// The far side's regions at their addresses in this process. Empty: not all of them are mapped here, or this
// is not known yet, or the storage can't read cached data only.
std::vector<towline_region_ref> StagedTransfer::find_straight_way() {
  const Part& near = legs_.front().near->parts()[0];
  const Part& far = legs_.front().far->parts()[0];
  Worker::Guard guard(*far.worker);  // the near leg has the same worker
  if (near.prepared == nullptr || (near.prepared->flags & TOWLINE_PREPARED_CACHED) == 0) return {};
  if (far.link == nullptr || !far.link->up()) return {};
  std::vector<towline_region_ref> here;
  for (const auto& region : legs_.front().far->remote().remote_regions()) {
    here.push_back(region->ref);
    here.back().key = kNotRegistered;
    if (!far.link->reach(*region, here.back().address)) return {};
  }
  straight_generation_ = far.link->generation();
  return here;
}

Link* StagedTransfer::far_link() const noexcept { return legs_.front().far->parts()[0].link; }

// The first chunk takes both steps one after the other; then the slower step sets the pace.
Price StagedTransfer::price() const {
  const Legs& legs = legs_.front();
  const uint64_t chunk = std::min(chunk_bytes_, bytes_);
  const Price near = legs.near->price_of(chunk);
  const Price far = legs.far->price_of(chunk);
  const Price& slower = near.ns > far.ns ? near : far;
  const double more = static_cast<double>(bytes_ - chunk) / static_cast<double>(std::max<uint64_t>(chunk, 1));
  return {near.ns + far.ns + more * slower.ns, near.error_ns + far.error_ns + more * slower.error_ns,
          std::min(near.samples, far.samples), near.nearby || far.nearby};
}

StagedTransfer::Description StagedTransfer::describe() const {
  const Legs& legs = legs_.front();
  return {read_ ? legs.far.get() : legs.near.get(),
          read_ ? legs.near.get() : legs.far.get(),
          staging_name(set_.place()),
          slots_.size() * chunk_bytes_,
          chunk_bytes_,
          slots_.size(),
          straight_ != nullptr,
          straight_bytes_.load(std::memory_order_relaxed),
          bytes_,
          blocks_,
          runs_,
          failed_leg_.load(std::memory_order_acquire)};
}

// ---- moving

uint64_t StagedTransfer::bytes_of(uint64_t chunk) const noexcept {
  return std::min(chunk_bytes_, bytes_ - chunk * chunk_bytes_);
}

void StagedTransfer::begin(Part& part) noexcept {
  part_ = &part;
  has_set_ = reached_ = failed_ = stop_asked_ = stopped_ = timed_ = false;
  failed_leg_.store(nullptr, std::memory_order_relaxed);
  next_chunk_ = 0;
  stretch_ = not_straight_ = 0;
  straight_bytes_.store(0, std::memory_order_relaxed);
  fences_ = kAllFences;
  ranges_.clear();
  post_->number = whole_.agent().next_post_number();
  for (Slot& slot : slots_) slot.stage = Stage::kIdle;
  for (Object& object : objects_) {
    object.there = false;
    object.status = TOWLINE_OK;
  }
  part.submitted = true;
  part.link->part_started();
  part.worker->track(part);
  part.worker->add_staged(*this);
}

void StagedTransfer::stop() noexcept {
  if (part_ == nullptr) return;
  failed_ = stop_asked_ = true;
  part_->worker->step_staged_soon();
}

void StagedTransfer::take_set() noexcept {
  if (!set_.take(this)) return;
  has_set_ = !set_.spoilt();
  if (has_set_) return;
  set_.release();
  if (collects_)
    objects_failed(0, bytes_, TOWLINE_STALE, 0);
  else
    not_moved(0, bytes_, TOWLINE_STALE, 0);
  next_chunk_ = chunks_;
  whole_.leg_failed(Status::kStale);
  failed_ = true;
}

uint32_t StagedTransfer::step(uint64_t now_ns) noexcept {
  if (stop_asked_ && !stopped_) {
    stopped_ = true;
    abandon_legs();
  }
  if (!has_set_ && !failed_) take_set();
  if (!has_set_) {
    if (failed_)
      finish();
    else
      part_->worker->step_staged_soon();
    return failed_ ? 1 : 0;
  }
  if (!timed_) choice_.begin(now_ns);
  timed_ = true;
  uint32_t done = stretch_ != 0 ? advance_straight(now_ns) : 0;
  for (Slot& slot : slots_) done += advance(slot, now_ns);
  while (!failed_ && stretch_ == 0 && next_chunk_ < chunks_) {
    if (start_straight()) return done + 1;
    Slot& slot = slots_[next_chunk_ % slots_.size()];
    if (slot.stage != Stage::kIdle) break;
    slot.chunk = next_chunk_;
    const uint32_t started = start(slot, true);
    if (started == 0) break;
    done += started;
    if (not_straight_ != 0) --not_straight_;
  }
  if (stretch_ != 0 || (!failed_ && next_chunk_ < chunks_)) return done;
  if (std::all_of(slots_.begin(), slots_.end(),
                  [](const Slot& slot) { return slot.stage == Stage::kIdle; })) {
    finish();
    ++done;
  }
  return done;
}

// Continues after a leg that has ended, or that could not start before.
uint32_t StagedTransfer::advance(Slot& slot, uint64_t now_ns) noexcept {
  if (slot.stage == Stage::kIdle) return 0;
  if (slot.stage == Stage::kFull) {
    if (!failed_) return start(slot, false);
    slot.stage = Stage::kIdle;
    const uint64_t begin = slot.chunk * chunk_bytes_;
    not_moved(begin, begin + bytes_of(slot.chunk), TOWLINE_CANCELLED, 0);
    return 1;
  }
  const bool filling = slot.stage == Stage::kFilling;
  Leg& leg = leg_of(slot, filling);
  const Status outcome = leg.outcome();
  if (!leg.settled()) {
    // The peer is lost: the outcome does not wait for the fence.
    if (is_error(outcome) && !failed_) {
      whole_.end(outcome, part_->worker);
      stop();
    }
    return 0;
  }
  // Counts results, not outcomes: bytes that arrived before a deadline or cancel took effect still count.
  if (const towline_part_result& result = leg.last_result(); result.status != TOWLINE_OK) {
    chunk_failed(slot, filling, result);
    return 1;
  }
  reached_ = reached_ || filling == read_;
  if (!filling) {
    if (collects_)
      objects_arrived(slot);
    else
      whole_.leg_moved(bytes_of(slot.chunk));
    choice_.arrived(now_ns);
    slot.stage = Stage::kIdle;
    return 1;
  }
  slot.stage = Stage::kFull;
  if (failed_) return advance(slot, now_ns);
  return 1 + start(slot, false);
}

bool StagedTransfer::start_straight() noexcept {
  if (straight_ == nullptr || not_straight_ != 0 || whole_.paced()) return false;
  Leg& far = *legs_.front().far;
  if (!far.borrow(straight_generation_)) return false;
  const uint64_t chunks = std::min(next_stretch_, chunks_ - next_chunk_);
  const uint64_t end = std::min((next_chunk_ + chunks) * chunk_bytes_, bytes_);
  const Status status =
      straight_->start(next_chunk_ * chunk_bytes_, end, part_->deadline_ns, TOWLINE_SUBMIT_CACHED);
  if (is_error(status)) {
    far.give_back(0, 0);
    return false;
  }
  stretch_ = chunks;
  next_chunk_ += chunks;
  return true;
}

// Any error of the direct read is ignored: the staged path reports it.
uint32_t StagedTransfer::advance_straight(uint64_t now_ns) noexcept {
  Leg& far = *legs_.front().far;
  const Link& link = *far.parts()[0].link;
  if (const bool lost = !link.up() || link.generation() != straight_generation_; lost && !failed_) {
    whole_.end(Status::kPeerLost, part_->worker);
    whole_.leg_failed(Status::kPeerLost);
    stop();
  }
  if (!straight_->settled()) return 0;
  const uint64_t chunks = std::exchange(stretch_, 0);
  const uint64_t begin = next_chunk_ - chunks;
  if (straight_->last_result().status != TOWLINE_OK) {
    far.give_back(0, 0);
    next_chunk_ = begin;
    next_stretch_ = 1;
    not_straight_ = kChunksNotTried;
    return 1;
  }
  const uint64_t bytes = std::min(next_chunk_ * chunk_bytes_, bytes_) - begin * chunk_bytes_;
  far.give_back(bytes, straight_->took_ns());
  next_stretch_ = std::clamp<uint64_t>(kLongestStretch / chunk_bytes_, 1, 2 * next_stretch_);
  reached_ = true;
  whole_.leg_moved(bytes);
  straight_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  choice_.begin(now_ns);  // the time until now is not a staged chunk's
  return 1;
}

uint32_t StagedTransfer::start(Slot& slot, bool filling) noexcept {
  const uint64_t begin = begin_in_leg(slot, filling);
  const uint64_t bytes = bytes_of(slot.chunk);
  if (filling && !whole_.chunk_may_begin()) {
    part_->worker->step_staged_soon();
    return 0;
  }
  // Meanwhile the worker moves the other leg of neighbouring chunks.
  const bool stores = filling != read_ && chunks_ > 1;
  uint32_t flags = stores && choice_.hand_over() ? uint32_t{TOWLINE_SUBMIT_HAND_OVER} : 0;
  if (collects_ && !filling) flags |= TOWLINE_SUBMIT_COLLECT;
  const Status status = leg_of(slot, filling).start(begin, begin + bytes, part_->deadline_ns, flags);
  if (status == Status::kAgain) {
    part_->worker->step_staged_soon();
    return 0;
  }
  if (filling) {
    ++next_chunk_;
    whole_.chunk_begins(bytes);
  }
  slot.stage = filling ? Stage::kFilling : Stage::kDraining;
  if (is_error(status))
    chunk_failed(slot, filling,
                 {kResultBytes, static_cast<int32_t>(status), 0, kAllFences, 0, 0, begin, begin + bytes});
  return 1;
}

// ---- failing

// A leg's result refers to its own plan: its bytes, counted from the chunk's first byte, map to the whole
// plan from there on.
void StagedTransfer::chunk_failed(Slot& slot, bool filling, const towline_part_result& result) noexcept {
  slot.stage = Stage::kIdle;
  // A peer that was reached for an earlier chunk is lost, even if the error comes from an attempt to
  // reconnect.
  const bool lost = filling == read_ && !far_is_own_ && reached_ && result.status == TOWLINE_UNREACHABLE;
  const int32_t status = lost ? int32_t{TOWLINE_PEER_LOST} : result.status;
  const uint64_t in_leg = begin_in_leg(slot, filling);
  const uint64_t begin = slot.chunk * chunk_bytes_;
  const uint64_t bytes = bytes_of(slot.chunk);
  uint64_t bad_begin = std::clamp(result.failed_begin, in_leg, in_leg + bytes) - in_leg;
  uint64_t bad_end = std::clamp(result.failed_end, in_leg, in_leg + bytes) - in_leg;
  if (bad_begin >= bad_end) {
    bad_begin = 0;
    bad_end = bytes;
  }
  if (collects_) {
    objects_failed(begin + bad_begin, begin + bad_end, status, result.vendor_code);
  } else {
    // A chunk that was not filled drains nothing. In a chunk that was not drained, the bytes before the failure
    // have arrived; later bytes are named as failed even if they were moved, and do not count.
    if (filling)
      not_moved(begin, begin + bad_begin, TOWLINE_CANCELLED, 0);
    else
      whole_.leg_moved(bad_begin);
    not_moved(begin + bad_begin, begin + bad_end, status, result.vendor_code);
    not_moved(begin + bad_end, begin + bytes, TOWLINE_CANCELLED, 0);
  }
  if ((result.fences & TOWLINE_FENCE_LOCAL) == 0) set_.spoil();
  if (filling == read_) {  // the far leg
    if ((result.fences & TOWLINE_FENCE_REMOTE) == 0) fences_ &= ~uint32_t{TOWLINE_FENCE_REMOTE};
  } else if ((result.fences & TOWLINE_FENCE_REMOTE) == 0) {
    fences_ &= ~uint32_t{TOWLINE_FENCE_LOCAL};
  }
  if (failed_) return;
  failed_ = true;
  failed_leg_.store(&leg_of(slot, filling), std::memory_order_release);
  whole_.leg_failed(static_cast<Status>(status));
  if (collects_) stop();
}

void StagedTransfer::objects_arrived(const Slot& slot) noexcept {
  const uint64_t begin = slot.chunk * chunk_bytes_;
  const uint64_t end = begin + bytes_of(slot.chunk);
  for (auto object = first_object_ending_behind(begin); object != objects_.end() && object->end <= end;
       ++object) {
    object->there = true;
    whole_.leg_moved(object->bytes);
  }
}

// An object keeps the first reason.
void StagedTransfer::objects_failed(uint64_t begin, uint64_t end, int32_t status,
                                    int32_t vendor_code) noexcept {
  for (auto object = first_object_ending_behind(begin);
       object != objects_.end() && object->end - object->bytes < end; ++object) {
    if (object->there || object->status != TOWLINE_OK) continue;
    object->status = status;
    object->vendor_code = vendor_code;
  }
}

void StagedTransfer::name_objects() noexcept {
  for (const Object& object : objects_) {
    if (object.there) continue;
    if (object.status != TOWLINE_OK)
      ranges_.push_back({object.plan_begin, object.plan_end, object.status, object.vendor_code});
    else
      ranges_.push_back({object.plan_begin, object.plan_end, TOWLINE_CANCELLED, 0});
  }
}

// Collected objects are named by name_objects().
void StagedTransfer::not_moved(uint64_t begin, uint64_t end, int32_t status, int32_t vendor_code) noexcept {
  if (begin < end && !collects_) ranges_.push_back({begin, end, status, vendor_code});
}

void StagedTransfer::abandon_legs() noexcept {
  if (stretch_ != 0) straight_->abandon();
  for (Slot& slot : slots_) {
    if (slot.stage == Stage::kFilling || slot.stage == Stage::kDraining)
      leg_of(slot, slot.stage == Stage::kFilling).abandon();
  }
}

// Nothing is in flight. Call it last: a waiting thread may destroy this object once the lock is free.
void StagedTransfer::finish() noexcept {
  Part& part = *std::exchange(part_, nullptr);
  if (has_set_) set_.release();
  part.worker->remove_staged(*this);
  if (!failed_) return whole_.part_ended(part, {kResultBytes, TOWLINE_OK, 0, kAllFences, 0, 0, 0, 0});
  not_moved(next_chunk_ * chunk_bytes_, bytes_, TOWLINE_CANCELLED, 0);
  if (collects_) name_objects();
  if (ranges_.empty()) return whole_.part_ended(part, {kResultBytes, TOWLINE_OK, 0, kAllFences, 0, 0, 0, 0});
  std::sort(ranges_.begin(), ranges_.end(),
            [](const Range& one, const Range& other) { return one.begin < other.begin; });
  std::size_t last = 0;
  for (std::size_t i = 1; i < ranges_.size(); ++i) {
    const Range& next = ranges_[i];
    Range& before = ranges_[last];
    if (before.end == next.begin && before.status == next.status && before.vendor_code == next.vendor_code)
      before.end = next.end;
    else
      ranges_[++last] = next;
  }
  ranges_.resize(last + 1);
  const Range end = ranges_.back();
  ranges_.pop_back();
  for (const Range& range : ranges_)
    whole_.note_failure(
        {kResultBytes, range.status, range.vendor_code, fences_, 0, 0, range.begin, range.end});
  whole_.part_ended(part, {kResultBytes, end.status, end.vendor_code, fences_, 0, 0, end.begin, end.end});
}

void StagedTransfer::seek_far_fence() const noexcept {
  for (const Legs& legs : legs_) legs.far->seek_fence(TOWLINE_FENCE_REMOTE);
}

Status StagedTransfer::far_fence() const noexcept {
  Status all = Status::kOk;
  for (const Legs& legs : legs_) {
    const Status one = legs.far->fence(TOWLINE_FENCE_REMOTE);
    if (one == Status::kUnsupported) return one;
    if (one != Status::kOk) all = one;
  }
  return all;
}

}  // namespace towline
