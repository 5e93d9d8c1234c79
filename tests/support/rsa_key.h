// A key as accounts have one, with the text of its file.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>

#include <string>

namespace towline::support {

class RsaKey {
 public:
  RsaKey() : key_(EVP_RSA_gen(2048)) {}
  ~RsaKey() { EVP_PKEY_free(key_); }
  RsaKey(const RsaKey&) = delete;
  RsaKey& operator=(const RsaKey&) = delete;

  [[nodiscard]] EVP_PKEY* native() const noexcept { return key_; }
  [[nodiscard]] std::string pem() const {
    BIO* const text = BIO_new(BIO_s_mem());
    PEM_write_bio_PrivateKey(text, key_, nullptr, nullptr, 0, nullptr, nullptr);
    char* bytes = nullptr;
    const long size = BIO_get_mem_data(text, &bytes);
    std::string result(bytes, static_cast<size_t>(size));
    BIO_free(text);
    return result;
  }

 private:
  EVP_PKEY* const key_;
};

}  // namespace towline::support
