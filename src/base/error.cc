#include "base/error.h"

#include <cerrno>
#include <cstring>

namespace towline {

std::string errno_text(int error) {
  const char* text = strerrordesc_np(error);
  const char* name = strerrorname_np(error);
  const char* remedy = error == EMFILE   ? "; ulimit -n allows no more to this process"
                       : error == ENFILE ? "; the sysctl fs.file-max allows no more to this machine"
                                         : "";
  return fmt::format("{} ({}, {}{})", text != nullptr ? text : "unknown error", name != nullptr ? name : "?",
                     error, remedy);
}

Status status_from_errno(int error) noexcept {
  switch (error) {
    case EAGAIN:
    case ENOBUFS:
    case EINTR:
      return Status::kAgain;
    case EINPROGRESS:
    case EALREADY:
      return Status::kBusy;
    case EINVAL:
    case EBADF:
    case EFAULT:
    case ENAMETOOLONG:
    case ENOTDIR:
    case EISDIR:
    case ENOTSOCK:
    case EDESTADDRREQ:
      return Status::kInvalidArgument;
    case ERANGE:
    case EOVERFLOW:
    case EFBIG:
      return Status::kOutOfRange;
    case ENOENT:
    case ESRCH:
    case ENODEV:
    case ENXIO:
      return Status::kNotFound;
    case EEXIST:
    case EISCONN:
      return Status::kAlreadyExists;
    case EACCES:
    case EPERM:
    case EROFS:
      return Status::kPermissionDenied;
    case EMSGSIZE:
      return Status::kMismatch;
    case EMFILE:
    case ENFILE:
    case EUSERS:
    case E2BIG:
    case ELOOP:
      return Status::kLimitExceeded;
    case ENOMEM:
      return Status::kOutOfMemory;
    case ENOSPC:
    case EDQUOT:
      return Status::kNoSpace;
    case ENOSYS:
    case EOPNOTSUPP:
    case EPROTONOSUPPORT:
    case EAFNOSUPPORT:
    case ENOPROTOOPT:
    case ENOTTY:
      return Status::kUnsupported;
    case EBUSY:
    case ETXTBSY:
      return Status::kBusy;
    case ECANCELED:
      return Status::kCancelled;
    case ETIMEDOUT:
    case ETIME:
      return Status::kTimedOut;
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case ENETRESET:
    case EOWNERDEAD:
      return Status::kPeerLost;
    case ENOTCONN:
    case ESHUTDOWN:
      return Status::kClosed;
    case EPROTO:
    case EBADMSG:
      return Status::kProtocol;
    case EIO:
    case EREMOTEIO:
      return Status::kIo;
    case ECONNREFUSED:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
      return Status::kUnreachable;
    case EADDRINUSE:
      return Status::kAddressInUse;
    case EADDRNOTAVAIL:
      return Status::kInvalidArgument;
    case ESTALE:
      return Status::kStale;
    default:
      return Status::kInternal;
  }
}

}  // namespace towline
