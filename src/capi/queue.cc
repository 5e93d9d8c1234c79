// C API: event queues, and waits that report to them.
#include "towline/queue.h"

#include <functional>

#include "agent/errands.h"
#include "agent/group.h"
#include "agent/post_plan.h"
#include "capi/handles.h"

using namespace towline;  // NOLINT: C entry points

namespace {

Ticket& ticket_of(const towline_event_t& event) noexcept { return *static_cast<Ticket*>(event.held); }

Peer* peer_of(const towline_event_t& event) noexcept {
  if (event.held == nullptr) return nullptr;
  if (event.kind == TOWLINE_EVENT_NOTICE) return static_cast<NoticeNode*>(event.held)->peer;
  return ticket_of(event).peer.get();
}

// Empty without memory for it: the status has to say enough then.
std::string kept(const char* text) noexcept try { return text; } catch (const std::bad_alloc&) {
  return {};
}

// The peer is in use as long as the event or notice is held.
towline_peer_t* handle_of(Peer& peer) {
  return new towline_peer{peer.agent().shared_from_this(), PeerHold(&peer)};
}

// One call that blocks, and its event. `call` sets the ticket's peer or value. It gets what ends it early.
class Call final : public Errand {
 public:
  using Work = std::function<void(Ticket&, const std::atomic<bool>* stop)>;
  Call(Agent& agent, TicketHold ticket, Work work)
      : agent_(agent), ticket_(std::move(ticket)), work_(std::move(work)) {}

  [[nodiscard]] bool blocks() const noexcept override { return true; }
  bool step(bool) noexcept override {
    Status status = Status::kOk;
    std::string why;
    try {
      work_(*ticket_, &agent_.errands().closing());
    } catch (const Error& error) {
      status = error.code();
      why = kept(error.what());
    } catch (const std::bad_alloc&) {
      status = Status::kOutOfMemory;
    } catch (const std::exception& error) {
      status = Status::kInternal;
      why = kept(error.what());
    }
    work_ = nullptr;  // what it holds ends before the event
    EventQueue::tell(std::move(ticket_), status, std::move(why));
    return true;
  }

 private:
  Agent& agent_;
  TicketHold ticket_;
  Work work_;
};

// Something that is asked again until it is so. `ask`: kInProgress: not yet.
class Wait final : public Errand {
 public:
  using Ask = std::function<Status(bool closing)>;
  using Why = std::function<std::string(Status)>;
  Wait(TicketHold ticket, Ask ask, std::function<void()> after, Why why = nullptr)
      : ticket_(std::move(ticket)), ask_(std::move(ask)), after_(std::move(after)), why_(std::move(why)) {}
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;
  ~Wait() override {
    if (after_) after_();
  }

  bool step(bool closing) noexcept override {
    const Status status = ask_(closing);
    if (status == Status::kInProgress && !closing) return false;
    std::string why;
    try {
      if (why_) why = why_(status);
    } catch (const std::bad_alloc&) {  // the status says enough
    }
    if (after_) std::exchange(after_, nullptr)();
    EventQueue::tell(std::move(ticket_), status == Status::kInProgress ? Status::kClosed : status,
                     std::move(why));
    return true;
  }

 private:
  TicketHold ticket_;
  Ask ask_;
  std::function<void()> after_;  // lets go of what is asked
  Why why_;                      // of how it ended
};

// A deadline on CLOCK_MONOTONIC; 0: the agent's default timeout, from now.
Deadline deadline_of(const Agent& agent, uint64_t deadline_ns) {
  const uint64_t now_ns = monotonic_now_ns();
  if (deadline_ns == 0) return Deadline::after(now_ns, agent.default_timeout_ns());
  if (deadline_ns <= now_ns)
    fail(Status::kTimedOut, "the deadline passed {} us ago", (now_ns - deadline_ns) / 1000);
  return Deadline::at(deadline_ns);
}

void check_fences(uint32_t fences) {
  if (fences == 0 || (fences & ~uint32_t{TOWLINE_FENCE_LOCAL | TOWLINE_FENCE_REMOTE}) != 0)
    fail(Status::kInvalidArgument, "fences is {}; it is TOWLINE_FENCE_LOCAL, _REMOTE or both", fences);
}

}  // namespace

extern "C" {

int32_t towline_queue_create(towline_agent_t* agent, const towline_queue_options_t* options,
                             towline_queue_t** queue) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    capi::need(queue, "queue");
    Agent& owner = *agent->agent;
    owner.check_usable();
    const auto given = capi::take_options(options, "options");
    if (given.capacity > EventQueue::kMostCapacity)
      fail(Status::kLimitExceeded, "options.capacity is {}; it is at most {}", given.capacity,
           EventQueue::kMostCapacity);
    const size_t capacity = given.capacity != 0 ? given.capacity : EventQueue::kUsualCapacity;
    auto handle = std::make_unique<towline_queue>(towline_queue{agent->agent, nullptr, false});
    EventQueue* const made = EventQueue::create(owner, capacity, given.user_data);
    if (given.peer_health != 0) made->watch_peers();
    try {
      owner.queues().add(*made);
    } catch (...) {
      made->close();
      throw;
    }
    handle->queue = made;
    *queue = handle.release();
    return Status::kOk;
  });
}

int32_t towline_agent_queue(towline_agent_t* agent, towline_queue_t** queue) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    capi::need(queue, "queue");
    agent->agent->check_usable();
    *queue = new towline_queue{agent->agent, &agent->agent->own_queue(), true};
    return Status::kOk;
  });
}

void towline_queue_release(towline_queue_t* queue) {
  if (queue == nullptr) return;
  if (!queue->own && queue->agent->usable() != Status::kForked) {
    queue->agent->queues().remove(*queue->queue);
    queue->queue->close();
  }
  delete queue;
}

int32_t towline_queue_fd(towline_queue_t* queue, int* fd) {
  return capi::guard(__func__, [&] {
    capi::need(queue, "queue");
    capi::need(fd, "fd");
    if (queue->agent->usable() == Status::kForked) return Status::kForked;
    *fd = queue->queue->event_fd();
    return Status::kOk;
  });
}

int32_t towline_queue_next(towline_queue_t* queue, towline_event_t* events, size_t capacity,
                           size_t event_bytes) {
  if (queue == nullptr) return capi::refuse_null(__func__, "queue");
  if (events == nullptr && capacity != 0) return capi::refuse_null(__func__, "events");
  if (event_bytes < capi::kLeastEventBytes || event_bytes > capi::kMostElementBytes)
    return capi::refuse(__func__, Status::kInvalidArgument, "event_bytes: give sizeof towline_event_t");
  const Status usable = queue->agent->events_usable();
  if (usable == Status::kForked) return capi::answer(__func__, usable);
  if (!queue->queue->there() && queue->agent->usable() == Status::kOk) queue->agent->progress();
  auto* const to = reinterpret_cast<unsigned char*>(events);
  const size_t count = queue->queue->next(to, std::min<size_t>(capacity, INT32_MAX), event_bytes);
  return count == 0 && usable != Status::kOk ? capi::answer(__func__, usable) : static_cast<int32_t>(count);
}

int32_t towline_queue_wait(towline_queue_t* queue, uint64_t deadline_ns) {
  if (queue == nullptr) return capi::refuse_null(__func__, "queue");
  const uint64_t left_ns = Deadline::at(deadline_ns).remaining_ns(monotonic_now_ns());
  return capi::answer(__func__, queue->agent->wait_event(*queue->queue, left_ns));
}

void towline_event_release(towline_event_t* event) {
  if (event == nullptr || event->held == nullptr) return;
  if (event->kind == TOWLINE_EVENT_NOTICE) {
    auto* const node = static_cast<NoticeNode*>(event->held);
    node->peer->agent().give_back_notice(node);
  } else {
    (void)TicketHold(&ticket_of(*event));
  }
  event->held = nullptr;
  event->data = nullptr;
}

int32_t towline_event_peer(const towline_event_t* event, towline_peer_t** peer) {
  return capi::guard(__func__, [&] {
    capi::need(event, "event");
    capi::need(peer, "peer");
    Peer* const found = peer_of(*event);
    if (found == nullptr)
      fail(Status::kNotFound, "an event of kind {} with this status has no peer", event->kind);
    *peer = handle_of(*found);
    return Status::kOk;
  });
}

const char* towline_event_error(const towline_event_t* event) {
  if (event == nullptr || event->status >= 0) return "";
  const bool has_text = event->held != nullptr && event->kind != TOWLINE_EVENT_NOTICE;
  if (has_text && !ticket_of(*event).why.empty()) return ticket_of(*event).why.c_str();
  return status_text(static_cast<Status>(event->status));
}

int32_t towline_queue_subscribe(towline_queue_t* queue, uint64_t tag, uint64_t mask) {
  return capi::guard(__func__, [&] {
    capi::need(queue, "queue");
    queue->agent->check_usable();
    if (queue->own) fail(Status::kInvalidArgument, "the agent's own queue gets what no other subscribes to");
    queue->agent->queues().subscribe(*queue->queue, tag, mask);
    return Status::kOk;
  });
}

int32_t towline_queue_unsubscribe(towline_queue_t* queue, uint64_t tag, uint64_t mask) {
  return capi::guard(__func__, [&] {
    capi::need(queue, "queue");
    if (!queue->agent->queues().unsubscribe(*queue->queue, tag, mask))
      fail(Status::kNotFound, "the queue has not subscribed to tag {:#x} with mask {:#x}", tag, mask);
    return Status::kOk;
  });
}

int32_t towline_notice_send_tagged(towline_peer_t* peer, uint64_t tag, const void* data, size_t bytes) {
  return capi::guard(__func__, [&] {
    capi::need(peer, "peer");
    if (bytes != 0) capi::need(data, "data");
    const Status status = peer->agent->send_notice(*peer->peer, data, bytes, tag);
    if (status == Status::kUnsupported)
      fail(status, "peer '{}' runs a version that does not know tags: send it notices without",
           peer->peer->name());
    return status;
  });
}

int32_t towline_notice_peer(const towline_notice_t* notice, towline_peer_t** peer) {
  return capi::guard(__func__, [&] {
    capi::need(notice, "notice");
    capi::need(notice->held, "notice.held");
    capi::need(peer, "peer");
    *peer = handle_of(*static_cast<NoticeNode*>(notice->held)->peer);
    return Status::kOk;
  });
}

int32_t towline_post_fence_async(towline_post_t* post, uint32_t fences, towline_queue_t* queue,
                                 void* user_data) {
  return capi::guard(__func__, [&] {
    capi::need(post, "post");
    check_fences(fences);
    auto& run = *reinterpret_cast<PlannedPost*>(post);
    Agent& agent = run.agent();
    agent.check_usable();
    TicketHold ticket = capi::queue_for(agent, queue).ticket(TOWLINE_EVENT_FENCED, user_data);
    ticket->value = fences;
    if (run.fenced(fences)) {
      EventQueue::tell(std::move(ticket), Status::kOk);
      return Status::kOk;
    }
    auto ask = [&run, fences](bool closing) {
      if (!closing) run.seek_fence(fences);
      const Status fence = run.fence(fences);
      if (fence != Status::kNotYet) return fence;
      return run.its_plan().closing() ? Status::kStale : Status::kInProgress;
    };
    auto why = [&run](Status status) {
      return status == Status::kUnsupported ? run.no_fence() : std::string();
    };
    auto wait = std::make_unique<Wait>(
        std::move(ticket), ask, [&run] { run.unwatch(); }, why);
    run.watch();  // until the wait goes
    agent.errands().add(std::move(wait));
    return Status::kOk;
  });
}

int32_t towline_group_fence_async(towline_group_t* group, uint32_t fences, towline_queue_t* queue,
                                  void* user_data) {
  return capi::guard(__func__, [&] {
    capi::need(group, "group");
    check_fences(fences);
    auto& run = *reinterpret_cast<Group*>(group);
    run.agent().check_usable();
    TicketHold ticket = capi::queue_for(run.agent(), queue).ticket(TOWLINE_EVENT_FENCED, user_data);
    ticket->value = fences;
    auto ask = [&run, fences](bool closing) {
      if (!closing) run.seek_fence(fences);
      const Status fence = run.fence(fences);
      return fence == Status::kNotYet ? Status::kInProgress : fence;
    };
    auto why = [&run](Status status) {
      return status == Status::kUnsupported ? run.no_fence() : std::string();
    };
    auto wait = std::make_unique<Wait>(
        std::move(ticket), ask, [&run] { run.let_go(); }, why);
    run.hold();  // until the wait goes
    run.agent().errands().add(std::move(wait));
    return Status::kOk;
  });
}

int32_t towline_counter_wait_async(towline_counter_t* counter, uint64_t threshold, towline_queue_t* queue,
                                   void* user_data) {
  return capi::guard(__func__, [&] {
    capi::need(counter, "counter");
    counter->agent->check_usable();
    counter->agent->remote_counters().watch(
        counter->key, threshold,
        capi::queue_for(*counter->agent, queue).ticket(TOWLINE_EVENT_SIGNAL, user_data));
    return Status::kOk;
  });
}

void towline_counter_forget(towline_counter_t* counter, towline_queue_t* queue, void* user_data) {
  if (counter == nullptr || counter->agent->usable() == Status::kForked) return;
  const EventQueue& of = queue != nullptr ? *queue->queue : counter->agent->own_queue();
  counter->agent->remote_counters().forget(counter->key, of, user_data);
}

int32_t towline_peer_connect_async(towline_agent_t* agent, const char* address, uint64_t deadline_ns,
                                   towline_queue_t* queue, void* user_data) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    capi::need(address, "address");
    Agent& owner = *agent->agent;
    owner.check_usable();
    const Deadline deadline = deadline_of(owner, deadline_ns);
    auto work = [&owner, directories = agent->directories, to = std::string(address), deadline](
                    Ticket& ticket, const std::atomic<bool>* stop) {
      Peer& peer = DirectoryAddress::is_one(to)
                       ? directories->connect(to, deadline.remaining_ns(monotonic_now_ns()))
                       : owner.connect_peer(to, deadline, stop);
      ticket.peer = PeerHold(&peer);
    };
    TicketHold ticket = capi::queue_for(owner, queue).ticket(TOWLINE_EVENT_CONNECTED, user_data);
    owner.errands().add(std::make_unique<Call>(owner, std::move(ticket), std::move(work)));
    return Status::kOk;
  });
}

int32_t towline_peer_refresh_async(towline_peer_t* peer, uint64_t deadline_ns, towline_queue_t* queue,
                                   void* user_data) {
  return capi::guard(__func__, [&] {
    capi::need(peer, "peer");
    Agent& owner = *peer->agent;
    owner.check_usable();
    const Deadline deadline = deadline_of(owner, deadline_ns);
    TicketHold ticket = capi::queue_for(owner, queue).ticket(TOWLINE_EVENT_CONNECTED, user_data);
    ticket->peer = PeerHold(peer->peer.get());
    auto work = [&owner, deadline](Ticket& to, const std::atomic<bool>* stop) {
      owner.refresh_peer(*to.peer, deadline, stop);
    };
    owner.errands().add(std::make_unique<Call>(owner, std::move(ticket), std::move(work)));
    return Status::kOk;
  });
}

int32_t towline_region_deregister_async(towline_region_t* region, towline_queue_t* queue, void* user_data) {
  return capi::guard(__func__, [&] {
    capi::need(region, "region");
    Agent& owner = *region->agent;
    owner.check_usable();
    auto ask = [&owner, gone = region->region](bool) noexcept {
      try {
        std::string why;
        const Status status = owner.own_regions().remove(gone, 0, why);
        return status == Status::kNotYet ? Status::kInProgress : status;
      } catch (const std::exception&) {  // of memory: asked again
        return Status::kInProgress;
      }
    };
    TicketHold ticket = capi::queue_for(owner, queue).ticket(TOWLINE_EVENT_DEREGISTERED, user_data);
    owner.errands().add(std::make_unique<Wait>(std::move(ticket), std::move(ask), nullptr));
    delete region;
    return Status::kOk;
  });
}

int32_t towline_storage_commit_async(towline_region_t* region, uint64_t deadline_ns, towline_queue_t* queue,
                                     void* user_data) {
  return capi::guard(__func__, [&] {
    capi::need(region, "region");
    Agent& owner = *region->agent;
    owner.check_usable();
    const Deadline deadline = deadline_of(owner, deadline_ns);
    auto work = [&owner, file = region->region, deadline](Ticket&, const std::atomic<bool>*) {
      owner.own_regions().commit_storage(file, deadline.remaining_ns(monotonic_now_ns()));
    };
    TicketHold ticket = capi::queue_for(owner, queue).ticket(TOWLINE_EVENT_COMMITTED, user_data);
    owner.errands().add(std::make_unique<Call>(owner, std::move(ticket), std::move(work)));
    return Status::kOk;
  });
}

int32_t towline_peer_credit_async(towline_peer_t* peer, towline_queue_t* queue, void* user_data) {
  return capi::guard(__func__, [&] {
    capi::need(peer, "peer");
    Agent& owner = *peer->agent;
    owner.check_usable();
    TicketHold ticket = capi::queue_for(owner, queue).ticket(TOWLINE_EVENT_CREDIT, user_data);
    ticket->peer = PeerHold(peer->peer.get());
    if (peer->peer->any_up_link()) {
      peer->peer->await_credit(std::move(ticket));
      return Status::kOk;
    }
    auto work = [&owner, deadline = deadline_of(owner, 0)](Ticket& to, const std::atomic<bool>*) {
      (void)owner.message_link(*to.peer, deadline.ns());  // a new one has credit
    };
    owner.errands().add(std::make_unique<Call>(owner, std::move(ticket), std::move(work)));
    return Status::kOk;
  });
}

}  // extern "C"
