// Carries the control messages of an engine over TCP, for users that have no agent: finds peers by an address
// that an application hands over, and takes peers that know this side's ticket.
//
// The ticket is 128 random bits in the address: knowing an address is the right to connect. It crosses the
// network in clear, as everything else here does. Strangers are bounded in number, bytes and time: beyond the bound,
// half of which one source may have, the oldest gives way. Where memory runs out, the connection that needed it ends.
//
// On the engine's thread only.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/os/socket_address.h"
#include "fabric/engine.h"
#include "secure/keys.h"

namespace towline::fabric {

struct CarrierAddress {
  Id ticket;
  std::vector<Endpoint> endpoints;  // tried in this order
  EngineAddress engine;
};
inline constexpr std::size_t kMaxCarrierEndpoints = 8;
inline constexpr std::size_t kMaxCarrierBytes = kMaxAddressBytes + 4096;
std::vector<uint8_t> encode(const CarrierAddress& address);
std::optional<CarrierAddress> decode_carrier_address(std::span<const uint8_t> bytes);

struct CarrierOptions {
  std::string listen = "127.0.0.1:0";
  secure::MaybeKeys keys;  // of every line
  std::size_t max_lines = 16384;
  std::size_t max_strangers = 512;  // connections that have not shown the ticket
  uint64_t hello_ns = 5 * kSecondNs;
  std::size_t max_unsent_bytes = 64 << 10;  // per peer; messages beyond are dropped
};

class Carrier {
 public:
  // The engine outlives the carrier. Throws Error where the address can't be listened at.
  Carrier(Engine& engine, CarrierOptions options);
  ~Carrier();
  Carrier(const Carrier&) = delete;
  Carrier& operator=(const Carrier&) = delete;

  CarrierAddress address() const;

  // Adds the engine's peer, or returns the existing one. Returns at once: messages sent meanwhile are repeated
  // by the engine, and a peer that can't be reached is lost. Throws Error.
  Handle connect(const CarrierAddress& address);
  void disconnect(Handle peer) noexcept;

  // EngineHost::send_control() calls this. Drops the message while there is no connection.
  void send(Handle peer, std::span<const uint8_t> message) noexcept;

  // Gives the engine what has arrived. Returns the number of events.
  std::size_t progress(uint64_t now_ns) noexcept;
  int event_fd() const noexcept;  // readable when progress() has something to do
  uint64_t next_timer_ns() const noexcept;

  std::size_t lines() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace towline::fabric
