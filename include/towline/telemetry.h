// Counters beyond one agent: of every agent on this host, and for monitoring systems. docs/telemetry.md says
// what is counted.
#pragma once

#include <towline/towline.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct towline_exporter towline_exporter_t;

// The counters of every agent on this host that this user may read, also of those that hang: a JSON array of
// what towline_agent_counters gives, with "latency_sum_ns" and "latency_buckets" ([upper bound in ns, count])
// in each series. Size convention as towline_agent_info. Takes no agent.
TOWLINE_API int32_t towline_host_counters(char* json, size_t capacity, size_t* needed);

// Serves counters at http://`address`/metrics in Prometheus's text format, until it is stopped: those of one
// agent, or with null of every agent on this host. `address`: "host:port", "[v6]:port"; port 0 takes any. An
// agent with the setting telemetry.prometheus = "host:port" does so by itself. TOWLINE_NOT_FOUND: there is no
// plugin for it.
TOWLINE_API int32_t towline_exporter_start(towline_agent_t* agent, const char* address,
                                           towline_exporter_t** exporter);
// Where it is served: "127.0.0.1:9400".
TOWLINE_API const char* towline_exporter_address(const towline_exporter_t* exporter);
TOWLINE_API void towline_exporter_stop(towline_exporter_t* exporter);

#ifdef __cplusplus
}  // extern "C"
#endif
