// One instance of the interceptor: an instance of the inner plugin, and the host it sees.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/random.h"
#include "framing/fault_options.h"
#include "towline/plugin/v1.h"
#include "transports/faulty/connection.h"

namespace towline::faulty {

class Backend {
 public:
  Backend(const towline_plugin_v1_t& inner, const towline_host_v1_t& host,
          const framing::FaultOptions& options);
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  ~Backend();

  // Opens the inner plugin; a status.
  int32_t open();

  static Backend* from(towline_backend* handle) noexcept { return reinterpret_cast<Backend*>(handle); }
  towline_backend* handle() noexcept { return reinterpret_cast<towline_backend*>(this); }

  int32_t connect(uint32_t worker, const towline_identity* identity, const void* address, size_t bytes,
                  uint64_t deadline_ns, void* peer, towline_connection** connection);
  uint32_t progress(uint32_t worker, uint64_t now_ns);
  uint32_t arm(uint32_t worker);

  // For connections.
  [[nodiscard]] const framing::FaultOptions& options() const noexcept { return options_; }
  [[nodiscard]] const towline_host_v1_t& host() const noexcept { return host_; }  // the core's
  [[nodiscard]] const towline_memory_table_v1& memory() const noexcept { return memory_; }
  [[nodiscard]] const towline_connection_table_v1& connections() const noexcept { return connections_; }
  [[nodiscard]] const towline_data_table_v1& data() const noexcept { return data_; }
  [[nodiscard]] towline_backend* inner() const noexcept { return inner_; }
  [[nodiscard]] uint64_t now_ns() const noexcept { return host_.now_ns(host_.context); }
  void fail(const char* text) const noexcept { host_.fail(host_.context, text); }
  // Draws of the worker's own generator: a worker's faults do not depend on what others do.
  bool chance(uint32_t worker, double probability) noexcept {
    return probability > 0 && workers_[worker].random.chance(probability);
  }
  uint64_t below(uint32_t worker, uint64_t bound) noexcept { return workers_[worker].random.below(bound); }
  void forget(const Connection& connection) noexcept;

 private:
  struct Worker {
    explicit Worker(uint64_t seed) : random(seed) {}
    Random random;
    std::vector<Connection*> connections;
  };

  void make_inner_host();
  int32_t accepted(uint32_t worker, towline_connection* inner, const towline_identity* identity, void** peer);

  const towline_plugin_v1_t& plugin_;
  const towline_host_v1_t host_;
  const framing::FaultOptions options_;
  towline_host_v1_t inner_host_ = {};
  towline_memory_table_v1 memory_ = {};
  towline_connection_table_v1 connections_ = {};
  towline_data_table_v1 data_ = {};
  towline_backend* inner_ = nullptr;
  std::vector<Worker> workers_;
};

// The interceptor's tables, the same for every inner plugin; null for others.
const void* find_table(const char* id, uint32_t version) noexcept;
void close_backend(towline_backend* backend);

}  // namespace towline::faulty
