#include "agent/post_plan.h"

#include <algorithm>
#include <numeric>

#include "agent/agent.h"
#include "agent/group.h"
#include "base/error.h"
#include "towline/plugin/cursor.hpp"

namespace towline {

namespace {

constexpr uint64_t kUsualBytes = 1 << 20;  // of a post, if nobody says
constexpr uint64_t kBlocksLookedAt = 64;

towline_picks_t first_blocks(uint64_t start, uint64_t count) noexcept {
  return {nullptr, 0, 0, start, 1, count};
}

struct Probe {
  towline_picks_t local;
  towline_picks_t remote;
};

// The fewest blocks that pair up.
Probe probe_of(const ResolvedList& local, const ResolvedList& remote) {
  const uint64_t here = local.view().block_length;
  const uint64_t there = remote.view().block_length;
  if (here != 0 && there != 0) {
    const uint64_t piece = std::gcd(here, there);
    return {first_blocks(0, there / piece), first_blocks(0, here / piece)};
  }
  plugin::detail::ListReader locals(local.view());
  plugin::detail::ListReader remotes(remote.view());
  for (uint64_t i = 0; i < std::min(local.blocks(), kBlocksLookedAt); ++i)
    for (uint64_t j = 0; j < std::min(remote.blocks(), kBlocksLookedAt); ++j)
      if (locals.row(i, 1).length == remotes.row(j, 1).length)
        return {first_blocks(i, 1), first_blocks(j, 1)};
  fail(Status::kMismatch,
       "none of the first {} blocks of both lists are equally long: which would be paired?", kBlocksLookedAt);
}

}  // namespace

void PlannedPost::probe(const PickPair& picks) {
  plan_.compile_again(local().resolved(), picks.local, remote().resolved(), picks.remote, route_.op());
  parts_[0].end = plan_.bytes();
}

void PlannedPost::count_run() noexcept {
  runs_bytes_ += plan_.view().bytes;
  runs_blocks_ += plan_.view().blocks;
  if (immediate_posts_.load(std::memory_order_relaxed) >= kImmediatePostsPerCount) flush_runs();
}

void PlannedPost::flush_runs() noexcept {
  add_to_counts(immediate_posts_.exchange(0, std::memory_order_relaxed), std::exchange(runs_bytes_, 0),
                std::exchange(runs_blocks_, 0));
}

PostPlan::~PostPlan() {
  for (uint32_t i = 0; i < made_.load(std::memory_order_relaxed); ++i) route_.agent().remove_post(at(i));
}

void PostPlan::establish(std::string_view backend, LateDeadline deadline, uint64_t bytes) {
  const Probe probe = probe_of(route_.local().resolved(), route_.remote().resolved());
  if (bytes == 0)
    bytes = std::min({route_.local().resolved().bytes(), route_.remote().resolved().bytes(), kUsualBytes});
  PlannedPost& first = *make();
  first.probe({&probe.local, &probe.remote});
  route_.establish(first, backend, deadline, false, bytes);
  give_back(first);
}

uint32_t PostPlan::room_for_parts() const noexcept {
  Agent& agent = route_.agent();
  const Backend* const backend = route_.backend();
  const auto workers = static_cast<uint32_t>(agent.workers().size());
  const SplitMode mode = agent.tuning().split;
  if (workers == 1 || mode == SplitMode::kOff) return 1;
  const bool by_memory = backend != nullptr && backend->has_trait(TOWLINE_TRAIT_ONE_SIDED);
  return by_memory && mode == SplitMode::kAuto ? 1 : std::min(workers, kMaxParts);
}

bool PostPlan::must_name_stream() const noexcept {
  if (route_.agent().tuning().gpu_unordered) return false;
  const auto has_gpu = [](const BlockList& list) {
    const auto view = list.view();
    return std::any_of(view.regions, view.regions + view.region_count,
                       [](const towline_region_ref& region) { return region.kind == TOWLINE_MEMORY_VRAM; });
  };
  const BlockList& remote = route_.remote();
  const bool within =
      remote.peer() != nullptr && remote.peer()->incarnation() == route_.agent().incarnation();
  return has_gpu(route_.local()) || (within && has_gpu(remote));
}

bool PostPlan::takes_stream() const {
  const std::lock_guard lock(route_.agent().transfer_details_mutex());
  const Backend* const backend = route_.backend();
  return route_.legs() == nullptr && backend != nullptr && backend->data->stream_submit != nullptr;
}

PlannedPost* PostPlan::make() {
  const std::lock_guard lock(making_);
  const uint32_t index = made_.load(std::memory_order_relaxed);
  if (index >= kMostPosts) return nullptr;
  std::unique_ptr<Chunk>& chunk = chunks_[index / kChunk];
  if (chunk == nullptr) chunk = std::make_unique<Chunk>();
  std::unique_ptr<PlannedPost>& post = (*chunk)[index % kChunk];
  post = std::make_unique<PlannedPost>(*this, route_, *this, index, room_for_parts());
  route_.agent().add_post(*post);
  made_.store(index + 1, std::memory_order_release);
  return post.get();
}

PlannedPost* PostPlan::take() {
  uint64_t head = free_.load(std::memory_order_acquire);
  while (const auto first = static_cast<uint32_t>(head)) {
    PlannedPost& post = at(first - 1);
    const uint64_t changes = (head >> 32) + 1;
    const uint64_t next = changes << 32 | post.next_free_.load(std::memory_order_relaxed);
    if (free_.compare_exchange_weak(head, next, std::memory_order_acq_rel, std::memory_order_acquire))
      return &post;
  }
  PlannedPost* const post = make();
  if (post != nullptr) post->follow_route();
  return post;
}

// Its last use, and the plan's: after it retire() may find all posts there.
void PostPlan::give_back(PlannedPost& post) noexcept {
  post.holders_.store(0, std::memory_order_relaxed);
  uint64_t head = free_.load(std::memory_order_relaxed);
  uint64_t next = 0;
  do {
    post.next_free_.store(static_cast<uint32_t>(head), std::memory_order_relaxed);
    next = ((head >> 32) + 1) << 32 | (post.index_ + 1);
  } while (!free_.compare_exchange_weak(head, next, std::memory_order_acq_rel, std::memory_order_relaxed));
}

void PostPlan::is_over(Ending& ending, Worker* worker) noexcept {
  auto& post = static_cast<PlannedPost&>(ending);
  if (post.group_ != nullptr) std::exchange(post.group_, nullptr)->left(post, worker);
  if (post.holders_.fetch_and(~PlannedPost::kFlight, std::memory_order_acq_rel) == PlannedPost::kFlight)
    give_back(post);
}

Status PostPlan::run(PlannedPost& post, const PickPair& picks, const PostOptions& options,
                     void* const* stream) {
  if (needs_stream_ && stream == nullptr && !options.unordered) [[unlikely]]
    fail(Status::kInvalidArgument,
         "memory of a GPU of this agent is moved, but the post names no stream: give the one whose work the "
         "copy comes after, or say TOWLINE_STREAM_UNORDERED (C++: towline::unordered, Python: "
         "stream=\"unordered\") if that work has been waited for, or gpu.unordered = true once for all{}",
         takes_stream() ? "" : ". The backend of this plan takes no stream, so it has to be the latter");
  const Status status = post.post_with(picks, options, stream, post.member_bytes);
  if (is_error(status) && status != Status::kAgain && status != Status::kForked) [[unlikely]]
    set_failure_text(post.refusal_of(status));
  return status;
}

Status PostPlan::start(PlannedPost& post, const PickPair& picks, const PostOptions& options,
                       void* const* stream) {
  Group* const group = options.group;
  post.queue_ = options.queue;
  if (group == nullptr) return run(post, picks, options, stream);
  if (&group->agent() != &route_.agent())
    fail(Status::kInvalidArgument, "the group belongs to agent '{}', the plan to agent '{}'",
         group->agent().name(), route_.agent().name());
  if (const Status status = group->join(post); status != Status::kOk) return status;
  post.group_ = group;
  PostOptions as_member = options;
  as_member.deadline_ns = group->deadline_ns();
  as_member.urgent = options.urgent || group->urgent();
  as_member.pace = &group->pace();
  Status status = Status::kOk;
  try {
    status = run(post, picks, as_member, stream);
  } catch (const Error& error) {
    std::exchange(post.group_, nullptr)->refused(post, error.code(), error.what());
    throw;
  } catch (...) {
    std::exchange(post.group_, nullptr)->refused(post, Status::kOutOfMemory, {});
    throw;
  }
  if (is_error(status)) {
    const std::string why = take_failure_text();
    std::exchange(post.group_, nullptr)->refused(post, status, why);
    set_failure_text(why);
  }
  return status;
}

Status PostPlan::post(const PickPair& picks, const PostOptions& options, void* const* stream,
                      PlannedPost** out) {
  if (closing_.load(std::memory_order_acquire)) [[unlikely]]
    return Status::kStale;
  PlannedPost* const post = take();
  if (post == nullptr) return Status::kAgain;
  // This call reads the post after it has begun, when a run that nobody holds may be over: the pool would give it to
  // the next one meanwhile.
  const uint32_t holder = out != nullptr ? PlannedPost::kHandle : PlannedPost::kWatcher;
  post->holders_.store(PlannedPost::kFlight | holder, std::memory_order_relaxed);
  Status status = Status::kOk;
  try {
    status = start(*post, picks, options, stream);
  } catch (...) {
    give_back(*post);
    throw;
  }
  if (is_error(status)) {
    give_back(*post);
    return status;
  }
  if (out != nullptr) *out = post;
  if (status != Status::kOk || !post->was_immediate()) {  // is_over() is called, or was
    // The group may have looked for members to be cancelled before this one had begun.
    if (options.group != nullptr && options.group->over()) options.group->cancel_members();
    if (out == nullptr) post->unwatch();
    return status;
  }
  post->count_run();
  if (post->group_ != nullptr) std::exchange(post->group_, nullptr)->left(*post, nullptr);
  if (out == nullptr)
    give_back(*post);
  else
    post->holders_.store(PlannedPost::kHandle, std::memory_order_relaxed);
  return status;
}

uint32_t PostPlan::in_use() noexcept {
  const uint32_t made = made_.load(std::memory_order_acquire);
  uint32_t count = 0;
  for (uint32_t i = 0; i < made; ++i) {
    PlannedPost& post = at(i);
    const uint32_t holders = post.holders_.load(std::memory_order_acquire);
    if (holders != 0 && (holders != PlannedPost::kFlight || !post.ready())) ++count;
  }
  return count;
}

uint32_t PostPlan::count_free() noexcept {
  uint32_t count = 0;
  for (auto next = static_cast<uint32_t>(free_.load(std::memory_order_acquire)); next != 0; ++count)
    next = at(next - 1).next_free_.load(std::memory_order_relaxed);
  return count;
}

Status PostPlan::retire(uint64_t timeout_ns, std::string& why) {
  closing_.store(true, std::memory_order_seq_cst);
  const uint32_t made = made_.load(std::memory_order_acquire);
  uint32_t held = 0;
  for (uint32_t i = 0; i < made; ++i) {
    PlannedPost& post = at(i);
    post.close_gate(static_cast<int32_t>(Status::kStale));
    if ((post.holders_.load(std::memory_order_acquire) & PlannedPost::kHandle) != 0) ++held;
    if (post.cancel() == Status::kForked) return Status::kForked;
  }
  if (held != 0) {
    why = fmt::format("{} of its posts are still held: release them first", held);
    return Status::kBusy;
  }
  Agent& agent = route_.agent();
  const uint64_t deadline_ns = Deadline::after(agent.now_ns(), timeout_ns).ns();
  if (!agent.drive_until([&] { return count_free() == made; }, deadline_ns)) {
    why = "its posts are not fenced yet: their memory may still be in use; call again";
    return Status::kNotYet;
  }
  for (; retired_ < made; ++retired_) {
    const uint64_t now_ns = agent.now_ns();
    at(retired_).flush_runs();
    const Status status = at(retired_).retire(deadline_ns > now_ns ? deadline_ns - now_ns : 0);
    if (status != Status::kOk) {
      why = "its posts can't be released yet; call again";
      return status;
    }
  }
  return Status::kOk;
}

}  // namespace towline
