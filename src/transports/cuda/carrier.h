// The carrier of this transport's messages, which also detects lost peers: a second instance of the shm
// transport, opened under its own identity and called through the plugin ABI, like by the core. So there is
// one way in which processes of a host meet, and this transport adds only how GPU memory is reached.
//
// The identity's incarnation is altered on the way in and out, so that both instances of shm in one agent
// have sockets of their own.
#pragma once

#include <cstdint>
#include <string>

#include "towline/plugin/backend.hpp"

namespace towline::cuda {

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

class Carrier {
 public:
  // Throws plugin::Failure.
  Carrier(const plugin::Host& host, CarrierOwner& owner);
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

  const towline_plugin_v1_t& plugin_;
  const plugin::Host host_;
  CarrierOwner& owner_;
  towline_identity self_;
  towline_host_v1_t inner_host_;
  const towline_connection_table_v1* connections_ = nullptr;
  const towline_data_table_v1* data_ = nullptr;
  towline_backend* inner_ = nullptr;
};

}  // namespace towline::cuda
