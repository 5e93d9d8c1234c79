#include "transports/carrier/carrier.h"

#include <vector>

namespace towline::carrier {

namespace {

constexpr size_t kDescriptionBytes = 4096;

}  // namespace

towline_identity Carrier::altered(const towline_identity& identity) const noexcept {
  towline_identity result = identity;
  result.incarnation[0] ^= options_.mark;
  return result;
}

// Services pass through, except those that report connections.
Carrier::Carrier(const plugin::Host& host, CarrierOwner& owner, const CarrierOptions& options)
    : options_(options),
      plugin_(*options.plugin),
      host_(host),
      owner_(owner),
      self_(altered(host.self())),
      inner_host_{} {
  connections_ = static_cast<const towline_connection_table_v1*>(plugin_.query_table("connection", 1));
  data_ = static_cast<const towline_data_table_v1*>(plugin_.query_table("data", 1));
  towline_host_v1_t& t = inner_host_;
  t.struct_size = sizeof t;
  t.context = this;
  t.now_ns = [](void* c) { return from(c).host_.now_ns(); };
  t.log = [](void* c, int32_t level, const char* text) { from(c).host_.log(level, text); };
  t.fail = [](void* c, const char* text) {
    if (from(c).inner_ == nullptr) from(c).reason_ = text;
    from(c).host_.fail(text);
  };
  t.config = [](void* c, const char* key, const char* fallback) {
    const Carrier& self = from(c);
    if (self.options_.setting != nullptr)
      if (const char* value = self.options_.setting(self.host_, key); value != nullptr) return value;
    const towline_host_v1_t& table = *self.host_.table();
    return table.config(table.context, key, fallback);
  };
  t.self = [](void* c) -> const towline_identity* { return &from(c).self_; };
  t.worker_count = [](void* c) { return from(c).host_.worker_count(); };
  t.watch = [](void* c, uint32_t worker, int fd, uint32_t events, towline_ready_fn ready, void* argument) {
    return from(c).host_.watch(worker, fd, events, ready, argument);
  };
  t.rewatch = [](void* c, uint32_t worker, int fd, uint32_t events, towline_ready_fn ready, void* argument) {
    return from(c).host_.rewatch(worker, fd, events, ready, argument);
  };
  t.unwatch = [](void* c, uint32_t worker, int fd) { from(c).host_.unwatch(worker, fd); };
  t.wake = [](void* c, uint32_t worker) { from(c).host_.wake(worker); };
  t.complete = [](void*, uint64_t, const towline_part_result*) {};  // it is given messages only
  t.message = [](void*, void* peer, const void* data, size_t bytes) {
    static_cast<CarrierEvents*>(peer)->on_message(data, bytes);
  };
  t.connection_event = [](void*, void* peer, uint32_t event, int32_t status, const char* text) {
    static_cast<CarrierEvents*>(peer)->on_event(event, status, text);
  };
  t.accepted = [](void* c, uint32_t worker, towline_connection* carried, const towline_identity* identity,
                  void** peer) {
    CarrierEvents* events = nullptr;
    const int32_t status = from(c).owner_.on_accepted(worker, carried, from(c).altered(*identity), &events);
    *peer = events;
    return status;
  };
  t.pin = [](void* c, uint64_t, uint64_t, uint64_t, uint32_t, void**, void**) {
    return from(c).host_.refuse(Status::kUnsupported, std::string(from(c).options_.owner) +
                                                          ": no memory is reached over the carrier");
  };
  t.unpin = [](void*, void*) {};
  t.served = [](void*, void*, uint32_t, uint64_t) {};
  t.heard = [](void*, void*) {};  // what the carrier brings are messages, and its owner passes those on
  t.refused = [](void*, uint32_t, void*, int32_t) {};
  t.granted = [](void*, void*, uint64_t) {};
  const int32_t status = plugin_.open(&inner_host_, &inner_);
  if (status != TOWLINE_OK)
    throw plugin::Failure(static_cast<Status>(status),
                          std::string(options_.owner) + ": the transport " + plugin_.name +
                              ", which carries its messages, does not open: " + reason_);
}

Carrier::~Carrier() { plugin_.close(inner_); }

int32_t Carrier::address(void* address, size_t* bytes) {
  return connections_->address(inner_, address, bytes);
}

int32_t Carrier::probe(const towline_identity& peer, const void* address, size_t bytes) {
  const towline_identity theirs = altered(peer);
  return connections_->probe(inner_, &theirs, address, bytes);
}

int32_t Carrier::connect(uint32_t worker, const towline_identity& identity, const void* address, size_t bytes,
                         uint64_t deadline_ns, CarrierEvents& events, towline_connection** carried) {
  const towline_identity theirs = altered(identity);
  return connections_->connect(inner_, worker, &theirs, address, bytes, deadline_ns, &events, carried);
}

std::string Carrier::describe(towline_connection* carried) const {
  std::vector<char> text(kDescriptionBytes);
  if (carried == nullptr || connections_->describe(carried, text.data(), text.size()) != TOWLINE_OK)
    return "{}";
  return text.data();
}

}  // namespace towline::carrier
