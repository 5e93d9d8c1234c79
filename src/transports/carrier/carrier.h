// Carries the messages of a transport that moves bytes by other means, and detects lost peers: a second instance of
// another transport (shm, tcp), opened under an identity of its own and called through the plugin ABI, like by
// the core. So agents meet in one way each on a host and over a network, and the transport adds only how it moves
// bytes.
//
// The identity's incarnation is altered on the way in and out, so that both instances of the carrying transport
// in one agent have sockets of their own.
#pragma once

#include <cstdint>
#include <string>

#include "towline/plugin/backend.hpp"

namespace towline::carrier {

// Events of one end's connection from the carrier. On the worker, under its lock.
class CarrierEvents {
 public:
  virtual void on_message(const void* data, size_t bytes) = 0;
  virtual void on_event(uint32_t event, int32_t status, const char* text) = 0;

 protected:
  ~CarrierEvents() = default;
};

class CarrierOwner {
 public:
  // A peer has connected: set *events to the receiver of its events. A negative status refuses.
  virtual int32_t on_accepted(uint32_t worker, towline_connection* carried, const towline_identity& identity,
                              CarrierEvents** events) = 0;

 protected:
  ~CarrierOwner() = default;
};

struct CarrierOptions {
  const towline_plugin_v1_t* plugin = nullptr;  // the transport that carries
  const char* owner = "";                       // the transport that it carries for
  uint64_t mark = 0;                            // turns an incarnation into the carrier's, and back
  // The value of a setting that the carrying transport is to see in place of its own; null: its own.
  const char* (*setting)(const plugin::Host& host, const char* key) = nullptr;
};

class Carrier {
 public:
  // Throws plugin::Failure.
  Carrier(const plugin::Host& host, CarrierOwner& owner, const CarrierOptions& options);
  Carrier(const Carrier&) = delete;
  Carrier& operator=(const Carrier&) = delete;
  ~Carrier();

  // As v1.h's slots of these names.
  int32_t address(void* address, size_t* bytes);
  int32_t probe(const towline_identity& peer, const void* address, size_t bytes);
  int32_t connect(uint32_t worker, const towline_identity& identity, const void* address, size_t bytes,
                  uint64_t deadline_ns, CarrierEvents& events, towline_connection** carried);
  void disconnect(towline_connection* carried) noexcept { connections_->disconnect(carried); }
  [[nodiscard]] std::string describe(towline_connection* carried) const;
  [[nodiscard]] uint64_t connection_id(towline_connection* carried) const noexcept {
    return connections_->id(carried);
  }
  int32_t send(towline_connection* carried, const void* message, size_t bytes) noexcept {
    return data_->send(carried, message, bytes);
  }
  uint32_t progress(uint32_t worker, uint64_t now_ns) noexcept {
    return data_->progress(inner_, worker, now_ns);
  }
  bool arm(uint32_t worker) noexcept { return data_->arm(inner_, worker) != 0; }
  void disarm(uint32_t worker) noexcept { data_->disarm(inner_, worker); }

 private:
  static Carrier& from(void* context) noexcept { return *static_cast<Carrier*>(context); }
  [[nodiscard]] towline_identity altered(const towline_identity& identity) const noexcept;

  const CarrierOptions options_;
  const towline_plugin_v1_t& plugin_;
  const plugin::Host host_;
  CarrierOwner& owner_;
  towline_identity self_;
  towline_host_v1_t inner_host_;
  std::string reason_;  // why it does not open
  const towline_connection_table_v1* connections_ = nullptr;
  const towline_data_table_v1* data_ = nullptr;
  towline_backend* inner_ = nullptr;
};

}  // namespace towline::carrier
