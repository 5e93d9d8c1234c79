// The functions of OpenSSL that sessions use, from libssl.so.3 and libcrypto.so.3 at run time: a process that sets no keys
// needs neither.
#pragma once

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include "base/os/dynamic_library.h"

namespace towline::secure {

// clang-format off
#define TOWLINE_SSL_FUNCTIONS(X)                                                                    \
  X(TLS_method) X(SSL_CTX_new) X(SSL_CTX_free) X(SSL_CTX_ctrl) X(SSL_CTX_set_options)               \
  X(SSL_CTX_set_num_tickets) X(SSL_CTX_set_ciphersuites) X(SSL_CTX_set_verify)                      \
  X(SSL_CTX_set_session_id_context) X(SSL_CTX_set_default_passwd_cb)                                \
  X(SSL_CTX_use_certificate_chain_file) X(SSL_CTX_use_PrivateKey_file) X(SSL_CTX_check_private_key) \
  X(SSL_CTX_load_verify_file) X(SSL_CTX_set_psk_use_session_callback)                               \
  X(SSL_CTX_set_psk_find_session_callback) X(SSL_new) X(SSL_free) X(SSL_set_bio)                    \
  X(SSL_set_connect_state) X(SSL_set_accept_state) X(SSL_do_handshake) X(SSL_read_ex)               \
  X(SSL_write_ex) X(SSL_pending) X(SSL_get_error) X(SSL_key_update) X(SSL_get_verify_result)        \
  X(SSL_get_current_cipher) X(SSL_CIPHER_get_name) X(SSL_CIPHER_find) X(SSL_set_ex_data)            \
  X(SSL_get_ex_data) X(SSL_SESSION_new) X(SSL_SESSION_free) X(SSL_SESSION_set1_id_context)          \
  X(SSL_SESSION_set1_master_key) X(SSL_SESSION_set_cipher) X(SSL_SESSION_set_protocol_version)      \
  X(SSL_CTX_get0_certificate) X(SSL_CTX_set_cert_verify_callback)                                   \
  X(SSL_get_ex_data_X509_STORE_CTX_idx) X(SSL_CTX_set_msg_callback)

#define TOWLINE_CRYPTO_FUNCTIONS(X)                                                                 \
  X(BIO_meth_new) X(BIO_meth_set_write_ex) X(BIO_meth_set_read_ex) X(BIO_meth_set_ctrl) X(BIO_new)  \
  X(BIO_set_data) X(BIO_get_data) X(BIO_set_init) X(BIO_set_flags) X(BIO_clear_flags)               \
  X(ERR_peek_last_error) X(ERR_clear_error) X(ERR_reason_error_string) X(EVP_Digest) X(EVP_sha256)  \
  X(X509_verify_cert_error_string) X(OPENSSL_init_crypto) X(X509_verify_cert)                       \
  X(X509_STORE_CTX_get_ex_data) X(X509_STORE_CTX_get0_cert) X(X509_STORE_CTX_set_error)             \
  X(X509_get_ext_d2i) X(GENERAL_NAMES_free) X(GENERAL_NAME_get0_value) X(OPENSSL_sk_num)            \
  X(OPENSSL_sk_value) X(ASN1_STRING_get0_data) X(ASN1_STRING_length) X(HMAC) X(CRYPTO_memcmp)
// clang-format on

struct OpenSsl {
  // Loads it once and for the process's life. Throws Error(kNotFound or kUnsupported), naming the file.
  static const OpenSsl& get();

#define TOWLINE_DECLARE(name) decltype(&::name) name = nullptr;
  TOWLINE_SSL_FUNCTIONS(TOWLINE_DECLARE)
  TOWLINE_CRYPTO_FUNCTIONS(TOWLINE_DECLARE)
#undef TOWLINE_DECLARE

  // The reason of the thread's last error, or `fallback`.
  const char* reason(const char* fallback) const noexcept;

 private:
  OpenSsl();
  DynamicLibrary crypto_;
  DynamicLibrary ssl_;
};

}  // namespace towline::secure
