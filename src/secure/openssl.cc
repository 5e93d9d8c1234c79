#if defined(TOWLINE_HAVE_OPENSSL)
#include "secure/openssl.h"

namespace towline::secure {

OpenSsl::OpenSsl() : crypto_("libcrypto.so.3"), ssl_("libssl.so.3") {
  crypto_.keep_loaded();
  ssl_.keep_loaded();
#define TOWLINE_LOAD(name) name = ssl_.symbol<decltype(name)>(#name);
  TOWLINE_SSL_FUNCTIONS(TOWLINE_LOAD)
#undef TOWLINE_LOAD
#define TOWLINE_LOAD(name) name = crypto_.symbol<decltype(name)>(#name);
  TOWLINE_CRYPTO_FUNCTIONS(TOWLINE_LOAD)
#undef TOWLINE_LOAD
  // Connections may live while the process exits, so nothing of OpenSSL's is taken down then. That is settled by who uses it
  // first: an application that has done so before keeps OpenSSL's exit handler.
  OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
}

const OpenSsl& OpenSsl::get() {
  static const OpenSsl* const loaded = new OpenSsl();
  return *loaded;
}

const char* OpenSsl::reason(const char* fallback) const noexcept {
  const char* const text = ERR_reason_error_string(ERR_peek_last_error());
  return text != nullptr ? text : fallback;
}

}  // namespace towline::secure

#endif  // TOWLINE_HAVE_OPENSSL
