#include "status.h"

namespace towline::nixl {

nixl_status_t to_nixl(Status status) noexcept {
  switch (status) {
    case Status::kOk:
      return NIXL_SUCCESS;
    case Status::kInProgress:
      return NIXL_IN_PROG;
    case Status::kInvalidArgument:
    case Status::kOutOfRange:
    case Status::kMismatch:
    case Status::kLimitExceeded:
      return NIXL_ERR_INVALID_PARAM;
    case Status::kNotFound:
    case Status::kStale:
      return NIXL_ERR_NOT_FOUND;
    case Status::kAlreadyExists:
    case Status::kPermissionDenied:
    case Status::kForked:
    case Status::kClosed:
      return NIXL_ERR_NOT_ALLOWED;
    case Status::kUnsupported:
      return NIXL_ERR_NOT_SUPPORTED;
    case Status::kBusy:
      return NIXL_ERR_REPOST_ACTIVE;
    case Status::kCancelled:
      return NIXL_ERR_CANCELED;
    case Status::kPeerLost:
    case Status::kPeerRestarted:
    case Status::kUnreachable:
      return NIXL_ERR_REMOTE_DISCONNECT;
    case Status::kAgain:
    case Status::kOutOfMemory:
    case Status::kNoSpace:
    case Status::kTimedOut:
    case Status::kNotYet:
    case Status::kProtocol:
    case Status::kCorrupt:
    case Status::kIo:
    case Status::kNoRoute:
    case Status::kAddressInUse:
    case Status::kShort:
      return NIXL_ERR_BACKEND;
    case Status::kInternal:
      return NIXL_ERR_UNKNOWN;
  }
  return NIXL_ERR_UNKNOWN;
}

}  // namespace towline::nixl
