#if defined(TOWLINE_HAVE_OPENSSL)
#include "secure/credentials.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <span>

#include "base/error.h"
#include "secure/session.h"

namespace towline::secure {
namespace {

constexpr long kMostChainBytes = 32 << 10;  // of the other side's certificates
constexpr char kIdentity[] = "towline";
// TLS_AES_128_GCM_SHA256, whose hash the shared key goes with.
constexpr unsigned char kCipher[] = {0x13, 0x01};
constexpr char kCiphers[] = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";

}  // namespace

Credentials::Credentials(const Keys::Files& files)
    : openssl_(OpenSsl::get()), context_(openssl_.SSL_CTX_new(openssl_.TLS_method())), peers_(files.peers) {
  if (context_ == nullptr) fail(Status::kOutOfMemory, "TLS: {}", openssl_.reason("no context"));
  try {
    set_up(files);
  } catch (...) {
    openssl_.SSL_CTX_free(context_);
    throw;
  }
}

Credentials::~Credentials() { openssl_.SSL_CTX_free(context_); }

void Credentials::set_up(const Keys::Files& files) {
  if (openssl_.SSL_CTX_ctrl(context_, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, nullptr) != 1)
    fail(Status::kUnsupported, "TLS: {}", openssl_.reason("this OpenSSL lacks TLS 1.3"));
  openssl_.SSL_CTX_ctrl(context_, SSL_CTRL_SET_MAX_CERT_LIST, kMostChainBytes, nullptr);
  openssl_.SSL_CTX_set_options(context_, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET);
  openssl_.SSL_CTX_set_num_tickets(context_, 0);
  if (openssl_.SSL_CTX_set_ciphersuites(context_, kCiphers) != 1)
    fail(Status::kUnsupported, "TLS: {}", openssl_.reason("this OpenSSL lacks the ciphers"));
  // A server that asks for certificates goes on with sessions of its own context only, and so with a shared key.
  openssl_.SSL_CTX_set_session_id_context(context_, reinterpret_cast<const unsigned char*>(kIdentity),
                                          sizeof kIdentity - 1);
  // Of a certificate only what the authority has signed; with a shared key none.
  openssl_.SSL_CTX_set_verify(context_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  if (!files.key.empty())
    use_key(files);
  else
    use_certificates(files);
}

void Credentials::use_key(const Keys::Files& files) {
  if (!files.certificate.empty() || !files.private_key.empty() || !files.authority.empty())
    fail(Status::kInvalidArgument,
         "secure.key_file and certificates are set: a connection has one or the other");
  if (!peers_.empty())
    fail(Status::kInvalidArgument,
         "secure.peers and secure.key_file are set: names are in certificates, and a shared key has none");
  shared_.emplace(openssl_, files.key);
  openssl_.SSL_CTX_set_psk_use_session_callback(context_, use_session);
  openssl_.SSL_CTX_set_psk_find_session_callback(context_, find_session);
  if (shared_->several()) openssl_.SSL_CTX_set_msg_callback(context_, on_message);
  text_ = fmt::format("TLS 1.3, a shared key ({})", files.key);
}

void Credentials::use_certificates(const Keys::Files& files) {
  const auto need = [](const char* setting, const std::string& file) {
    if (file.empty())
      fail(Status::kInvalidArgument,
           "{} is not set: certificates need secure.certificate_file, secure.private_key_file and "
           "secure.authority_file",
           setting);
    if (std::ifstream in(file); !in) fail_errno(errno, "{} = \"{}\"", setting, file);
  };
  const auto check = [&](int done, const char* setting, const std::string& file) {
    if (done != 1)
      fail(Status::kInvalidArgument, "{} = \"{}\": {}", setting, file, openssl_.reason("it can't be read"));
  };
  need("secure.certificate_file", files.certificate);
  need("secure.private_key_file", files.private_key);
  need("secure.authority_file", files.authority);
  openssl_.ERR_clear_error();
  // Asking for a password would ask whoever sits at the terminal.
  openssl_.SSL_CTX_set_default_passwd_cb(context_, [](char*, int, int, void*) { return 0; });
  check(openssl_.SSL_CTX_use_certificate_chain_file(context_, files.certificate.c_str()),
        "secure.certificate_file", files.certificate);
  check(openssl_.SSL_CTX_use_PrivateKey_file(context_, files.private_key.c_str(), SSL_FILETYPE_PEM),
        "secure.private_key_file", files.private_key);
  check(openssl_.SSL_CTX_check_private_key(context_), "secure.private_key_file", files.private_key);
  check(openssl_.SSL_CTX_load_verify_file(context_, files.authority.c_str()), "secure.authority_file",
        files.authority);
  try {
    own_names_ = text_of(names_of(openssl_, openssl_.SSL_CTX_get0_certificate(context_)));
  } catch (const Error&) {  // the other side may not care
    own_names_ = "names that can't be read";
  }
  text_ = fmt::format("TLS 1.3, a certificate ({})", files.certificate);
  if (peers_.empty()) return;
  openssl_.SSL_CTX_set_cert_verify_callback(context_, verify, nullptr);
  text_ += fmt::format("; peers: {}", peers_.text());
}

// What OpenSSL does without it, and then the names.
int Credentials::verify(X509_STORE_CTX* store, void*) noexcept {
  const OpenSsl& openssl = OpenSsl::get();
  if (openssl.X509_verify_cert(store) != 1) return 0;
  auto* const ssl = static_cast<SSL*>(
      openssl.X509_STORE_CTX_get_ex_data(store, openssl.SSL_get_ex_data_X509_STORE_CTX_idx()));
  if (Session::of(ssl).take_names(openssl.X509_STORE_CTX_get0_cert(store))) return 1;
  openssl.X509_STORE_CTX_set_error(store, X509_V_ERR_HOSTNAME_MISMATCH);
  return 0;
}

// A session to go on with, as TLS 1.3 has it of a shared key; each connection gets one of its own. Null: no memory.
SSL_SESSION* Credentials::make_session(SSL* ssl, const SharedKeys::Hash& key) const noexcept {
  SSL_SESSION* const session = openssl_.SSL_SESSION_new();
  const SSL_CIPHER* const cipher = openssl_.SSL_CIPHER_find(ssl, kCipher);
  if (session == nullptr || cipher == nullptr ||
      openssl_.SSL_SESSION_set1_id_context(session, reinterpret_cast<const unsigned char*>(kIdentity),
                                           sizeof kIdentity - 1) != 1 ||
      openssl_.SSL_SESSION_set1_master_key(session, key.data(), key.size()) != 1 ||
      openssl_.SSL_SESSION_set_cipher(session, cipher) != 1 ||
      openssl_.SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1) {
    openssl_.SSL_SESSION_free(session);
    return nullptr;
  }
  return session;
}

int Credentials::use_session(SSL* ssl, const EVP_MD*, const unsigned char** identity, size_t* bytes,
                             SSL_SESSION** session) noexcept {
  const Credentials& credentials = Session::of(ssl).credentials();
  *session = credentials.make_session(ssl, credentials.shared_->first());
  *identity = reinterpret_cast<const unsigned char*>(kIdentity);
  *bytes = sizeof kIdentity - 1;
  return *session != nullptr ? 1 : 0;
}

int Credentials::find_session(SSL* ssl, const unsigned char* identity, size_t bytes,
                              SSL_SESSION** session) noexcept {
  *session = nullptr;
  if (bytes != sizeof kIdentity - 1 || std::memcmp(identity, kIdentity, bytes) != 0) return 1;
  Session& caller = Session::of(ssl);
  const Credentials& credentials = caller.credentials();
  *session =
      credentials.make_session(ssl, credentials.shared_->of_caller(caller.before_hello(), caller.hello()));
  return 1;
}

// Where there are several keys: what of_caller() needs.
void Credentials::on_message(int sent, int, int type, const void* data, size_t bytes, SSL* ssl,
                             void*) noexcept {
  if (type != SSL3_RT_HANDSHAKE || bytes == 0) return;
  const std::span<const uint8_t> message(static_cast<const uint8_t*>(data), bytes);
  Session& session = Session::of(ssl);
  if (sent == 0 && message[0] == SSL3_MT_CLIENT_HELLO) session.keep_hello(message);
  // A first answer may ask for another hello.
  if (sent != 0 && message[0] == SSL3_MT_SERVER_HELLO) session.keep_answer(message);
}

}  // namespace towline::secure

#endif  // TOWLINE_HAVE_OPENSSL
