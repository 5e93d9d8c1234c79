// Posts of a plan that are large: whole over one worker's connection, or in parts over those of all workers.
#include <algorithm>
#include <exception>

#include "agent/agent.h"
#include "agent/link.h"
#include "agent/post.h"
#include "agent/split_choice.h"
#include "agent/worker.h"

namespace towline {

void Post::make_room_for_parts(uint32_t room) {
  if (room <= 1) return;
  more_parts_ = std::make_unique<Part[]>(room);
  post_ = std::make_shared<towline_post>(towline_post{sizeof(towline_post), 0, 0});
  parts_ = more_parts_.get();
  part_room_ = room;
  know_workers();
}

void Post::know_workers() noexcept {
  const auto workers = static_cast<uint32_t>(agent().workers().size());
  const uint32_t home = agent().my_worker().index();
  for (uint32_t i = 0; i < part_room_; ++i) {
    Part& part = parts_[i];
    part.owner = this;
    part.post = this;
    part.worker = agent().workers()[(home + i) % workers].get();
  }
}

void Post::divide(uint32_t count) noexcept {
  part_count_ = count;
  const uint64_t bytes = plan_.view().bytes;
  if (count > 1) post_->bytes = bytes;
  for (uint32_t i = 0; i < count; ++i) {
    // Parts end on page boundaries, so that neighbours do not write to the same page.
    parts_[i].begin = i == 0 ? 0 : parts_[i - 1].end;
    parts_[i].end = i + 1 == count ? bytes : (bytes / count * (i + 1)) & ~uint64_t{4095};
  }
}

bool Post::to_be_split() noexcept {
  split_counts_ = false;
  const uint64_t bytes = plan_.view().bytes;
  if (part_room_ == 1 || bytes < SplitChoices::kLeastBytes || backend_ == nullptr) return false;
  if (route_.legs() != nullptr || backend_->has_trait(TOWLINE_TRAIT_STORAGE)) return false;
  if (agent().tuning().split == SplitMode::kOn) return true;
  // One-sided transports move by the memory's rate or by NICs; each worker more only costs connections.
  if (backend_->has_trait(TOWLINE_TRAIT_ONE_SIDED) || !agent().hosted() || !agent().in_real_time())
    return false;
  SplitChoices* const splits = remote().peer()->splits();
  if (splits == nullptr || agent().limits().any() || route_.may_go_on()) return false;
  if (!workers_are_connected(*splits)) return false;
  split_counts_ = true;
  return splits->of(route_.op(), bytes).split();
}

// A connection that is missing is asked for, and nothing waits for it: it may never come up.
bool Post::workers_are_connected(SplitChoices& splits) noexcept {
  Peer& peer = *remote().peer();
  const auto up = [&](const Part& part) {
    const Link* const link = peer.find_link(*backend_, part.worker->index());
    return link != nullptr && link->up();
  };
  if (peer.ended() != Status::kOk || !up(parts_[0])) return false;
  if (std::all_of(parts_ + 1, parts_ + part_room_, up)) return true;
  const uint64_t now_ns = agent().now_ns();
  if (!splits.may_connect(now_ns)) return false;
  for (uint32_t i = 1; i < part_room_; ++i) {
    Worker& worker = *parts_[i].worker;
    const Worker::Guard guard(worker);
    try {
      Link& link = peer.link(*backend_, worker.index());
      if (link.state() == Link::State::kDown) link.connect(UINT64_MAX);
    } catch (const std::exception&) {
      return false;  // without memory: the post goes whole
    }
    worker.wake();
  }
  return false;
}

// By the thread with the phase, before a whole run; in a split one by the part's worker, which may release what is
// prepared at any time.
void Post::follow_picks(Part& part) noexcept {
  part.repick = false;
  if (part.prepared == nullptr) return;
  const auto repick = backend_->data->repick;
  part.outdated = repick == nullptr || repick(part.prepared, &plan_.view()) != TOWLINE_OK;
}

uint32_t Post::parts_to_drive() const noexcept { return agent().hosted() ? 1 : part_count_; }

void Post::note_split(uint64_t now_ns) noexcept {
  if (!split_counts_ || paced_) return;
  const uint64_t bytes = plan_.view().bytes;
  SplitChoice& choice = remote().peer()->splits()->of(route_.op(), bytes);
  choice.ended(part_count_ > 1, posted_at_ns_.load(std::memory_order_relaxed), now_ns, bytes);
}

}  // namespace towline
