#include "storage/object/credentials.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/os/unique_fd.h"
#include "base/short_text.h"
#include "http/ask.h"
#include "storage/object/google_account.h"

namespace towline::object {

namespace {

constexpr std::time_t kRenewBefore_s = 300;
constexpr std::time_t kRenewAtLeastEvery_s = 3600;
constexpr std::time_t kTryAgain_s = 2;
constexpr std::time_t kTryAgainMost_s = 60;
constexpr uint64_t kAnswerTimeoutNs = 5 * kSecondNs;
constexpr size_t kMostKeysBytes = 1 << 18;

Keys keys_of(const Profile& profile) {
  return {profile_value(profile, "aws_access_key_id"), profile_value(profile, "aws_secret_access_key"),
          profile_value(profile, "aws_session_token")};
}

// By the thread of the credentials, which may wait.
class Asking {
 public:
  // A request under way is given up when `stop` turns true.
  Asking(const Settings& settings, const std::atomic<bool>& stop) : stop_(stop) {
    options_.connect_timeout_ns = kAnswerTimeoutNs / 2;
    options_.ca_file = settings.ca_file;
    options_.ca_file_alone = false;
  }
  [[nodiscard]] http::WholeAnswer get(const std::string& url, std::vector<std::string> headers) const {
    return ask({"GET", url, std::move(headers)});
  }
  [[nodiscard]] http::WholeAnswer put(const std::string& url, std::vector<std::string> headers) const {
    http::TextBody nothing("");
    return ask({"PUT", url, std::move(headers), &nothing});
  }
  [[nodiscard]] http::WholeAnswer post(const std::string& url, const std::string& form) const {
    http::TextBody body(form);
    return ask({"POST", url, {"Content-Type: application/x-www-form-urlencoded"}, &body});
  }

 private:
  [[nodiscard]] http::WholeAnswer ask(http::Request request) const {
    request.timeout_ns = kAnswerTimeoutNs;
    return http::ask(options_, std::move(request), kMostKeysBytes, stop_);
  }

  http::Options options_;
  const std::atomic<bool>& stop_;
};

bool complete(const Keys& keys) noexcept { return !keys.access_key.empty() && !keys.secret_key.empty(); }

[[noreturn]] void refuse(std::string text) {
  throw plugin::Failure(Status::kPermissionDenied, std::move(text));
}

}  // namespace

Credentials::Credentials(const Settings& settings, const Environment& environment, const plugin::Host& host)
    : settings_(settings), host_(host) {
  if (settings.kind == ServerKind::kAzure)
    choose_for_azure();
  else if (settings.kind == ServerKind::kGcs)
    choose_for_google();
  else
    choose(environment);
}

Credentials::~Credentials() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Credentials::fixed(Keys keys, const char* source) {
  keys_ = std::make_shared<const Keys>(std::move(keys));
  source_name_ = source;
  ready_ = true;
}

// In Amazon's order; none of this sends a request.
void Credentials::choose(const Environment& environment) {
  const CredentialSettings& given = settings_.credentials;
  const auto may = [&](Source source) { return given.source == Source::kAuto || given.source == source; };
  const auto missing = [&](const char* what) { looked_ += std::string("\n  ") + what; };
  if (given.source == Source::kNone) {
    source_name_ = "none";
    ready_ = true;
    return;
  }
  if (may(Source::kSettings)) {
    if (complete(given.keys)) return fixed(given.keys, "settings");
    looked_ += fmt::format("\n  settings: {} and {} are not both set", settings_.name("access_key"),
                           settings_.name("secret_key"));
  }
  if (may(Source::kEnvironment)) {
    Keys keys = {environment("AWS_ACCESS_KEY_ID").value_or(""),
                 environment("AWS_SECRET_ACCESS_KEY").value_or(""),
                 environment("AWS_SESSION_TOKEN").value_or("")};
    if (complete(keys)) return fixed(std::move(keys), "environment");
    missing("environment: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not both set");
  }
  if (may(Source::kWebIdentity)) {
    if (!given.role_arn.empty() && !given.token_file.empty()) {
      source_ = Source::kWebIdentity;
      source_name_ = "web identity";
      return;
    }
    missing("web identity: no role and token file (AWS_ROLE_ARN, AWS_WEB_IDENTITY_TOKEN_FILE)");
  }
  if (may(Source::kProfile)) {
    if (Keys keys = keys_of(given.profile); complete(keys)) {
      source_ = Source::kProfile;
      return fixed(std::move(keys), "profile");
    }
    looked_ += fmt::format("\n  profile: no keys for '{}' in ~/.aws/credentials or ~/.aws/config",
                           given.profile_name);
  }
  if (given.source == Source::kInstance || (may(Source::kInstance) && !given.metadata_off)) {
    source_ = Source::kInstance;
    source_name_ = "instance metadata";
    return;
  }
  missing("instance metadata: turned off (AWS_EC2_METADATA_DISABLED)");
  failure_ = "there are no credentials:" + looked_;
}

// Looks at the settings only; sends no request.
void Credentials::choose_for_azure() {
  const CredentialSettings& given = settings_.credentials;
  switch (given.source) {
    case Source::kSettings:
      return fixed(given.keys, "account key");
    case Source::kInstance:
      source_ = Source::kInstance;
      source_name_ = "managed identity";
      return;
    default:
      source_name_ = settings_.sas.empty() ? "none" : "shared access signature";
      ready_ = true;
  }
}

// The same.
void Credentials::choose_for_google() {
  const CredentialSettings& given = settings_.credentials;
  if (!given.missing.empty()) {
    failure_ = "there are no credentials: set " + given.missing;
    return;
  }
  switch (given.source) {
    case Source::kSettings:
      return fixed(given.keys, given.keys.secret_key.empty() ? "token" : "settings");
    case Source::kTokenFile:
    case Source::kAccount:
    case Source::kInstance:
      source_ = given.source;
      source_name_ = given.source == Source::kTokenFile ? "token file"
                     : given.source == Source::kAccount ? "account file"
                                                        : "instance metadata";
      return;
    default:
      source_name_ = "none";
      ready_ = true;
  }
}

void Credentials::wait_until_ready(uint64_t deadline_ns) {
  std::unique_lock lock(mutex_);
  if (ready_) return;
  if (source_ == Source::kNone) refuse(failure_);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  const uint64_t failures = failures_;
  if (settings_.credentials.source == Source::kAuto && source_ == Source::kInstance && !told_) {
    told_ = true;
    host_.log(
        1, fmt::format("no keys for objects have been set, so this machine's cloud is asked for them at {}: "
                       "object.credentials = \"instance\" says that this is meant, \"none\" sends requests "
                       "unsigned, AWS_EC2_METADATA_DISABLED=true asks nobody",
                       settings_.credentials.metadata_url));
  }
  asked_ = true;
  changed_.notify_all();
  while (!ready_ && failures_ == failures && monotonic_now_ns() < deadline_ns)
    changed_.wait_for(lock, std::chrono::milliseconds(100));
  if (ready_) return;
  refuse(fmt::format("there are no credentials:{}\n  {}: {}", looked_, source_name_,
                     failure_.empty() ? "no answer yet" : failure_));
}

std::shared_ptr<const Keys> Credentials::now() const {
  std::lock_guard lock(mutex_);
  return keys_;
}

bool Credentials::renew(const std::shared_ptr<const Keys>& expired) {
  std::unique_lock lock(mutex_);
  if (keys_ != expired) return true;
  if (source_ == Source::kNone) return false;
  if (source_ == Source::kProfile) {
    lock.unlock();
    return read_profile_anew(expired);
  }
  asked_ = true;
  changed_.notify_all();
  return true;
}

// Something else, a login say, puts the keys of a new session into the file.
bool Credentials::read_profile_anew(const std::shared_ptr<const Keys>& expired) {
  const CredentialSettings& given = settings_.credentials;
  auto keys =
      std::make_shared<const Keys>(keys_of(read_profile_files(given.profile_files, given.profile_name)));
  std::lock_guard lock(mutex_);
  if (keys_ != expired) return true;
  if (!complete(*keys) || *keys == *expired) return false;
  keys_ = std::move(keys);
  return true;
}

std::string Credentials::describe() const {
  std::lock_guard lock(mutex_);
  return failure_.empty() ? source_name_ : source_name_ + ": " + failure_;
}

// ---- sources that are asked

TimedKeys Credentials::fetch() const {
  if (settings_.kind == ServerKind::kAzure) return ask_identity();
  if (settings_.kind == ServerKind::kGcs) return fetch_for_google();
  return source_ == Source::kWebIdentity ? assume_role() : ask_instance();
}

TimedKeys Credentials::assume_role() const {
  const CredentialSettings& given = settings_.credentials;
  const auto token = read_text_file(given.token_file, 1 << 16);
  if (!token) refuse(fmt::format("the token file {} can't be read", given.token_file));
  const Asking asking(settings_, stop_);
  const http::WholeAnswer answer = asking.post(
      given.sts_url + "/",
      fmt::format("Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn={}"
                  "&RoleSessionName={}&WebIdentityToken={}",
                  percent_encode(given.role_arn, false), percent_encode(given.session_name, false),
                  percent_encode(token->substr(0, token->find_last_not_of(" \t\r\n") + 1), false)));
  if (answer.status != 200) {
    const Refusal refusal = decode_refusal(answer.status, {}, answer.body);
    refuse(fmt::format("{} answers {} {} {}{}", given.sts_url, answer.status, refusal.code, refusal.message,
                       answer.error));
  }
  const auto keys = decode_assumed_role(answer.body);
  if (!keys) refuse(fmt::format("{} answers without credentials", given.sts_url));
  return *keys;
}

// IMDSv2: a token first, then with it the role's name, then its keys.
TimedKeys Credentials::ask_instance() const {
  const std::string& url = settings_.credentials.metadata_url;
  const Asking asking(settings_, stop_);
  const http::WholeAnswer token =
      asking.put(url + "/latest/api/token", {"x-aws-ec2-metadata-token-ttl-seconds: 21600"});
  if (token.status != 200) refuse(fmt::format("{} gives no token: {} {}", url, token.status, token.error));
  const std::vector<std::string> headers = {"x-aws-ec2-metadata-token: " + token.body};
  const std::string below = url + "/latest/meta-data/iam/security-credentials/";
  const http::WholeAnswer role = asking.get(below, headers);
  const std::string name = role.body.substr(0, role.body.find_first_of("\r\n"));
  if (role.status != 200 || name.empty())
    refuse(fmt::format("{} names no role: {} {}", url, role.status, role.error));
  const http::WholeAnswer answer = asking.get(below + percent_encode(name, false), headers);
  const auto keys = decode_instance_keys(answer.body);
  if (answer.status != 200 || !keys)
    refuse(
        fmt::format("{} has no keys for the role {}: {} {}", url, shown(name), answer.status, answer.error));
  return *keys;
}

TimedKeys Credentials::ask_identity() const {
  const CredentialSettings& given = settings_.credentials;
  std::string url =
      given.metadata_url +
      "/metadata/identity/oauth2/token?api-version=2018-02-01&resource=https%3A%2F%2Fstorage.azure.com%2F";
  if (!given.profile_name.empty()) url += "&client_id=" + percent_encode(given.profile_name, false);
  const http::WholeAnswer answer = Asking(settings_, stop_).get(url, {"Metadata: true"});
  const auto keys = decode_bearer_token(answer.body);
  if (answer.status != 200 || !keys)
    refuse(
        fmt::format("{} gives no token for storage: {} {}", given.metadata_url, answer.status, answer.error));
  return *keys;
}

TimedKeys Credentials::fetch_for_google() const {
  const CredentialSettings& given = settings_.credentials;
  if (source_ == Source::kAccount) return ask_for_account();
  if (source_ == Source::kTokenFile) {
    const auto token = read_text_file(given.token_file, 1 << 16);
    if (!token) refuse(fmt::format("the token file {} can't be read", given.token_file));
    TimedKeys keys;
    keys.keys.session_token = token->substr(0, token->find_last_not_of(" \t\r\n") + 1);
    if (keys.keys.session_token.empty()) refuse(fmt::format("the token file {} is empty", given.token_file));
    return keys;
  }
  const http::WholeAnswer answer =
      Asking(settings_, stop_)
          .get(given.metadata_url + "/computeMetadata/v1/instance/service-accounts/default/token",
               {"Metadata-Flavor: Google"});
  const auto keys = decode_bearer_token(answer.body);
  if (answer.status != 200 || !keys)
    refuse(fmt::format("{} gives no token: {} {}", given.metadata_url, answer.status, answer.error));
  return *keys;
}

TimedKeys Credentials::ask_for_account() const {
  const std::string& file = settings_.credentials.account_file;
  const auto contents = read_text_file(file, kMostKeysBytes);
  if (!contents) refuse(fmt::format("the account file {} can't be read", file));
  std::string why;
  const auto grant = make_google_grant(*contents, std::time(nullptr), why);
  if (!grant) refuse(fmt::format("the account file {}: {}", file, why));
  const http::WholeAnswer answer = Asking(settings_, stop_).post(grant->url, grant->form);
  const auto keys = decode_bearer_token(answer.body);
  if (answer.status != 200 || !keys)
    refuse(fmt::format("{} gives no token: {} {} {}", grant->url, answer.status,
                       shown(google_reason(answer.body)), answer.error));
  return *keys;
}

namespace {

std::string why_in_words(const std::exception& error) noexcept {
  try {
    return error.what();
  } catch (const std::bad_alloc&) {
    return "out of memory";  // so short a text needs none
  }
}

}  // namespace

void Credentials::run() noexcept {
  std::time_t pause_s = kTryAgain_s;
  std::unique_lock lock(mutex_);
  while (!stop_) {
    asked_ = false;
    lock.unlock();
    std::shared_ptr<const Keys> keys;
    std::time_t expires = 0;
    std::string failure;
    try {
      TimedKeys fetched = fetch();
      keys = std::make_shared<const Keys>(std::move(fetched.keys));
      expires = fetched.expires;
    } catch (const std::exception& error) {
      failure = why_in_words(error);
    }
    lock.lock();
    failure_.swap(failure);
    std::time_t wait_s = 0;
    if (keys != nullptr) {
      keys_ = std::move(keys);
      ready_ = true;
      asked_ = false;  // these also serve requests made meanwhile
      pause_s = kTryAgain_s;
      const std::time_t left_s = expires - std::time(nullptr);
      wait_s = expires == 0
                   ? kRenewAtLeastEvery_s
                   : std::clamp<std::time_t>(left_s - kRenewBefore_s, kTryAgain_s, kRenewAtLeastEvery_s);
    } else {
      ++failures_;
      if (!stop_) host_.log(1, ShortText("credentials from {}: {}", source_name_, failure_));
      wait_s = pause_s;
      pause_s = std::min(pause_s * 2, kTryAgainMost_s);
    }
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::seconds(wait_s), [&] { return stop_ || asked_; });
  }
}

}  // namespace towline::object
