// Status codes: one list for C and C++. Zero and one are not errors; everything negative is.
#pragma once

#include <towline/export.h>

#ifdef __cplusplus
#include <cstdint>
extern "C" {
#else
#include <stdint.h>
#endif

// X(name in C, name in C++, value, short text)
#define TOWLINE_STATUS_LIST(X)                                                \
  X(OK, Ok, 0, "done")                                                        \
  X(IN_PROGRESS, InProgress, 1, "in progress")                                \
  X(AGAIN, Again, -1, "no credit or space now, try again")                    \
  X(INVALID_ARGUMENT, InvalidArgument, -2, "invalid argument")                \
  X(OUT_OF_RANGE, OutOfRange, -3, "out of range")                             \
  X(NOT_FOUND, NotFound, -4, "not found")                                     \
  X(ALREADY_EXISTS, AlreadyExists, -5, "already exists")                      \
  X(PERMISSION_DENIED, PermissionDenied, -6, "permission denied")             \
  X(MISMATCH, Mismatch, -7, "sizes do not fit together")                      \
  X(LIMIT_EXCEEDED, LimitExceeded, -8, "limit exceeded")                      \
  X(OUT_OF_MEMORY, OutOfMemory, -9, "out of memory")                          \
  X(NO_SPACE, NoSpace, -10, "no space left")                                  \
  X(UNSUPPORTED, Unsupported, -11, "not supported")                           \
  X(BUSY, Busy, -12, "still in flight or in use")                             \
  X(CANCELLED, Cancelled, -13, "cancelled")                                   \
  X(TIMED_OUT, TimedOut, -14, "deadline passed")                              \
  X(PEER_LOST, PeerLost, -15, "peer lost")                                    \
  X(PEER_RESTARTED, PeerRestarted, -16, "peer restarted under the same name") \
  X(STALE, Stale, -17, "registration or handle is gone")                      \
  X(PROTOCOL, Protocol, -18, "peer broke the protocol")                       \
  X(CORRUPT, Corrupt, -19, "checksum does not match")                         \
  X(IO, Io, -20, "input/output error")                                        \
  X(FORKED, Forked, -21, "handle belongs to the parent process")              \
  X(CLOSED, Closed, -22, "closed")                                            \
  X(NO_ROUTE, NoRoute, -23, "no backend reaches this memory")                 \
  X(UNREACHABLE, Unreachable, -24, "address cannot be reached")               \
  X(ADDRESS_IN_USE, AddressInUse, -25, "address in use")                      \
  X(SHORT, Short, -26, "fewer bytes than asked for")                          \
  X(INTERNAL, Internal, -27, "internal error")                                \
  X(NOT_YET, NotYet, -28, "not yet: the wait has ended, what it waits for goes on")

typedef enum towline_status_t {
#define TOWLINE_STATUS_C(c_name, cpp_name, value, text) TOWLINE_##c_name = value,
  TOWLINE_STATUS_LIST(TOWLINE_STATUS_C)
#undef TOWLINE_STATUS_C
} towline_status_t;

// A short English text for a status; never null. Unknown values give "unknown status".
TOWLINE_API const char* towline_status_text(int32_t status);
// The status's name in C without prefix, such as "PEER_LOST"; never null.
TOWLINE_API const char* towline_status_name(int32_t status);

#ifdef __cplusplus
}  // extern "C"

namespace towline {

enum class Status : int32_t {
#define TOWLINE_STATUS_CPP(c_name, cpp_name, value, text) k##cpp_name = value,
  TOWLINE_STATUS_LIST(TOWLINE_STATUS_CPP)
#undef TOWLINE_STATUS_CPP
};

[[nodiscard]] constexpr bool is_error(Status status) noexcept { return static_cast<int32_t>(status) < 0; }

[[nodiscard]] constexpr const char* status_text(Status status) noexcept {
  switch (status) {
#define TOWLINE_STATUS_CASE(c_name, cpp_name, value, text) \
  case Status::k##cpp_name:                                \
    return text;
    TOWLINE_STATUS_LIST(TOWLINE_STATUS_CASE)
#undef TOWLINE_STATUS_CASE
  }
  return "unknown status";
}

[[nodiscard]] constexpr const char* status_name(Status status) noexcept {
  switch (status) {
#define TOWLINE_STATUS_CASE(c_name, cpp_name, value, text) \
  case Status::k##cpp_name:                                \
    return #c_name;
    TOWLINE_STATUS_LIST(TOWLINE_STATUS_CASE)
#undef TOWLINE_STATUS_CASE
  }
  return "UNKNOWN";
}

}  // namespace towline
#endif
