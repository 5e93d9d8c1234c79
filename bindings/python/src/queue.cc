// Event queues: what asyncio waits for, and notices.
#include <array>

#include "core.h"

namespace towline::python {

namespace {

// The peer of an event, until the one who waits makes a Peer of it.
struct PeerHandle {
  towline_peer_t* native = nullptr;

  explicit PeerHandle(towline_peer_t* native) noexcept : native(native) {}
  PeerHandle(const PeerHandle&) = delete;
  PeerHandle& operator=(const PeerHandle&) = delete;
  ~PeerHandle() { towline_peer_release(native); }
};

nb::object make_queue(Agent& agent, uint32_t capacity, bool peer_health = false) {
  TOWLINE_INIT(towline_queue_options_t, options);
  options.capacity = capacity;
  options.peer_health = peer_health ? 1 : 0;
  towline_queue_t* native = nullptr;
  check(towline_queue_create(agent.use(), &options, &native), "towline_queue_create");
  return nb::cast(new Queue(native), nb::rv_policy::take_ownership);
}

towline_queue_t* small_queue(Agent& agent) {
  TOWLINE_INIT(towline_queue_options_t, options);
  options.capacity = 2;
  towline_queue_t* native = nullptr;
  check(towline_queue_create(agent.use(), &options, &native), "towline_queue_create");
  return native;
}

// A call during which the queue is not released. Throws Closed.
class QueueCall {
 public:
  explicit QueueCall(Queue& queue) : queue_(queue) {
    if (queue.closed) raise(TOWLINE_CLOSED, "the queue is closed");
    ++queue.calls;
  }
  ~QueueCall() {
    if (--queue_.calls == 0 && queue_.closed) queue_.close();
  }
  QueueCall(const QueueCall&) = delete;
  QueueCall& operator=(const QueueCall&) = delete;

 private:
  Queue& queue_;
};

int fd_of(Queue& queue) {
  const QueueCall call(queue);
  int fd = -1;
  check(towline_queue_fd(queue.native, &fd), "towline_queue_fd");
  return fd;
}

nb::object describe(towline_event_t& event) {
  nb::object peer = nb::none();
  towline_peer_t* native = nullptr;
  const bool has_peer = event.kind == TOWLINE_EVENT_CONNECTED || event.kind == TOWLINE_EVENT_PEER_HEALTH;
  if (has_peer && towline_event_peer(&event, &native) == TOWLINE_OK)
    peer = nb::cast(new PeerHandle(native), nb::rv_policy::take_ownership);
  nb::object why = nb::none();
  if (event.status < 0) why = text(towline_event_error(&event));
  return nb::make_tuple(reinterpret_cast<uintptr_t>(event.user_data), event.status, event.value, why, peer);
}

// Everything that has happened: (number, status, value, why or None, PeerHandle or None). Never blocks. Throws Closed after
// the last event of a closed agent.
nb::list take(Queue& queue) {
  const QueueCall call(queue);
  struct Taken {
    ~Taken() {
      for (int32_t i = 0; i < count; ++i) towline_event_release(&events[static_cast<size_t>(i)]);
    }
    std::array<towline_event_t, 64> events;
    int32_t count = 0;
  };
  nb::list told;
  while (true) {
    Taken taken;
    {
      const WithoutGil without_gil;
      taken.count =
          towline_queue_next(queue.native, taken.events.data(), taken.events.size(), sizeof(towline_event_t));
    }
    if (taken.count < 0 && nb::len(told) != 0) return told;
    check(taken.count, "towline_queue_next");
    for (int32_t i = 0; i < taken.count; ++i) told.append(describe(taken.events[static_cast<size_t>(i)]));
    if (taken.count < static_cast<int32_t>(taken.events.size())) return told;
  }
}

// ---- notices

struct Notice {
  nb::object peer;
  nb::object data;
  uint64_t tag = 0;

  int visit(visitproc visit, void* arg) const {
    Py_VISIT(peer.ptr());
    return 0;
  }
};

nb::object give(nb::handle agent, towline_event_t& event) {
  towline_peer_t* peer = nullptr;
  int32_t status = towline_event_peer(&event, &peer);
  nb::object data = nb::bytes(static_cast<const char*>(event.data), event.bytes);
  const uint64_t tag = event.tag;
  towline_event_release(&event);
  check(status, "towline_event_peer");
  nb::object its_peer = nb::cast(new Peer(nb::borrow(agent), peer), nb::rv_policy::take_ownership);
  auto* notice = new Notice{std::move(its_peer), std::move(data), tag};
  return nb::cast(notice, nb::rv_policy::take_ownership);
}

}  // namespace

nb::object receive_notice(nb::handle agent, Queue& queue, nb::handle timeout) {
  const Deadline deadline(timeout_ns(timeout, TOWLINE_FOREVER));
  const QueueCall call(queue);
  while (true) {
    agent_of(agent).use();
    if (queue.closed) raise(TOWLINE_CLOSED, "nobody subscribes to these notices any more");
    towline_event_t event{};
    int32_t count = 0;
    {
      const WithoutGil without_gil;
      count = towline_queue_next(queue.native, &event, 1, sizeof event);
      if (count == 0 && !deadline.passed()) {
        (void)towline_queue_wait(queue.native, deadline.slice_end());
        count = towline_queue_next(queue.native, &event, 1, sizeof event);
      }
    }
    if (count == 1 && event.kind == TOWLINE_EVENT_NOTICE) return give(agent, event);
    check(count, "towline_queue_next");
    towline_event_release(&event);
    check_signals();
    if (count == 0 && deadline.passed()) return nb::none();
  }
}

towline_queue_t* events_of(Agent& agent) {
  (void)agent.use();
  if (agent.events_native == nullptr) {
    agent.events = make_queue(agent, 0);
    agent.events_native = nb::cast<Queue&>(agent.events).native;
  }
  return agent.events_native;
}

OwnEvent::OwnEvent(Agent& agent) : queue_(small_queue(agent)) {}

OwnEvent::~OwnEvent() { towline_event_release(&event_); }

bool OwnEvent::wait(const Deadline& deadline) {
  while (true) {
    int32_t count = 0;
    {
      const WithoutGil without_gil;
      (void)towline_queue_wait(queue_.native, deadline.slice_end());
      count = towline_queue_next(queue_.native, &event_, 1, sizeof event_);
    }
    check(count, "towline_queue_next");
    if (count != 0) return true;
    check_signals();
    if (deadline.passed()) return false;
  }
}

const towline_event_t& OwnEvent::get() const {
  if (event_.status < 0) raise(event_.status, towline_event_error(&event_));
  return event_;
}

uint64_t deadline_ns(nb::handle timeout) {
  if (timeout.is_none()) return 0;
  const uint64_t left = timeout_ns(timeout, 0);
  const uint64_t now = now_ns();
  return left > TOWLINE_FOREVER - now ? TOWLINE_FOREVER : now + left;
}

uint64_t next_number() noexcept {
  static uint64_t last = 0;
  return ++last;
}

void bind_queue(nb::module_& module) {
  Class<Notice>(module, "Notice", nb::type_slots(collected<Notice>))
      .def_ro("peer", &Notice::peer)
      .def_ro("data", &Notice::data)
      .def_ro("tag", &Notice::tag)
      .def_prop_ro("nbytes", [](const Notice& notice) { return nb::len(notice.data); })
      .def("__repr__", [](const Notice& notice) {
        return nb::str("Notice(peer={!r}, tag={}, data={!r})").format(notice.peer, notice.tag, notice.data);
      });
  Class<PeerHandle>(module, "_PeerHandle");
  Class<Queue>(module, "_Queue")
      .def_prop_ro("fd", &fd_of)
      .def("take", &take)
      .def("close", &Queue::close)
      .def(
          "receive",
          [](Queue& queue, nb::handle_t<Agent> agent, nb::handle timeout) {
            return receive_notice(agent, queue, timeout);
          },
          nb::arg("agent"), nb::arg("timeout").none());
  define(module, "_next_number", &next_number);
  define(module, "_events", [](nb::handle_t<Agent> self) {
    (void)events_of(agent_of(self));
    return agent_of(self).events;
  });
  define(module, "_own_queue", [](nb::handle_t<Agent> self) {
    Agent& agent = agent_of(self);
    (void)agent.use();
    if (!agent.own_queue.is_valid()) {
      towline_queue_t* native = nullptr;
      check(towline_agent_queue(agent.use(), &native), "towline_agent_queue");
      agent.own_queue = nb::cast(new Queue(native), nb::rv_policy::take_ownership);
    }
    return agent.own_queue;
  });
  define(module, "_health_queue",
         [](nb::handle_t<Agent> self) { return make_queue(agent_of(self), 1, true); });
  define(
      module, "_subscribed_queue",
      [](nb::handle_t<Agent> self, nb::handle tag, nb::handle mask) {
        const uint64_t its_tag = unsigned_integer(tag, "tag");
        const uint64_t its_mask = mask.is_none() ? UINT64_MAX : unsigned_integer(mask, "mask");
        nb::object made = make_queue(agent_of(self), 1);
        check(towline_queue_subscribe(nb::cast<Queue&>(made).native, its_tag, its_mask),
              "towline_queue_subscribe");
        return made;
      },
      nb::arg("agent"), nb::arg("tag"), nb::arg("mask").none());
  define(module, "_peer", [](nb::handle_t<Agent> agent, PeerHandle& handle) {
    towline_peer_t* const native = std::exchange(handle.native, nullptr);
    return nb::cast(new Peer(nb::borrow(agent), native), nb::rv_policy::take_ownership);
  });
}

}  // namespace towline::python
