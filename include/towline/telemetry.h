// Counters of every agent on this host, and for monitoring systems. docs/telemetry.md lists what is counted.
#pragma once

#include <towline/towline.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct towline_exporter towline_exporter_t;

// The counters of every agent on this host that this user may read, even of agents that hang: a JSON array of
// the objects that towline_agent_metrics returns, with "latency_sum_ns" and "latency_buckets" ([upper bound
// in ns, count]) in each series. Size convention as towline_agent_info. Takes no agent.
TOWLINE_API int32_t towline_host_metrics(char* json, size_t capacity, size_t* needed);

// What one agent has counted of one peer, backend and direction. Texts are valid during the call that gets them.
typedef struct towline_metric_t {
  size_t struct_size;
  const char*
      peer;  // its name; "strangers": peers that the application did not ask for; "other": beyond the limit
  const char* backend;
  const char* direction;  // "tx": to the peer; "rx": from it
  uint64_t bytes;
  uint64_t transfers;
  uint64_t blocks;
  uint64_t notices;
  uint64_t served_bytes;  // moved by the peer's own transfers, where this side takes part in them
  uint64_t errors;        // of every kind
  uint64_t measured;      // transfers that were timed; the latencies are theirs
  uint64_t latency_mean_ns;
  uint64_t latency_p50_ns;
  uint64_t latency_p99_ns;
  uint64_t latency_max_ns;
} towline_metric_t;
// Non-zero stops the visit. It may call the library, except that it must not destroy the agent.
typedef int32_t (*towline_metric_visitor_t)(void* context, const towline_metric_t* metric);

// Calls `visitor` for each series of towline_agent_metrics, on this thread: the same numbers without JSON. Returns
// TOWLINE_OK after the last one, or the visitor's answer that stopped it.
TOWLINE_API int32_t towline_metrics_visit(towline_agent_t* agent, towline_metric_visitor_t visitor,
                                          void* context);

// Serves counters at http://`address`/metrics in Prometheus's text format, until it is stopped: those of one
// agent, or with null of every agent on this host. `address`: "host:port", "[v6]:port"; port 0 takes any free
// port. An agent with the setting telemetry.prometheus = "host:port" does this by itself. TOWLINE_NOT_FOUND:
// the plugin for it is missing.
TOWLINE_API int32_t towline_exporter_start(towline_agent_t* agent, const char* address,
                                           towline_exporter_t** exporter);
// The address in use: "127.0.0.1:9400".
TOWLINE_API const char* towline_exporter_address(const towline_exporter_t* exporter);
TOWLINE_API void towline_exporter_stop(towline_exporter_t* exporter);

// Adds counters of the application's own to what the exporter serves. `source` is called whenever the counters are
// read, on a thread of the exporter, and until towline_exporter_stop returns. It passes JSON to `take` before it
// returns, an array of families; what is malformed is left out:
//   {"name": "cache_hits_total", "help": "...", "type": "counter", "metrics": [{"labels": {"rank": "3"}, "value": 7}]}
// Types are counter, gauge and histogram. A metric of a histogram has, in place of "value", "bounds" (upper bounds,
// ascending), "counts" (of each bucket by itself, one more than there are bounds) and "sum".
typedef void (*towline_metric_source_t)(void* context,
                                        void (*take)(void* argument, const char* json, size_t bytes),
                                        void* argument);
TOWLINE_API int32_t towline_exporter_add(towline_exporter_t* exporter, towline_metric_source_t source,
                                         void* context);

#ifdef __cplusplus
}  // extern "C"
#endif
