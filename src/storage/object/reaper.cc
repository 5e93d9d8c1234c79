#include "storage/object/reaper.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <functional>

#include "storage/object/protocol.h"

namespace towline::object {

namespace {

constexpr uint32_t kMostAborts = 3;
constexpr uint64_t kFirstPauseNs = 500 * kMillisecondNs;
constexpr uint64_t kLongestPauseNs = 30 * kSecondNs;
constexpr uint64_t kLookEveryNs = 10 * kMillisecondNs;

}  // namespace

void Reaper::add(const ObjectName& name, const std::string& upload_id) {
  std::function<void()> command = [this, name, upload_id] { adopt(name, upload_id); };
  waiting_.fetch_add(1, std::memory_order_relaxed);
  try {
    client_.run(std::move(command));
  } catch (...) {
    waiting_.fetch_sub(1, std::memory_order_relaxed);
    throw;
  }
}

void Reaper::adopt(const ObjectName& name, const std::string& upload_id) {
  if (finished_) return;
  Orphan& orphan = orphans_.emplace_front();
  orphan.name = name;
  orphan.upload_id = upload_id;
  ask(orphans_.begin());
}

void Reaper::await(std::shared_ptr<Beginning> beginning) noexcept {
  if (!Client::under_way(beginning->call)) return beginning->client.stop(beginning->call);
  waiting_.fetch_add(1, std::memory_order_relaxed);
  Call& call = beginning->call;
  call.last_attempt = true;
  call.done = [this, known = beginning.get()](const Answer& answer) {
    try {
      client_.run([this, known, begun = answer.ok()] {
        const auto found = std::ranges::find(beginnings_, known, &std::shared_ptr<Beginning>::get);
        if (found == beginnings_.end()) return;  // given up
        const std::shared_ptr<Beginning> named = std::move(*found);
        beginnings_.erase(found);
        if (begun) return adopt(named->call.name, named->upload_id);
        waiting_.fetch_sub(1, std::memory_order_relaxed);
      });
    } catch (const std::bad_alloc&) {
      known->left.store(true, std::memory_order_relaxed);
    }
  };
  try {
    // The answer's command follows this one.
    client_.run([this, beginning] { beginnings_.push_back(beginning); });
  } catch (const std::bad_alloc&) {
    beginning->client.stop(call);
    waiting_.fetch_sub(1, std::memory_order_relaxed);
    client_.service().host.log(1, "an upload that was just begun may stay behind: out of memory");
  }
}

void Reaper::ask(Orphans::iterator orphan) noexcept {
  try {
    client_.protocol().make_abort(orphan->call, orphan->name, orphan->upload_id);
    orphan->call.done = [this, orphan](const Answer& answer) { ended(orphan, answer); };
    client_.start(orphan->call);
  } catch (const std::exception&) {
    orphan->left = true;
  }
}

// A part that was still under way may arrive after the abort and stay: it is aborted until there is no such
// upload.
void Reaper::ended(Orphans::iterator orphan, const Answer& answer) noexcept try {
  if (answer.ok()) ++orphan->aborted;
  const bool gone = answer.status == Status::kNotFound || orphan->aborted >= kMostAborts;
  if (!gone && answer.status != Status::kPermissionDenied) {
    orphan->pause_ns = std::clamp(orphan->pause_ns * 2, kFirstPauseNs, kLongestPauseNs);
    orphan->timer = client_.timers().after(orphan->pause_ns, [this, orphan] {
      orphan->timer = 0;
      ask(orphan);
    });
    return;
  }
  if (!gone) client_.service().note_failure("an upload stays behind: " + answer.text);
  // Its call is still on the stack.
  client_.timers().after(0, [this, orphan] {
    if (finished_) return;
    orphans_.erase(orphan);
    waiting_.fetch_sub(1, std::memory_order_relaxed);
  });
} catch (const std::exception&) {
  orphan->left = true;
}

void Reaper::finish(uint64_t deadline_ns) {
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  std::function<void()> look = [&] {
    const bool untold = std::any_of(orphans_.begin(), orphans_.end(),
                                    [](const Orphan& one) { return one.aborted == 0 && !one.left; });
    const bool unnamed = std::any_of(beginnings_.begin(), beginnings_.end(), [](const auto& one) {
      return !one->left.load(std::memory_order_relaxed);
    });
    if ((untold || unnamed) && monotonic_now_ns() < deadline_ns) {
      client_.timers().after(kLookEveryNs, look);
      return;
    }
    for (Orphan& orphan : orphans_) {
      client_.stop(orphan.call);
      client_.timers().cancel(orphan.timer);
      if (orphan.aborted != 0) continue;
      client_.service().note_failure(fmt::format("the unfinished upload {} of {} stays behind",
                                                 shown(orphan.upload_id), shown(orphan.name.text())));
    }
    orphans_.clear();
    for (auto& beginning : beginnings_) {
      const bool left = beginning->left.load(std::memory_order_relaxed);
      client_.service().note_failure("an upload of " + shown(beginning->call.name.text()) +
                                     " that was just begun may stay behind: " +
                                     (left ? "out of memory" : "the server did not name it in time"));
      beginning->client.run([beginning] { beginning->client.stop(beginning->call); });
    }
    beginnings_.clear();
    finished_ = true;
    const std::lock_guard lock(mutex);
    over = true;
    changed.notify_all();
  };
  client_.run(look);
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return over; });
}

}  // namespace towline::object
