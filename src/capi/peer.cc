// C API: metadata, peers, notices, counters.
#include "base/sync/wake_path.h"
#include "capi/handles.h"

using namespace towline;  // NOLINT: C entry points

std::vector<uint64_t> capi::keys_of(const Agent& agent, towline_region_t* const* regions, size_t count) {
  std::vector<uint64_t> keys;
  if (count != 0) need(regions, "regions");
  for (size_t i = 0; i < count; ++i) {
    need(regions[i], "an entry of regions");
    if (regions[i]->agent.get() != &agent)
      fail(Status::kInvalidArgument, "regions[{}] belongs to agent '{}', not to agent '{}'", i,
           regions[i]->agent->name(), agent.name());
    keys.push_back(regions[i]->region->ref.key);
  }
  return keys;
}

extern "C" {

int32_t towline_agent_metadata(towline_agent_t* agent, towline_region_t* const* regions, size_t count,
                               void* blob, size_t capacity, size_t* needed) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    const std::vector<uint64_t> keys = capi::keys_of(*agent->agent, regions, count);
    const std::vector<uint8_t> bytes = agent->agent->metadata(count != 0 ? &keys : nullptr);
    return capi::give(bytes.data(), bytes.size(), false, blob, capacity, needed);
  });
}

int32_t towline_peer_add(towline_agent_t* agent, const void* blob, size_t bytes, towline_peer_t** peer) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    capi::need(blob, "blob");
    Peer& added = agent->agent->add_peer({static_cast<const uint8_t*>(blob), bytes});
    if (peer != nullptr) *peer = new towline_peer{agent->agent, PeerHold(&added)};
    return Status::kOk;
  });
}

int32_t towline_peer_connect(towline_agent_t* agent, const char* address, uint64_t timeout_ns,
                             towline_peer_t** peer) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    capi::need(address, "address");
    if (timeout_ns == TOWLINE_DEFAULT_TIMEOUT) timeout_ns = agent->agent->default_timeout_ns();
    Peer& connected =
        DirectoryAddress::is_one(address)
            ? agent->directories->connect(address, timeout_ns)
            : agent->agent->connect_peer(address, Deadline::after(monotonic_now_ns(), timeout_ns));
    if (peer != nullptr) *peer = new towline_peer{agent->agent, PeerHold(&connected)};
    return Status::kOk;
  });
}

int32_t towline_peer_find(towline_agent_t* agent, const char* name, towline_peer_t** peer) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    capi::need(name, "name");
    capi::need(peer, "peer");
    agent->agent->check_usable();
    PeerHold found = agent->agent->find_peer(std::string(name));
    if (!found) fail(Status::kNotFound, "no peer '{}' is known to agent '{}'", name, agent->agent->name());
    *peer = new towline_peer{agent->agent, std::move(found)};
    return Status::kOk;
  });
}

int32_t towline_peer_refresh(towline_peer_t* peer, uint64_t timeout_ns) {
  return capi::guard(__func__, [&] {
    capi::need(peer, "peer");
    if (timeout_ns == TOWLINE_DEFAULT_TIMEOUT) timeout_ns = peer->agent->default_timeout_ns();
    peer->agent->refresh_peer(*peer->peer, Deadline::after(monotonic_now_ns(), timeout_ns));
    return Status::kOk;
  });
}

int32_t towline_peer_remove(towline_peer_t* peer) {
  return capi::guard(__func__, [&] {
    capi::need(peer, "peer");
    peer->agent->check_usable();
    peer->agent->remove_peer(*peer->peer);
    delete peer;
    return Status::kOk;
  });
}

void towline_peer_release(towline_peer_t* peer) { delete peer; }
const char* towline_peer_name(const towline_peer_t* peer) {
  return peer == nullptr ? "" : peer->peer->name().c_str();
}
const char* towline_peer_incarnation(const towline_peer_t* peer) {
  return peer == nullptr ? "" : peer->peer->incarnation_text().c_str();
}
uint32_t towline_peer_health(const towline_peer_t* peer) {
  return peer == nullptr ? uint32_t{TOWLINE_HEALTH_UNKNOWN} : peer->peer->health();
}

int32_t towline_peer_regions(const towline_peer_t* peer, towline_region_info_t* regions, size_t region_bytes,
                             size_t* count) {
  return capi::guard(__func__, [&] {
    capi::need(peer, "peer");
    capi::need(count, "count");
    capi::check_element(region_bytes, capi::kLeastRegionInfoBytes, "region_bytes");
    const auto known = peer->peer->regions();
    const size_t capacity = regions == nullptr ? 0 : *count;
    *count = known.size();
    for (size_t i = 0; i < std::min(capacity, known.size()); ++i)
      capi::give_element(regions, region_bytes, i, capi::describe(known[i]->ref));
    return Status::kOk;
  });
}

int32_t towline_notice_send(towline_peer_t* peer, const void* data, size_t bytes) {
  if (peer == nullptr) return capi::refuse_null(__func__, "peer");
  if (data == nullptr && bytes != 0) return capi::refuse_null(__func__, "data");
  return capi::guard(__func__, [&] { return peer->agent->send_notice(*peer->peer, data, bytes); });
}

TOWLINE_WAKE_PATH int32_t towline_notice_receive(towline_agent_t* agent, towline_notice_t* notice,
                                                 size_t notice_bytes) {
  if (agent == nullptr || notice == nullptr)
    return capi::refuse_null(__func__, agent == nullptr ? "agent" : "notice");
  if (notice_bytes < capi::kLeastNoticeBytes || notice_bytes > capi::kMostElementBytes)
    return capi::refuse(__func__, Status::kInvalidArgument, "notice_bytes: give sizeof(towline_notice_t)");
  NoticeNode* node = agent->agent->inbox().pull();
  if (node == nullptr) {
    if (const Status status = agent->agent->usable(); status != Status::kOk)
      return capi::answer(__func__, status);
    node = agent->agent->receive_notice();
    if (node == nullptr) return TOWLINE_AGAIN;
  }
  const towline_notice_t whole = {node->peer->name().c_str(),
                                  node->peer->incarnation_text().c_str(),
                                  node->data(),
                                  node->bytes,
                                  node,
                                  node->tag};
  capi::give_element(notice, notice_bytes, 0, whole);
  return TOWLINE_OK;
}

void towline_notice_release(towline_agent_t* agent, towline_notice_t* notice) {
  if (agent == nullptr || notice == nullptr || notice->held == nullptr) return;
  agent->agent->give_back_notice(static_cast<NoticeNode*>(notice->held));
  std::memset(static_cast<void*>(notice), 0, capi::kLeastNoticeBytes);
}

int32_t towline_counter_create(towline_agent_t* agent, uint64_t initial, towline_counter_t** counter) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    capi::need(counter, "counter");
    agent->agent->check_usable();
    // First, since nobody could end a counter without a handle.
    auto made = std::unique_ptr<towline_counter>(new towline_counter{agent->agent, 0});
    made->key = agent->agent->remote_counters().create(initial);
    if (made->key == 0)
      fail(Status::kLimitExceeded, "agent '{}' has no room for another counter", agent->agent->name());
    *counter = made.release();
    return Status::kOk;
  });
}

uint64_t towline_counter_key(const towline_counter_t* counter) {
  return counter == nullptr ? 0 : counter->key;
}

uint64_t towline_counter_value(const towline_counter_t* counter) {
  if (counter == nullptr) return 0;
  const CounterCell* cell = counter->agent->remote_counters().find(counter->key);
  return cell == nullptr ? 0 : cell->value.load(std::memory_order_acquire);
}

int32_t towline_counter_wait(towline_counter_t* counter, uint64_t threshold, uint64_t timeout_ns) {
  if (counter == nullptr) return capi::refuse_null(__func__, "counter");
  return capi::answer(__func__, counter->agent->wait_counter(counter->key, threshold, timeout_ns));
}

void towline_counter_destroy(towline_counter_t* counter) {
  if (counter == nullptr) return;
  counter->agent->remote_counters().destroy(counter->key);
  delete counter;
}

int32_t towline_counter_add(towline_peer_t* peer, uint64_t key, uint64_t amount) {
  if (peer == nullptr) return capi::refuse_null(__func__, "peer");
  return capi::guard(__func__, [&] { return peer->agent->add_to_counter(*peer->peer, key, amount); });
}

}  // extern "C"
