// libtcpx_p2p: sends and receives between processes over plain TCP, payload into the memory where it is wanted.
//
// A session listens; sessions connect to it and are accepted. Both register memory and post sends and receives by its
// number and an offset. A send meets the first receive of the other side with the same tag, whichever was posted first;
// different tags don't wait for one another. Bytes go once, into the receive's memory.
//
// Functions return a status of <towline/status.h>: zero is success, below zero a failure that tcpx_last_error() explains
// for this thread. Any thread may call anything. Times are in nanoseconds; TCPX_FOREVER waits without limit.
#ifndef TCPX_P2P_H_
#define TCPX_P2P_H_

#include <stddef.h>
#include <stdint.h>
#include <towline/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TCPX_API __attribute__((visibility("default")))
#define TCPX_FOREVER UINT64_MAX
#define TCPX_HOST_MEMORY (-1)

typedef struct tcpx_session tcpx_session_t;
typedef struct tcpx_connection tcpx_connection_t;
typedef struct tcpx_transfer tcpx_transfer_t;

typedef enum tcpx_log_level_t {
  TCPX_LOG_ERROR = 1,
  TCPX_LOG_WARNING = 2,
  TCPX_LOG_INFO = 3
} tcpx_log_level_t;
// One message, without a newline, from any thread.
typedef void (*tcpx_log_t)(void* argument, tcpx_log_level_t level, const char* message);

typedef struct tcpx_session_options_t {
  size_t struct_size;
  const char* listen;  // "host" or "host:port"; null: "127.0.0.1". Without a port the first free one from
                       // UCCL_TCPX_OOB_PORT, 28900 if that is not set, to 16 above it
  const char* name;    // for people; null: "tcpx"
  const char*
      source;  // how payload is received (docs/tcpx.md, tuning.tcpx.source); null: the best that can be had
  // The NIC that receives into device memory; null: NCCL_GPUDIRECTTCPX_SOCKET_IFNAME, or none.
  const char* interface;
  const char* queues;   // its receive queues that are ours, "14,15"; null: none
  const char* plugins;  // comma-separated names or files of Towline's plugins; null: "tcpx"
  uint32_t gpus;        // not 0: memory of GPUs will be registered
  uint32_t reserved;
  tcpx_log_t log;  // null: none
  void* log_argument;
  uint64_t timeout_ns;  // of each transfer, from its match; 0: 30 s
} tcpx_session_options_t;

TCPX_API int32_t tcpx_session_create(const tcpx_session_options_t* options, tcpx_session_t** session);
// Ends every transfer with TOWLINE_CLOSED and tells the peers.
TCPX_API int32_t tcpx_session_destroy(tcpx_session_t* session);
// The address that others connect to: "10.0.0.7:28900".
TCPX_API int32_t tcpx_session_address(const tcpx_session_t* session, char* text, size_t capacity);
// Describes how payload is received, and why not in better ways: JSON, at most `capacity` bytes with NUL. `needed`: its whole size.
TCPX_API int32_t tcpx_session_describe(const tcpx_session_t* session, char* json, size_t capacity,
                                       size_t* needed);
TCPX_API int32_t tcpx_session_accept(tcpx_session_t* session, uint64_t timeout_ns,
                                     tcpx_connection_t** connection);
// TOWLINE_ALREADY_EXISTS: the two sessions are connected.
TCPX_API int32_t tcpx_session_connect(tcpx_session_t* session, const char* address, uint64_t timeout_ns,
                                      tcpx_connection_t** connection);
// Ends its transfers with TOWLINE_CLOSED, here and there, and frees it.
TCPX_API int32_t tcpx_connection_close(tcpx_connection_t* connection);

// Memory of any length and alignment; `gpu`: the GPU's number, or TCPX_HOST_MEMORY. It must stay valid until it is deregistered.
TCPX_API int32_t tcpx_memory_register(tcpx_session_t* session, void* address, uint64_t bytes, int32_t gpu,
                                      uint64_t* memory);
// TOWLINE_BUSY: a transfer uses it.
TCPX_API int32_t tcpx_memory_deregister(tcpx_session_t* session, uint64_t memory);

// At most 4,096 of each way may be under way on a connection: TOWLINE_AGAIN beyond that.
TCPX_API int32_t tcpx_post_send(tcpx_connection_t* connection, uint64_t memory, uint64_t offset,
                                uint64_t bytes, uint64_t tag, tcpx_transfer_t** transfer);
// A send may be shorter. A longer one ends both with TOWLINE_MISMATCH, and moves nothing.
TCPX_API int32_t tcpx_post_receive(tcpx_connection_t* connection, uint64_t memory, uint64_t offset,
                                   uint64_t bytes, uint64_t tag, tcpx_transfer_t** transfer);
// TOWLINE_IN_PROGRESS, or the outcome.
TCPX_API int32_t tcpx_is_complete(const tcpx_transfer_t* transfer);
TCPX_API int32_t tcpx_wait(const tcpx_transfer_t* transfer, uint64_t timeout_ns);
TCPX_API uint64_t tcpx_transfer_bytes(const tcpx_transfer_t* transfer);
// Cancels it if it has no outcome, and frees it. Its memory may be reused then. TOWLINE_TIMED_OUT: it may not, and the
// transfer is not freed.
TCPX_API int32_t tcpx_release(tcpx_transfer_t* transfer, uint64_t timeout_ns);

TCPX_API const char* tcpx_last_error(void);
TCPX_API const char* tcpx_status_text(int32_t status);
TCPX_API const char* tcpx_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TCPX_P2P_H_
