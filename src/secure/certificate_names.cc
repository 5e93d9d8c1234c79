#if defined(TOWLINE_HAVE_OPENSSL)
#include <openssl/x509v3.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "secure/credentials.h"

namespace towline::secure {
namespace {

constexpr int kMostNames = 256;
constexpr std::size_t kNamesInTexts = 8;
constexpr std::size_t kMostNameInTexts = 256;

}  // namespace

std::vector<PeerName> names_of(const OpenSsl& openssl, const X509* certificate) {
  constexpr int kNone = -1;
  int found = 0;
  const std::unique_ptr<GENERAL_NAMES, decltype(openssl.GENERAL_NAMES_free)> all(
      static_cast<GENERAL_NAMES*>(
          openssl.X509_get_ext_d2i(certificate, NID_subject_alt_name, &found, nullptr)),
      openssl.GENERAL_NAMES_free);
  std::vector<PeerName> names;
  if (all == nullptr && found == kNone) return names;
  const auto* const stack = reinterpret_cast<const OPENSSL_STACK*>(all.get());
  const int count = all == nullptr ? 0 : openssl.OPENSSL_sk_num(stack);
  if (all == nullptr || count > kMostNames)
    fail(Status::kPermissionDenied, "its names can't be read, or are more than {}", kMostNames);
  for (int i = 0; i < count; ++i) {
    int type = 0;
    const void* const value = openssl.GENERAL_NAME_get0_value(
        static_cast<const GENERAL_NAME*>(openssl.OPENSSL_sk_value(stack, i)), &type);
    if (type != GEN_DNS && type != GEN_URI) continue;
    const auto* const text = static_cast<const ASN1_STRING*>(value);
    const auto* const bytes = reinterpret_cast<const char*>(openssl.ASN1_STRING_get0_data(text));
    PeerName name = {type == GEN_DNS ? PeerName::Kind::kDns : PeerName::Kind::kUri,
                     std::string(bytes, static_cast<std::size_t>(openssl.ASN1_STRING_length(text)))};
    if (!may_be_name(name.text))
      fail(Status::kPermissionDenied,
           "one of its names is empty, has more than {} bytes, or some that names don't have",
           PeerPatterns::kMostBytes);
    names.push_back(std::move(name));
  }
  return names;
}

std::string text_of(const std::vector<PeerName>& names) {
  if (names.empty()) return "no DNS or URI name";
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kNamesInTexts); ++i)
    text += fmt::format(
        "{}{}:{}{}", i == 0 ? "" : ", ", names[i].kind == PeerName::Kind::kDns ? "DNS" : "URI",
        names[i].text.substr(0, kMostNameInTexts), names[i].text.size() > kMostNameInTexts ? "..." : "");
  if (names.size() > kNamesInTexts) text += fmt::format(" and {} more", names.size() - kNamesInTexts);
  return text;
}

}  // namespace towline::secure

#endif  // TOWLINE_HAVE_OPENSSL
