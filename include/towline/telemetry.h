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
