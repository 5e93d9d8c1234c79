// Source-compatible with NIXL's header of this name: the types, values and constants of its interface, on
// Towline.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

// Marks the exports of libnixl.so.
#define TOWLINE_NIXL_API __attribute__((visibility("default")))

class nixlSerDes;
class nixlDlistH;     // a prepared list
class nixlBackendH;   // a backend made by nixlAgent::createBackend
class nixlXferReqH;   // a transfer request
class nixlAgentData;  // an agent's implementation

// Kinds of memory. Of fixed size, so that a value from outside can be checked before use.
enum nixl_mem_t : int { DRAM_SEG, VRAM_SEG, BLK_SEG, OBJ_SEG, FILE_SEG };

// READ: remote to local. WRITE: local to remote.
enum nixl_xfer_op_t : int { NIXL_READ, NIXL_WRITE };

// Return values of calls: errors are negative.
enum nixl_status_t : int {
  NIXL_IN_PROG = 1,
  NIXL_SUCCESS = 0,
  NIXL_ERR_NOT_POSTED = -1,
  NIXL_ERR_INVALID_PARAM = -2,
  NIXL_ERR_BACKEND = -3,
  NIXL_ERR_NOT_FOUND = -4,
  NIXL_ERR_MISMATCH = -5,
  NIXL_ERR_NOT_ALLOWED = -6,
  NIXL_ERR_REPOST_ACTIVE = -7,
  NIXL_ERR_UNKNOWN = -8,
  NIXL_ERR_NOT_SUPPORTED = -9,
  NIXL_ERR_REMOTE_DISCONNECT = -10,
  NIXL_ERR_CANCELED = -11,
  NIXL_ERR_NO_TELEMETRY = -12,
};

// Accepted and of no effect: any thread may call anything.
enum class nixl_thread_sync_t {
  NIXL_THREAD_SYNC_NONE,
  NIXL_THREAD_SYNC_STRICT,
  NIXL_THREAD_SYNC_RW,
  NIXL_THREAD_SYNC_DEFAULT = NIXL_THREAD_SYNC_NONE,
};

enum class nixl_cost_t {
  ANALYTICAL_BACKEND = 0,
};

// Names of the enumerators; "BAD_SEG", "BAD_OP", "BAD_STATUS" for other values.
namespace nixlEnumStrings {
TOWLINE_NIXL_API std::string memTypeStr(const nixl_mem_t& mem);
TOWLINE_NIXL_API std::string xferOpStr(const nixl_xfer_op_t& op);
TOWLINE_NIXL_API std::string statusStr(const nixl_status_t& status);
}  // namespace nixlEnumStrings

using nixl_backend_t = std::string;           // a backend's name, such as "UCX"
using nixl_telemetry_plugin_t = std::string;  // a telemetry exporter's name
using nixl_blob_t = std::string;              // bytes of any value
using nixl_mem_list_t = std::vector<nixl_mem_t>;
using nixl_b_params_t = std::unordered_map<std::string, std::string>;
using nixl_notifs_t = std::unordered_map<std::string, std::vector<nixl_blob_t>>;  // by the sender's name
using nixl_query_resp_t = std::optional<nixl_b_params_t>;  // empty: there is no such thing

inline constexpr uint16_t default_comm_port = 8888;
TOWLINE_NIXL_API extern const std::string default_metadata_label;
TOWLINE_NIXL_API extern const std::string default_partial_metadata_label;

// Optional arguments of most calls: each call documents which of these it reads.
struct nixlAgentOptionalArgs {
  std::vector<nixlBackendH*> backends;  // only these; empty: any
  std::optional<nixl_blob_t> notif;     // delivered after the data; at most 1 GiB
  nixl_blob_t notifMsg;                 // the older form, together with hasNotif
  bool hasNotif = false;
  bool skipDescMerge = false;    // no effect: merging costs nothing here and changes no result
  bool includeConnInfo = false;  // partial metadata: include the addresses
  std::string ipAddr;            // metadata calls: the peer's address, IPv4, IPv6 or a host name
  int port = default_comm_port;
  std::string metadataLabel;
  nixl_blob_t customParam;
};
using nixl_opt_args_t = nixlAgentOptionalArgs;

using nixlMemViewH = void*;

using chrono_point_t = std::chrono::steady_clock::time_point;
using chrono_period_us_t = std::chrono::microseconds;

// Figures of a request's last post. Times are rounded up to whole microseconds.
struct nixlXferTelemetry {
  chrono_point_t startTime;
  chrono_period_us_t postDuration;
  chrono_period_us_t xferDuration;  // from the post until the end was seen
  size_t totalBytes;
  size_t descCount;
};
using nixl_xfer_telem_t = nixlXferTelemetry;

// The name that stands for the local side in nixlAgent::prepXferDlist.
#define NIXL_INIT_AGENT ""

// The name in an entry of a remote list that means no agent.
TOWLINE_NIXL_API extern const std::string nixl_null_agent;
