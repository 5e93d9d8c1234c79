// The common part of storage backends: the agent is connected to itself, which peers do not know; memory
// needs no registration; and each worker runs a queue of jobs.
//
//   class Backend : public storing::OwnBackend<Backend, Connection> {
//    public:
//     // A storing::OwnConnection, made of (Backend&, worker, peer).
//     using Connection = mine::Connection;
//     static constexpr storing::Names kNames = {"mine", "things"};
//     // By which connections find it again.
//     uint64_t id_of(const towline_storage*) const;
//     // Has progress() and has_work().
//     JobQueue& queue(uint32_t worker);
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "base/containers/pass_list.h"
#include "storing/own_connection.h"
#include "towline/plugin/backend.hpp"
#include "towline/towline.h"

namespace towline::storing {

template <class Backend, class Connection>
class OwnBackend : public plugin::BackendBase {
 public:
  explicit OwnBackend(const plugin::Host& host) : BackendBase(host), workers_(host.worker_count()) {}

  // ---- memory and connections: worker 0
  int32_t add(const towline_region_args& args, towline_registration** registration, void* token,
              size_t* token_bytes) {
    *token_bytes = 0;
    if (args.region.kind != TOWLINE_MEMORY_DRAM) {
      if (args.storage == nullptr)
        return refuse_by_name(Status::kUnsupported, "{}: this region does not belong to any of its {}");
      const uint64_t id = self().id_of(args.storage);
      std::memcpy(token, &id, sizeof id);
      *token_bytes = sizeof id;
    }
    *registration = reinterpret_cast<towline_registration*>(this);  // nothing to keep
    return TOWLINE_OK;
  }
  void remove(towline_registration*) noexcept {}

  int32_t address(void* address, size_t* bytes) {
    constexpr char kSelf[] = "self";
    if (*bytes < sizeof kSelf) return refuse_by_name(Status::kNoSpace, "{}: no room for the address");
    std::memcpy(address, kSelf, sizeof kSelf);
    *bytes = sizeof kSelf;
    return TOWLINE_OK;
  }

  int32_t probe(const towline_identity& peer, const void*, size_t) {
    const towline_identity& us = host().self();
    if (std::equal(std::begin(peer.incarnation), std::end(peer.incarnation), std::begin(us.incarnation)))
      return TOWLINE_OK;
    return refuse_by_name(Status::kUnreachable, "{}: {} are reached by the agent that registered them");
  }

  int32_t connect(uint32_t worker, const towline_identity& peer_identity, const void* address, size_t bytes,
                  uint64_t, void* peer, Connection** connection) {
    if (const int32_t status = probe(peer_identity, address, bytes); status != TOWLINE_OK) return status;
    *connection = workers_[worker].add(std::make_unique<Connection>(self(), worker, peer));
    host().connection_event(peer, TOWLINE_CONNECTION_UP, Status::kOk, "");
    return TOWLINE_OK;
  }

  // The connection's last word; it is deleted once nothing of the worker's pass can touch it.
  void release(Connection* connection) noexcept { workers_[connection->worker()].release(connection); }

  // ---- the workers
  uint32_t progress(uint32_t worker, uint64_t) noexcept {
    Connections& connections = workers_[worker];
    if (connections.in_pass()) return 0;
    const typename Connections::Pass pass(connections);
    uint32_t done = self().queue(worker).progress();
    done += connections.each([](Connection& one) { return one.has_messages() ? one.deliver() : 0; });
    return done;
  }

  bool arm(uint32_t worker) noexcept {
    return self().queue(worker).has_work() ||
           workers_[worker].any([](const Connection& one) { return one.has_messages(); });
  }
  void disarm(uint32_t) noexcept {}

 private:
  using Connections = PassList<Connection>;

  [[nodiscard]] Backend& self() noexcept { return static_cast<Backend&>(*this); }
  int32_t refuse_by_name(Status status, const char* text) const {
    return host().refuse(status,
                         fmt::format(fmt::runtime(text), Backend::kNames.backend, Backend::kNames.stored));
  }
  std::vector<Connections> workers_;
};

}  // namespace towline::storing
