#if defined(TOWLINE_HAVE_OPENSSL)
#include "secure/session.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "secure/credentials.h"

namespace towline::secure {

// Between OpenSSL and the session's buffers.
struct Bio {
  static Session& session_of(BIO* bio) noexcept {
    return *static_cast<Session*>(OpenSsl::get().BIO_get_data(bio));
  }
  static int write(BIO* bio, const char* data, std::size_t bytes, std::size_t* written) noexcept {
    Session& session = session_of(bio);
    const OpenSsl& openssl = session.openssl_;
    openssl.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
    Session::Buffer& out = session.out_;
    *written = std::min(bytes, Session::kBuffer - out.end);
    if (*written == 0) {
      openssl.BIO_set_flags(bio, BIO_FLAGS_WRITE | BIO_FLAGS_SHOULD_RETRY);
      return 0;
    }
    std::memcpy(out.bytes.get() + out.end, data, *written);
    out.end += *written;
    return 1;
  }
  static int read(BIO* bio, char* data, std::size_t bytes, std::size_t* got) noexcept {
    Session& session = session_of(bio);
    const OpenSsl& openssl = session.openssl_;
    openssl.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
    Session::Buffer& in = session.in_;
    *got = std::min(bytes, session.shaken_ ? in.end - in.begin : session.offered_);
    if (*got == 0) {
      openssl.BIO_set_flags(bio, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY);
      return 0;
    }
    std::memcpy(data, in.bytes.get() + in.begin, *got);
    in.begin += *got;
    if (!session.shaken_) session.offered_ -= *got;
    return 1;
  }
  static long control(BIO*, int what, long, void*) noexcept { return what == BIO_CTRL_FLUSH ? 1 : 0; }

  static const BIO_METHOD* method() {
    static const BIO_METHOD* const made = [] {
      const OpenSsl& openssl = OpenSsl::get();
      BIO_METHOD* const method = openssl.BIO_meth_new(BIO_TYPE_SOURCE_SINK | 0x7f, "towline");
      if (method == nullptr) throw std::bad_alloc();
      openssl.BIO_meth_set_write_ex(method, write);
      openssl.BIO_meth_set_read_ex(method, read);
      openssl.BIO_meth_set_ctrl(method, control);
      return method;
    }();
    return made;
  }
};

namespace {

// What is left of a caller's pieces.
class Pieces {
 public:
  explicit Pieces(std::span<const iovec> pieces) noexcept : left_(pieces) {}
  [[nodiscard]] bool empty() const noexcept { return left_.empty(); }
  // The next bytes, at most so many: where they lie, or gathered where more than one piece is needed.
  std::pair<const void*, std::size_t> take(uint8_t* gathered, std::size_t most) noexcept {
    const std::size_t first = std::min(left_.front().iov_len - offset_, most);
    const uint8_t* const data = here();
    if (first == most || left_.size() == 1) return {data, skip(first)};
    std::size_t bytes = 0;
    while (bytes < most && !empty()) {
      const std::size_t more = std::min(left_.front().iov_len - offset_, most - bytes);
      std::memcpy(gathered + bytes, here(), more);
      bytes += skip(more);
    }
    return {gathered, bytes};
  }
  // Within the first piece; returns `bytes`.
  std::size_t skip(std::size_t bytes) noexcept {
    offset_ += bytes;
    if (offset_ == left_.front().iov_len) {
      left_ = left_.subspan(1);
      offset_ = 0;
    }
    return bytes;
  }

 private:
  [[nodiscard]] const uint8_t* here() const noexcept {
    return static_cast<const uint8_t*>(left_.front().iov_base) + offset_;
  }
  std::span<const iovec> left_;
  std::size_t offset_ = 0;
};

}  // namespace

Session::Session(std::shared_ptr<const Credentials> credentials, Side side)
    : credentials_(std::move(credentials)),
      openssl_(credentials_->openssl()),
      owned_(openssl_.SSL_new(credentials_->context()), openssl_.SSL_free),
      ssl_(owned_.get()) {
  BIO* const bio = ssl_ == nullptr ? nullptr : openssl_.BIO_new(Bio::method());
  if (bio == nullptr) fail(Status::kOutOfMemory, "no memory for a TLS session");
  openssl_.BIO_set_data(bio, this);
  openssl_.BIO_set_init(bio, 1);
  openssl_.SSL_set_bio(ssl_, bio, bio);
  if (openssl_.SSL_set_ex_data(ssl_, 0, this) != 1) fail(Status::kOutOfMemory, "no memory for a TLS session");
  if (side == Side::kCaller)
    openssl_.SSL_set_connect_state(ssl_);
  else
    openssl_.SSL_set_accept_state(ssl_);
}

Session& Session::of(SSL* ssl) noexcept {
  return *static_cast<Session*>(OpenSsl::get().SSL_get_ex_data(ssl, 0));
}

// ---- the socket

StreamResult Session::failed(int error) noexcept {
  error_ = error;
  return {0, StreamResult::Kind::kFailed, error};
}

StreamResult Session::send_out(int fd) noexcept {
  if (write_error_ != 0) return {0, StreamResult::Kind::kFailed, write_error_};
  while (!out_.empty()) {
    const ssize_t sent =
        ::send(fd, out_.bytes.get() + out_.begin, out_.end - out_.begin, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return blocked();
    if (sent < 0) return {0, StreamResult::Kind::kFailed, write_error_ = errno};
    said_something_ = true;
    out_.begin += static_cast<std::size_t>(sent);
  }
  out_.begin = out_.end = 0;
  return {0, StreamResult::Kind::kMoved, 0};
}

// OpenSSL has taken what it could: at most a part of a record is left. Who has not shown keys fills no more than a record.
StreamResult Session::take_in(int fd) noexcept {
  if (in_.begin != 0) {
    std::memmove(in_.bytes.get(), in_.bytes.get() + in_.begin, in_.end - in_.begin);
    in_.end -= in_.begin;
    in_.begin = 0;
  }
  const std::size_t room = (shaken_ ? kBuffer : kRecordRoom) - in_.end;
  const ssize_t got = ::recv(fd, in_.bytes.get() + in_.end, room, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return blocked();
  if (got < 0) return failed(errno);
  if (got == 0) {
    ended_ = true;
    return {0, StreamResult::Kind::kEnded, 0};
  }
  in_.end += static_cast<std::size_t>(got);
  return {static_cast<std::size_t>(got), StreamResult::Kind::kMoved, 0};
}

// ---- TLS

// What OpenSSL says in its own words, and what to look at. An alert is the other side's refusal; that of a certificate comes
// after the handshake is over on the side that showed it. OpenSSL's own failures, for lack of memory above all, have nothing
// to do with keys, here and there.
StreamResult Session::refused() noexcept {
  const unsigned long last = openssl_.ERR_peek_last_error();
  const int reason = ERR_GET_REASON(last);
  const bool alert = reason > SSL_AD_REASON_OFFSET && reason < SSL_AD_REASON_OFFSET + 256;
  const bool about_certificate = reason >= SSL_AD_REASON_OFFSET + SSL_AD_BAD_CERTIFICATE &&
                                 reason <= SSL_AD_REASON_OFFSET + SSL_AD_CERTIFICATE_UNKNOWN;
  const bool lacks_memory = ERR_FATAL_ERROR(last) || reason == SSL_AD_REASON_OFFSET + SSL_AD_INTERNAL_ERROR;
  const bool by_keys = !lacks_memory && (alert || !shaken_);
  try {
    if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED && !refused_names_.empty())
      why_ = fmt::format("TLS: its certificate was refused: {}; secure.peers takes {}", refused_names_,
                         credentials_->peers().text());
    else if (about_certificate && !credentials_->own_names().empty())
      why_ = fmt::format("TLS: {}: the other side refused this side's certificate, of {}{}",
                         openssl_.reason("bad certificate"), credentials_->own_names(),
                         reason == SSL_AD_REASON_OFFSET + SSL_AD_BAD_CERTIFICATE
                             ? ": its secure.peers may name others"
                             : "");
    else if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED)
      why_ = fmt::format("TLS: its certificate was refused: {} (secure.authority_file)",
                         openssl_.X509_verify_cert_error_string(openssl_.SSL_get_verify_result(ssl_)));
    else if (by_keys)
      why_ = fmt::format("TLS: {}: the other side has other keys (secure.*), or none",
                         openssl_.reason("the handshake failed"));
    else
      why_ = fmt::format("TLS: {}", openssl_.reason("the session failed"));
  } catch (const std::exception&) {
    return failed(ENOMEM);
  }
  return failed(by_keys ? EACCES : EPROTO);
}

StreamResult Session::refused(const char* why) noexcept {
  try {
    why_ = why;
  } catch (const std::exception&) {
    return failed(ENOMEM);
  }
  return failed(EACCES);
}

// Under mutex_, from within SSL_do_handshake().
bool Session::take_names(const X509* certificate) noexcept {
  try {
    try {
      const std::vector<PeerName> names = names_of(openssl_, certificate);
      for (const PeerName& name : names) {
        if (!credentials_->peers().fit(name)) continue;
        principal_ = name.text;
        TOWLINE_LOG(kDebug, "TLS: a connection with {}", principal_);
        return true;
      }
      refused_names_ = fmt::format("it has {}", text_of(names));
    } catch (const Error& error) {
      refused_names_ = error.message();
    }
  } catch (const std::exception&) {  // no memory: refused as a certificate that nothing is known of
  }
  return false;
}

// Without memory they are not kept, and the caller is taken to have the first key.
void Session::keep_hello(std::span<const uint8_t> message) noexcept {
  try {
    hello_.assign(message.begin(), message.end());
  } catch (const std::exception&) {
    hello_.clear();
  }
}

void Session::keep_answer(std::span<const uint8_t> message) noexcept {
  try {
    before_hello_ = credentials_->shared()->stand_in(hello_);
    before_hello_.insert(before_hello_.end(), message.begin(), message.end());
  } catch (const std::exception&) {
    before_hello_.clear();
  }
  hello_.clear();
}

// OpenSSL leaves who does not begin as TLS does without an answer. This one tells such a client of ours what it lacks.
void Session::say_that_tls_is_spoken(int fd) noexcept {
  if (said_something_ || !out_.empty()) return;
  constexpr uint8_t kAlert[] = {21, 3, 3, 0, 2, 2, 40};  // fatal, handshake_failure
  std::memcpy(out_.bytes.get(), kAlert, sizeof kAlert);
  out_.end = sizeof kAlert;
  (void)send_out(fd);
}

// While hands are shaken OpenSSL gets whole records, and in the clear each of them is one message, as OpenSSL sends them: it
// makes room for as much as a message's header says, which of a stranger's hello is 128 KiB. What is no TLS it may judge
// itself.
Session::Offer Session::offer_record() noexcept {
  constexpr uint8_t kChangeCipherSpec = 20;
  constexpr uint8_t kHandshake = 22;
  constexpr uint8_t kApplicationData = 23;
  const uint8_t* const at = in_.bytes.get() + in_.begin;
  const std::size_t there = in_.end - in_.begin;
  const bool is_record = there != 0 && at[0] >= kChangeCipherSpec && at[0] <= kApplicationData;
  if (there == 0 || (is_record && there < kRecordHeader)) return Offer::kMoreIsNeeded;
  const std::size_t bytes = is_record ? kRecordHeader + (std::size_t{at[3]} << 8 | at[4]) : there;
  if (!is_record || at[1] != SSL3_VERSION_MAJOR || bytes > kRecordRoom) {
    offered_ = there;
    return Offer::kMade;
  }
  constexpr std::size_t kHeaders = kRecordHeader + kMessageHeader;
  if (at[0] == kHandshake && bytes < kHeaders) return Offer::kRefused;
  if (at[0] == kHandshake && there >= kHeaders) {
    const std::size_t said = std::size_t{at[6]} << 16 | std::size_t{at[7]} << 8 | at[8];
    if (kHeaders + said != bytes) return Offer::kRefused;
  }
  if (there < bytes) return Offer::kMoreIsNeeded;
  offered_ = bytes;
  return Offer::kMade;
}

StreamResult Session::cut_while_shaking(int error) noexcept {
  if (error != 0 && error != ECONNRESET && error != EPIPE) return failed(error);
  return refused(
      "TLS: it closed the connection during the handshake: the other side has other keys (secure.*), or "
      "none");
}

// OpenSSL is through with the handshake. A socket that takes nothing any more still has what the other side said last.
StreamResult Session::send_last_flight(int fd) noexcept {
  if (send_out(fd).blocked()) return blocked();
  flight_sent_ = true;
  return {0, StreamResult::Kind::kMoved, 0};
}

// Many certificates are more than the socket has room for: unsent() then.
StreamResult Session::shake(int fd) noexcept {
  if (flight_sent_) return {0, StreamResult::Kind::kMoved, 0};
  if (shaken_) return send_last_flight(fd);
  for (;;) {
    openssl_.ERR_clear_error();
    const int done = openssl_.SSL_do_handshake(ssl_);
    const int error = done == 1 ? SSL_ERROR_NONE : openssl_.SSL_get_error(ssl_, done);
    const StreamResult sent = send_out(fd);
    if (error == SSL_ERROR_NONE) {
      shaken_ = true;
      hello_ = before_hello_ = {};
      unread_ = !in_.empty();
      return send_last_flight(fd);
    }
    if (error == SSL_ERROR_WANT_WRITE && sent.over()) return cut_while_shaking(sent.error);
    if (error == SSL_ERROR_WANT_WRITE && sent.blocked()) return blocked();
    if (error == SSL_ERROR_WANT_WRITE) continue;
    if (error != SSL_ERROR_WANT_READ) {
      say_that_tls_is_spoken(fd);
      return refused();
    }
    Offer offer = Offer::kMoreIsNeeded;
    while ((offer = offer_record()) == Offer::kMoreIsNeeded) {
      const StreamResult got = take_in(fd);
      if (got.over()) return cut_while_shaking(got.error);
      if (!got.moved()) return got;
    }
    if (offer == Offer::kRefused) {
      say_that_tls_is_spoken(fd);
      return refused("TLS: the other side shakes hands in pieces, or with more than Towline does");
    }
  }
}

StreamResult Session::shake_hands(int fd) noexcept {
  const std::lock_guard lock(mutex_);
  if (error_ != 0) return failed(error_);
  return shake(fd);
}

// There is room for it.
StreamResult Session::write_record(const void* data, std::size_t bytes) noexcept {
  if (++records_ == kRecordsOfKey) {
    records_ = 0;
    (void)openssl_.SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED);
  }
  std::size_t written = 0;
  if (openssl_.SSL_write_ex(ssl_, data, bytes, &written) != 1 || written != bytes) return refused();
  return {bytes, StreamResult::Kind::kMoved, 0};
}

// Pieces that are smaller than a record share one.
StreamResult Session::write(int fd, std::span<const iovec> pieces) noexcept {
  const std::lock_guard lock(mutex_);
  if (error_ != 0) return failed(error_);
  if (const StreamResult shaken = shake(fd); !shaken.moved()) return shaken;
  if (const StreamResult sent = send_out(fd); !sent.moved()) return sent;
  openssl_.ERR_clear_error();
  Pieces rest(pieces);
  std::size_t moved = 0;
  if (std::exchange(held_back_, false)) moved = rest.skip(1);
  while (!rest.empty()) {
    while (!rest.empty() && kBuffer - out_.end >= 2 * kRecordRoom) {
      const auto [data, bytes] = rest.take(gathered_.get(), kRecord);
      if (const StreamResult written = write_record(data, bytes); !written.moved()) return written;
      moved += bytes;
    }
    const StreamResult sent = send_out(fd);
    if (sent.over()) return sent;
    if (sent.moved()) continue;
    held_back_ = true;
    return moved == 1 ? blocked() : StreamResult{moved - 1, StreamResult::Kind::kMoved, 0};
  }
  return {moved, StreamResult::Kind::kMoved, 0};
}

StreamResult Session::read(int fd, std::span<const iovec> pieces) noexcept {
  const std::lock_guard lock(mutex_);
  if (error_ != 0) return failed(error_);
  if (const StreamResult shaken = shake(fd); !shaken.moved()) return shaken;
  // An answer of TLS's own. The byte that was held back goes with the caller's next write only: the other side would have
  // what this one has not counted.
  if (!held_back_) (void)send_out(fd);
  openssl_.ERR_clear_error();  // for all records: it takes 2 % of the time, and what fails ends the session
  std::size_t moved = 0;
  for (const iovec& piece : pieces) {
    for (std::size_t offset = 0; offset < piece.iov_len;) {
      std::size_t got = 0;
      const int done = openssl_.SSL_read_ex(ssl_, static_cast<uint8_t*>(piece.iov_base) + offset,
                                            piece.iov_len - offset, &got);
      if (done == 1) {
        offset += got;
        moved += got;
        continue;
      }
      const int error = openssl_.SSL_get_error(ssl_, done);
      StreamResult taken = {0, StreamResult::Kind::kEnded, 0};
      if (error == SSL_ERROR_WANT_READ)
        taken = ended_ ? taken : take_in(fd);
      else if (error != SSL_ERROR_ZERO_RETURN)
        taken = refused();
      if (taken.moved()) continue;
      unread_ = taken.over() && moved != 0;  // the end is still to be told
      if (moved == 0) return taken;
      return {moved, StreamResult::Kind::kMoved, 0};
    }
  }
  unread_ = openssl_.SSL_pending(ssl_) > 0 || !in_.empty();
  return {moved, StreamResult::Kind::kMoved, 0};
}

// ---- what others ask

bool Session::unread() const noexcept {
  const std::lock_guard lock(mutex_);
  return unread_;
}

bool Session::unsent() const noexcept {
  const std::lock_guard lock(mutex_);
  return !flight_sent_ && !out_.empty() && write_error_ == 0 && error_ == 0;
}

std::string Session::describe() const {
  const std::lock_guard lock(mutex_);
  if (!shaken_) return "TLS 1.3, not yet";
  return fmt::format("TLS 1.3, {}{}{}", openssl_.SSL_CIPHER_get_name(openssl_.SSL_get_current_cipher(ssl_)),
                     principal_.empty() ? "" : ", ", principal_);
}

const char* Session::why() const noexcept {
  const std::lock_guard lock(mutex_);
  return why_.empty() ? nullptr : why_.c_str();
}

}  // namespace towline::secure

#endif  // TOWLINE_HAVE_OPENSSL
