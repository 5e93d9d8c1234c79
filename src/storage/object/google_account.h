// Google's account files, and the requests by which they become tokens (RFC 7523, RFC 6749). Pure functions.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>

namespace towline::object {

struct GoogleGrant {
  std::string url;
  std::string form;
};

// The request for a token that the account file allows: of a service account, signed with its key for an hour from
// `now` on, or of a user who logged in. Empty: `why` says what is wrong with the file.
std::optional<GoogleGrant> make_google_grant(std::string_view file, std::time_t now, std::string& why);

// "invalid_grant: Invalid JWT Signature." of an answer that refuses; empty: it says nothing.
std::string google_reason(std::string_view body);

}  // namespace towline::object
