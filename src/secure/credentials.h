// What one reading of the keys' files gave, as OpenSSL takes it. It never changes; sessions keep what they began with.
#pragma once

#include <openssl/ssl.h>

#include <optional>
#include <string>
#include <vector>

#include "secure/keys.h"
#include "secure/openssl.h"
#include "secure/peer_patterns.h"
#include "secure/shared_keys.h"

namespace towline::secure {

class Credentials {
 public:
  // Throws Error as Keys::read() does.
  explicit Credentials(const Keys::Files& files);
  Credentials(const Credentials&) = delete;
  Credentials& operator=(const Credentials&) = delete;
  ~Credentials();

  [[nodiscard]] const OpenSsl& openssl() const noexcept { return openssl_; }
  [[nodiscard]] SSL_CTX* context() const noexcept { return context_; }
  [[nodiscard]] const std::optional<SharedKeys>& shared() const noexcept { return shared_; }
  [[nodiscard]] const PeerPatterns& peers() const noexcept { return peers_; }
  // The names in the certificate that others are shown: "DNS:a.example.com". Empty: with a shared key.
  [[nodiscard]] const std::string& own_names() const noexcept { return own_names_; }
  [[nodiscard]] const std::string& describe() const noexcept { return text_; }

 private:
  void set_up(const Keys::Files& files);
  void use_key(const Keys::Files& files);
  void use_certificates(const Keys::Files& files);
  static int verify(X509_STORE_CTX* store, void*) noexcept;
  SSL_SESSION* make_session(SSL* ssl, const SharedKeys::Hash& key) const noexcept;
  static int use_session(SSL* ssl, const EVP_MD*, const unsigned char** identity, size_t* bytes,
                         SSL_SESSION** session) noexcept;
  static int find_session(SSL* ssl, const unsigned char* identity, size_t bytes,
                          SSL_SESSION** session) noexcept;
  static void on_message(int sent, int version, int type, const void* data, size_t bytes, SSL* ssl,
                         void*) noexcept;

  const OpenSsl& openssl_;
  SSL_CTX* const context_;
  const PeerPatterns peers_;
  std::optional<SharedKeys> shared_;
  std::string own_names_;
  std::string text_;
};

// The DNS and URI names of a certificate. Throws Error(kPermissionDenied) where they are more, longer or stranger than names
// are.
std::vector<PeerName> names_of(const OpenSsl& openssl, const X509* certificate);
// "DNS:a.example.com, URI:spiffe://example.com/a"; the first few of many.
std::string text_of(const std::vector<PeerName>& names);

}  // namespace towline::secure
