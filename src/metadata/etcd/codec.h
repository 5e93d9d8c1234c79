// Requests to etcd's JSON gateway and its answers: keys and values are base64, 64-bit numbers are text,
// fields that are zero are left out. Pure functions; the decoders take any bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "towline/status.h"

namespace towline::etcd {

// ---- text

std::string to_base64(std::string_view bytes);
// Standard alphabet with padding, nothing else. False: it is not that; `bytes` is then undefined.
[[nodiscard]] bool from_base64(std::string_view text, std::string& bytes);

// For messages: what is not printable becomes \xNN, and all beyond a line is cut.
std::string shown(std::string_view bytes);

// The end of the range of every key that begins with `prefix`, as etcd wants it.
std::string end_of_prefix(std::string_view prefix);

// ---- requests

struct Span {
  std::string key;
  std::string end;  // empty: the one key
};

struct RangeArgs {
  Span span;
  uint64_t limit = 0;     // 0: all
  uint64_t revision = 0;  // 0: the latest
  bool keys_only = false;
};

std::string range_request(const RangeArgs& args);
std::string put_request(std::string_view key, std::string_view value, uint64_t lease);
// Puts only where there is no such key; else answers with what is there.
std::string create_request(std::string_view key, std::string_view value, uint64_t lease);
std::string remove_request(const Span& span);
std::string grant_request(uint64_t ttl_s);
std::string lease_request(uint64_t lease);  // for keepalive and revoke
std::string watch_request(const Span& span, uint64_t start_revision, bool removals_only);
std::string authenticate_request(std::string_view user, std::string_view password);

// ---- answers. The decoders throw Error(kProtocol) naming what is wrong.

struct Header {
  uint64_t cluster_id = 0;
  uint64_t revision = 0;
};

struct KeyValue {
  std::string key;
  std::string value;
  uint64_t revision = 0;  // of the last put
  uint64_t lease = 0;
};

struct RangeAnswer {
  Header header;
  std::vector<KeyValue> items;
  bool more = false;
};

struct CreateAnswer {
  Header header;
  bool created = false;
  std::vector<KeyValue> present;  // where it was not created
};

struct RemoveAnswer {
  Header header;
  uint64_t removed = 0;
};

struct LeaseAnswer {
  Header header;
  uint64_t id = 0;
  uint64_t ttl_s = 0;  // 0: there is no such lease
};

struct WatchAnswer {
  struct Event {
    bool gone = false;
    KeyValue item;  // without a value when gone
  };
  Header header;
  bool created = false;
  bool canceled = false;
  uint64_t compact_revision = 0;
  std::string reason;
  std::vector<Event> events;
};

// `revision` of a put is its header's.
Header decode_header(std::string_view body);
RangeAnswer decode_range(std::string_view body);
CreateAnswer decode_create(std::string_view body);
RemoveAnswer decode_remove(std::string_view body);
LeaseAnswer decode_grant(std::string_view body);
LeaseAnswer decode_keepalive(std::string_view body);
// One line of a watch's stream.
WatchAnswer decode_watch(std::string_view line);
std::string decode_token(std::string_view body);

// The meaning of any other answer.
struct Refusal {
  enum class Kind {
    kFinal,      // it won't get better by asking again
    kAgain,      // this server can't now
    kToken,      // who we are has to be proved anew
    kNoAuth,     // there is no need to prove who we are
    kCompacted,  // what was asked for is history
    kNoLease,
  };
  Kind kind = Kind::kAgain;
  Status status = Status::kIo;
  std::string text;
};

// Takes the body of an HTTP error, or a line of a stream that holds one. Never throws for what is in it.
Refusal decode_refusal(long http_status, std::string_view body);

}  // namespace towline::etcd
