// Source-compatible with NIXL's header of this name: an agent's configuration.
#pragma once

#include <chrono>
#include <cstdint>

#include "nixl_types.h"

struct nixlAgentConfig {
  static constexpr bool kDefaultUseProgThread = false;
  static constexpr bool kDefaultUseListenThread = false;
  static constexpr uint16_t kDefaultListenPort = default_comm_port;
  static constexpr nixl_thread_sync_t kDefaultSyncMode = nixl_thread_sync_t::NIXL_THREAD_SYNC_DEFAULT;
  static constexpr bool kDefaultCaptureTelemetry = false;
  static constexpr uint64_t kDefaultPthrDelayUs = 0;
  static constexpr uint64_t kDefaultLthrDelayUs = 100000;
  static constexpr std::chrono::microseconds kDefaultEtcdWatchTimeout = std::chrono::microseconds{5000000};

  // No effect: Towline makes progress by itself, and sleeps when there is nothing to do.
  bool useProgThread = kDefaultUseProgThread;
  // If set, peers find this agent at listenPort. Otherwise it listens at a port that its metadata contains.
  bool useListenThread = kDefaultUseListenThread;
  uint16_t listenPort = kDefaultListenPort;
  nixl_thread_sync_t syncMode = kDefaultSyncMode;  // no effect: any thread may call anything
  bool captureTelemetry = kDefaultCaptureTelemetry;
  uint64_t pthrDelay = kDefaultPthrDelayUs;  // no effect
  uint64_t lthrDelay = kDefaultLthrDelayUs;  // no effect
  // How long fetching from a metadata server waits for a key that does not exist yet.
  std::chrono::microseconds etcdWatchTimeout = kDefaultEtcdWatchTimeout;

  nixlAgentConfig() = default;

  explicit nixlAgentConfig(const bool use_prog_thread, const bool use_listen_thread = kDefaultUseListenThread,
                           uint16_t port = kDefaultListenPort,
                           nixl_thread_sync_t sync_mode = kDefaultSyncMode,
                           [[maybe_unused]] unsigned int num_workers = 1,
                           uint64_t pthr_delay_us = kDefaultPthrDelayUs,
                           uint64_t lthr_delay_us = kDefaultLthrDelayUs,
                           bool capture_telemetry = kDefaultCaptureTelemetry,
                           std::chrono::microseconds etcd_watch_timeout = kDefaultEtcdWatchTimeout) noexcept
      : useProgThread(use_prog_thread),
        useListenThread(use_listen_thread),
        listenPort(port),
        syncMode(sync_mode),
        captureTelemetry(capture_telemetry),
        pthrDelay(pthr_delay_us),
        lthrDelay(lthr_delay_us),
        etcdWatchTimeout(etcd_watch_timeout) {}
};
