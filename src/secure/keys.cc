#include "secure/keys.h"

#include "base/error.h"
#include "base/os/socket_address.h"
#if defined(TOWLINE_HAVE_OPENSSL)
#include "secure/credentials.h"
#include "secure/session.h"
#endif

namespace towline::secure {

void Keys::secure(Stream& stream, Side side) const {
  if (SocketAddress::local_of(stream.fd()).is_unix()) return;
  stream.tune({});  // a handshake is several small writes: waiting to fill a packet would cost 40 ms
  stream.secure(begin(side));
}

std::shared_ptr<const Keys> Keys::configured(const std::function<std::string(const char* key)>& setting) {
  const std::string peers = setting(kSettings[4]);
  const Files files = {setting(kSettings[0]), setting(kSettings[1]), setting(kSettings[2]),
                       setting(kSettings[3]), split_list(peers)};
  if (files.peers.empty() && !trimmed(peers).empty())
    fail(Status::kInvalidArgument, "secure.peers = \"{}\" names nobody", peers);
  return files.none() ? nullptr : read(files);
}

#if defined(TOWLINE_HAVE_OPENSSL)
namespace {

class OpenSslKeys final : public Keys {
 public:
  explicit OpenSslKeys(const Files& files) : credentials_(std::make_shared<const Credentials>(files)) {}

  const std::string& describe() const noexcept override { return credentials_->describe(); }

 private:
  std::unique_ptr<StreamSession> begin(Side side) const override {
    return std::make_unique<Session>(credentials_, side);
  }

  const std::shared_ptr<const Credentials> credentials_;
};

}  // namespace

std::shared_ptr<const Keys> Keys::read(const Files& files) { return std::make_shared<OpenSslKeys>(files); }
#else
std::shared_ptr<const Keys> Keys::read(const Files&) {
  fail(Status::kUnsupported, "secure.*: this Towline was built without OpenSSL's headers, so it has no TLS");
}
#endif

}  // namespace towline::secure
