// Event queues for C++20: RAII over queue.h.
//
//   towline::Queue queue{agent};
//   plan.post({.notice = "req-17", .user_data = request, .tag = 7, .queue = queue}).release();
//   ...                                              // queue.fd() is readable
//   for (towline::Event& event : queue.ready()) if (event.kind == TOWLINE_EVENT_DONE) finish(event);
#pragma once

#include <towline/queue.h>
#include <towline/towline.hpp>

#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

namespace towline {
inline namespace v0 {

// Moves; its end gives back what it holds.
class Event : public towline_event_t {
 public:
  Event() noexcept : towline_event_t{} {}
  Event(Event&& other) noexcept : towline_event_t(other) { other.held = nullptr; }
  Event& operator=(Event&& other) noexcept {
    if (this == &other) return *this;
    release();
    static_cast<towline_event_t&>(*this) = other;
    other.held = nullptr;
    return *this;
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { release(); }

  [[nodiscard]] Status outcome() const noexcept { return Status{status}; }
  // Why it failed, in a sentence; valid as long as this.
  [[nodiscard]] std::string_view error() const noexcept { return towline_event_error(this); }
  [[nodiscard]] std::string_view text() const noexcept { return {static_cast<const char*>(data), bytes}; }
  void release() noexcept { towline_event_release(this); }
};
static_assert(sizeof(Event) == sizeof(towline_event_t), "arrays of Event are handed to C");

struct QueueOptions {
  uint32_t capacity = 0;      // events to come or waiting, besides notices; 0: 16,384
  bool peer_health = false;   // events of every peer's health
  void* user_data = nullptr;  // of events that no call asked for
};

class Queue {
 public:
  explicit Queue(const Agent& agent, const QueueOptions& options = {}) : agent_(agent.handle_.shared()) {
    auto native = detail::defaults<towline_queue_options_t>();
    native.capacity = options.capacity;
    native.peer_health = options.peer_health ? 1 : 0;
    native.user_data = options.user_data;
    towline_queue_t* queue = nullptr;
    detail::check(towline_queue_create(agent_.get(), &native, &queue));
    handle_.reset(queue);
  }
  // The agent's own one.
  [[nodiscard]] static Queue of(const Agent& agent) {
    towline_queue_t* queue = nullptr;
    detail::check(towline_agent_queue(agent.native(), &queue));
    return Queue{agent.handle_.shared(), queue};
  }

  // Readable while events wait. Owned by the queue.
  [[nodiscard]] int fd() const {
    int fd = -1;
    detail::check(towline_queue_fd(native(), &fd));
    return fd;
  }
  // Takes what fits: how many, or a negative status. Never blocks.
  [[nodiscard]] int32_t next(std::span<Event> events) const noexcept {
    for (Event& event : events) event.release();
    return towline_queue_next(native(), events.data(), events.size(), sizeof(Event));
  }
  // Sleeps until an event waits; kNotYet if the deadline comes first.
  [[nodiscard]] Status wait(Deadline deadline = kForever) const noexcept {
    return detail::status(towline_queue_wait(native(), deadline.absolute_ns()));
  }

  // Up to 64 events that wait, for a range-for.
  class Ready {
   public:
    [[nodiscard]] Event* begin() noexcept { return events_.data(); }
    [[nodiscard]] Event* end() noexcept { return events_.data() + count_; }
    [[nodiscard]] size_t size() const noexcept { return count_; }

   private:
    friend class Queue;
    explicit Ready(const Queue& queue) noexcept {
      const int32_t count = queue.next(events_);
      count_ = count > 0 ? static_cast<size_t>(count) : 0;
    }
    std::array<Event, 64> events_;
    size_t count_ = 0;
  };
  [[nodiscard]] Ready ready() const noexcept { return Ready{*this}; }

  // Notices with these bits under the mask come here instead of to the agent.
  void subscribe(uint64_t tag, uint64_t mask = UINT64_MAX) const {
    detail::check(towline_queue_subscribe(native(), tag, mask));
  }
  void unsubscribe(uint64_t tag, uint64_t mask = UINT64_MAX) const {
    detail::check(towline_queue_unsubscribe(native(), tag, mask));
  }
  // The peer of a notice, connection, credit or health event.
  [[nodiscard]] Peer peer(const Event& event) const {
    towline_peer_t* peer = nullptr;
    detail::check(towline_event_peer(&event, &peer));
    return Peer{agent_, peer};
  }

  // A null peer to hand over; its name is empty.
  [[nodiscard]] Peer no_peer() const { return Peer{agent_, nullptr}; }

  // ---- waits that report here. Each throws Error and gives no event, or gives one event.

  void fence(const Post& post, Fence fences, void* user_data) const {
    detail::check(
        towline_post_fence_async(post.native(), static_cast<uint32_t>(fences), native(), user_data));
  }
  void fence(const Group& group, Fence fences, void* user_data) const {
    detail::check(
        towline_group_fence_async(group.native(), static_cast<uint32_t>(fences), native(), user_data));
  }
  void reached(const Counter& counter, uint64_t threshold, void* user_data) const {
    detail::check(towline_counter_wait_async(counter.native(), threshold, native(), user_data));
  }
  void forget(const Counter& counter, void* user_data) const noexcept {
    towline_counter_forget(counter.native(), native(), user_data);
  }
  void connect(const std::string& address, Deadline deadline, void* user_data) const {
    detail::check(towline_peer_connect_async(agent_.get(), address.c_str(), deadline.absolute_ns(), native(),
                                             user_data));
  }
  void refresh(const Peer& peer, Deadline deadline, void* user_data) const {
    detail::check(towline_peer_refresh_async(peer.native(), deadline.absolute_ns(), native(), user_data));
  }
  void deregister(Region region, void* user_data) const {
    detail::check(towline_region_deregister_async(region.native(), native(), user_data));
    region.forget();
  }
  void commit(const Region& region, Deadline deadline, void* user_data) const {
    detail::check(towline_storage_commit_async(region.native(), deadline.absolute_ns(), native(), user_data));
  }
  void credit(const Peer& peer, void* user_data) const {
    detail::check(towline_peer_credit_async(peer.native(), native(), user_data));
  }

  [[nodiscard]] towline_queue_t* native() const noexcept { return handle_.get(); }
  operator towline_queue_t*() const noexcept { return native(); }  // NOLINT: implicit on purpose

 private:
  Queue(detail::SharedAgent agent, towline_queue_t* queue) noexcept
      : agent_(std::move(agent)), handle_(queue) {}

  detail::SharedAgent agent_;
  detail::Handle<towline_queue_t, towline_queue_release> handle_;
};

// A notice with a tag, by itself. kAgain: no credit now.
[[nodiscard]] inline Status send_tagged(const Peer& peer, uint64_t tag, BytesView notice) noexcept {
  return detail::status(towline_notice_send_tagged(peer.native(), tag, notice.data(), notice.size()));
}

}  // namespace v0
}  // namespace towline
