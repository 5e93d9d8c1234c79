// Peers: their identity, their regions, messages to them.
#include <towline/pace.h>

#include <string_view>
#include <utility>
#include <vector>

#include <towline/layout.h>

#include "core.h"

namespace towline::python {

namespace {

struct RegionInfo : towline_region_info_t {
  std::string name;
};

nb::list regions(const Peer& peer) {
  std::vector<towline_region_info_t> known(64);
  size_t count = known.size();
  check(towline_peer_regions(peer.use(), known.data(), sizeof(towline_region_info_t), &count),
        "towline_peer_regions");
  while (count > known.size()) {
    known.resize(count);
    check(towline_peer_regions(peer.use(), known.data(), sizeof(towline_region_info_t), &count),
          "towline_peer_regions");
  }
  nb::list list;
  for (size_t i = 0; i < count; ++i) {
    char name[TOWLINE_MAX_REGION_NAME_BYTES + 1] = "";
    (void)towline_peer_region_name(peer.native, known[i].key, name, sizeof name);
    list.append(nb::cast(RegionInfo{known[i], name}));
  }
  return list;
}

nb::object region(nb::handle_t<Peer> self, nb::handle name) {
  return nb::module_::import_("towline._layout").attr("peer_view")(self, name);
}

const char* health(const Peer& peer) {
  static constexpr const char* kNames[] = {"unknown", "alive", "suspect", "lost"};
  const uint32_t now = towline_peer_health(peer.use());
  return now < 4 ? kNames[now] : "unknown";
}

// Calls without the GIL; the peer can't be removed meanwhile.
template <class Call>
int32_t call_peer(Peer& peer, Call call) {
  towline_peer_t* native = peer.use();
  struct Counted {
    explicit Counted(Peer& peer) : peer(peer) { ++peer.calls; }
    ~Counted() { --peer.calls; }
    Peer& peer;
  } const counted(peer);
  const AgentCall without_gil(agent_of(peer.agent));
  return call(without_gil.native(), native);
}

// Tries again whenever there is credit, until the timeout.
template <class Call>
void call_with_credit(Peer& peer, nb::handle timeout, const char* function, Call call) {
  Agent& agent = agent_of(peer.agent);
  const Deadline deadline(timeout_ns(timeout, agent.default_timeout));
  while (true) {
    const int32_t status =
        call_peer(peer, [&](towline_agent_t*, towline_peer_t* native) { return call(native); });
    if (status != TOWLINE_AGAIN || deadline.passed())
      return check(status, function, "the peer gives no credit now");
    OwnEvent event(agent);
    check(towline_peer_credit_async(peer.use(), event.queue(), nullptr), "towline_peer_credit_async");
    if (event.wait(deadline)) (void)event.get();
  }
}

int32_t send_once(towline_peer_t* peer, uint64_t tag, const BytesView& bytes) {
  return tag != 0 ? towline_notice_send_tagged(peer, tag, bytes.data(), bytes.size())
                  : towline_notice_send(peer, bytes.data(), bytes.size());
}

const char* send_function(uint64_t tag) {
  return tag != 0 ? "towline_notice_send_tagged" : "towline_notice_send";
}

void send(Peer& peer, nb::handle data, nb::handle tag, nb::handle timeout) {
  const BytesView bytes(data);
  const uint64_t its_tag = unsigned_integer(tag, "tag");
  call_with_credit(peer, timeout, send_function(its_tag),
                   [&](towline_peer_t* native) { return send_once(native, its_tag, bytes); });
}

// False without credit.
bool try_send(Peer& peer, nb::handle data, nb::handle tag) {
  const BytesView bytes(data);
  const uint64_t its_tag = unsigned_integer(tag, "tag");
  const int32_t status = call_peer(
      peer, [&](towline_agent_t*, towline_peer_t* native) { return send_once(native, its_tag, bytes); });
  if (status == TOWLINE_AGAIN) return false;
  check(status, send_function(its_tag));
  return true;
}

void add(Peer& peer, uint64_t key, uint64_t amount, nb::handle timeout) {
  call_with_credit(peer, timeout, "towline_counter_add",
                   [&](towline_peer_t* native) { return towline_counter_add(native, key, amount); });
}

bool try_add(Peer& peer, uint64_t key, uint64_t amount) {
  const int32_t status = call_peer(peer, [&](towline_agent_t*, towline_peer_t* native) {
    return towline_counter_add(native, key, amount);
  });
  if (status == TOWLINE_AGAIN) return false;
  check(status, "towline_counter_add");
  return true;
}

void refresh(Peer& peer, nb::handle timeout) {
  OwnEvent event(agent_of(peer.agent));
  check(towline_peer_refresh_async(peer.use(), deadline_ns(timeout), event.queue(), nullptr),
        "towline_peer_refresh_async");
  (void)event.wait(Deadline(TOWLINE_FOREVER));
  (void)event.get();
}

// Handles of one agent's view of one incarnation.
bool same_peer(nb::handle self, nb::handle other) {
  Peer* right = nullptr;
  if (self.is(other)) return true;
  if (!nb::try_cast(other, right) || right == nullptr) return false;
  const Peer& left = nb::cast<Peer&>(self);
  if (left.native == nullptr || right->native == nullptr || !left.agent.is(right->agent)) return false;
  return std::string_view(towline_peer_incarnation(left.native)) ==
         std::string_view(towline_peer_incarnation(right->native));
}

void remove(Peer& peer) {
  if (peer.calls != 0) raise(TOWLINE_BUSY, "another thread is calling this peer");
  towline_peer_t* native = peer.use();
  peer.native = nullptr;
  int32_t status = 0;
  {
    const AgentCall call(agent_of(peer.agent));
    status = towline_peer_remove(native);
  }
  if (status < 0) peer.native = native;
  check(status, "towline_peer_remove");
}

}  // namespace

Peer::~Peer() { towline_peer_release(native); }

towline_peer_t* Peer::use() const {
  if (native == nullptr) raise(TOWLINE_STALE, "the peer is removed");
  return native;
}

void bind_peer(nb::module_& module) {
  Class<RegionInfo>(module, "RegionInfo")
      .def_ro("key", &RegionInfo::key)
      .def_prop_ro("name",
                   [](const RegionInfo& region) -> nb::object {
                     if (region.name.empty()) return nb::none();
                     return text(region.name.c_str());
                   })
      .def_ro("address", &RegionInfo::address)
      .def_ro("nbytes", &RegionInfo::bytes)
      .def_ro("device", &RegionInfo::device)
      .def_prop_ro("kind", [](const RegionInfo& region) { return kind_name(region.kind); })
      .def_prop_ro("access", [](const RegionInfo& region) { return access_name(region.access); })
      .def_prop_ro("guarded",
                   [](const RegionInfo& region) { return (region.flags & TOWLINE_REGION_GUARDED) != 0; })
      .def("__repr__", [](const RegionInfo& region) {
        return nb::str("RegionInfo({}key={}, address={:#x}, nbytes={}, access={!r})")
            .format(region.name.empty() ? nb::str("") : nb::str("{!r}, ").format(text(region.name.c_str())),
                    region.key, region.address, region.bytes, access_name(region.access));
      });
  Class<Peer>(module, "Peer", nb::type_slots(collected<Peer>), nb::is_weak_referenceable())
      .def("__reduce__", &refuse_pickling)
      .def_prop_ro("name", [](const Peer& peer) { return text(towline_peer_name(peer.use())); })
      .def_prop_ro("incarnation", [](const Peer& peer) { return text(towline_peer_incarnation(peer.use())); })
      .def_prop_ro("health", &health)
      .def("regions", &regions)
      .def("region", &region, nb::arg("name"))
      .def("__getitem__", &region, nb::arg("name"))
      .def(
          "block_list",
          [](nb::handle_t<Peer> self, nb::handle source, nb::handle kind) {
            return make_block_list(nb::cast<Peer&>(self).agent, nb::borrow(self), source, nb::none(), kind);
          },
          nb::arg("source"), nb::kw_only(), nb::arg("kind") = "dram")
      .def("send", &send, nb::arg("data"), nb::kw_only(), nb::arg("tag") = 0, nb::arg("timeout") = nb::none())
      .def("add", &add, nb::arg("key"), nb::arg("amount") = 1, nb::kw_only(), nb::arg("timeout") = nb::none())
      .def("refresh", &refresh, nb::arg("timeout") = nb::none())
      .def(
          "set_limit",
          [](const Peer& peer, uint64_t bytes_per_s) {
            check(towline_peer_set_limit(peer.use(), bytes_per_s), "towline_peer_set_limit");
          },
          nb::arg("bytes_per_s"))
      .def("remove", &remove)
      .def("send_async",
           [](nb::handle peer, nb::args arguments, nb::kwargs keywords) {
             return coroutine("send", peer, std::move(arguments), std::move(keywords));
           })
      .def("add_async",
           [](nb::handle peer, nb::args arguments, nb::kwargs keywords) {
             return coroutine("add", peer, std::move(arguments), std::move(keywords));
           })
      .def("refresh_async",
           [](nb::handle peer, nb::args arguments, nb::kwargs keywords) {
             return coroutine("refresh", peer, std::move(arguments), std::move(keywords));
           })
      .def("credit_async",
           [](nb::handle peer, nb::args arguments, nb::kwargs keywords) {
             return coroutine("credit", peer, std::move(arguments), std::move(keywords));
           })
      .def_ro("_agent", &Peer::agent)
      .def("_try_send", &try_send)
      .def("_try_add", &try_add)
      .def(
          "_start_refresh",
          [](const Peer& peer, nb::handle timeout, uint64_t number) {
            check(towline_peer_refresh_async(peer.use(), deadline_ns(timeout),
                                             events_of(agent_of(peer.agent)), user_data(number)),
                  "towline_peer_refresh_async");
          },
          nb::arg("timeout").none(), nb::arg("number"))
      .def("_start_credit",
           [](const Peer& peer, uint64_t number) {
             check(towline_peer_credit_async(peer.use(), events_of(agent_of(peer.agent)), user_data(number)),
                   "towline_peer_credit_async");
           })
      .def("__eq__", [](nb::handle self, nb::handle other) { return same_peer(self, other); })
      .def("__hash__", [](const Peer& peer) { return nb::hash(text(towline_peer_incarnation(peer.use()))); })
      .def("__repr__", [](const Peer& peer) {
        if (peer.native == nullptr) return nb::str("Peer(removed)");
        return nb::str("Peer({!r}, {!r})").format(text(towline_peer_name(peer.native)), health(peer));
      });
}

}  // namespace towline::python
