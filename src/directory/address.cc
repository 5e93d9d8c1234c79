// Addresses of directories, and the open directories of an agent.
#include <algorithm>

#include "base/error.h"
#include "directory/directory.h"

namespace towline {
namespace {

int hex_digit(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string decode_percent(std::string_view text, std::string_view address) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      result += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
    if (high < 0 || low < 0 || high + low == 0) {
      fail(Status::kInvalidArgument,
           "directory address '{}': a % is followed by two hexadecimal digits, not 00", address);
    }
    result += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return result;
}

DirectoryAddress parse_parts(std::string_view text, bool of_agent) {
  const std::size_t colon = text.find("://");
  if (colon == std::string_view::npos) {
    fail(Status::kInvalidArgument, "'{}' is no directory's address, such as etcd://host:port/namespace",
         text);
  }
  DirectoryAddress address;
  const std::string_view scheme = text.substr(0, colon);
  const std::size_t plus = scheme.find('+');
  address.scheme = scheme.substr(0, plus);
  if (plus != std::string_view::npos) address.variant = scheme.substr(plus + 1);
  const std::string_view rest = text.substr(colon + 3);
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  address.authority = rest.substr(0, slash);
  std::string_view path = rest.substr(slash);
  if (of_agent) {
    const std::size_t last = path.rfind('/');
    if (last != std::string_view::npos) address.agent = decode_percent(path.substr(last + 1), text);
    if (address.agent.empty()) {
      fail(Status::kInvalidArgument, "'{}' names no agent: {}://{}/name or {}://{}/namespace/name", text,
           scheme, address.authority, scheme, address.authority);
    }
    path = path.substr(0, last);
  }
  while (path.ends_with('/')) path.remove_suffix(1);
  address.path = decode_percent(path, text);
  return address;
}

}  // namespace

DirectoryAddress DirectoryAddress::parse(std::string_view text) { return parse_parts(text, false); }
DirectoryAddress DirectoryAddress::of_agent(std::string_view text) { return parse_parts(text, true); }

std::string DirectoryAddress::identity() const {
  return fmt::format("{}+{}://{}{}", scheme, variant, authority, path);
}

// ---- which are open

std::shared_ptr<Directory> DirectoryHost::open(const DirectoryAddress& address) {
  agent_->check_usable();
  const std::lock_guard lock(mutex_);
  if (closed_) fail(Status::kClosed, "agent '{}' has been closed", agent_->name());
  std::shared_ptr<Directory>& directory = open_[address.identity()];
  try {
    if (directory == nullptr) directory = Directory::open(agent_, address);
  } catch (...) {
    open_.erase(address.identity());
    throw;
  }
  ++directory->openers_;
  return directory;
}

void DirectoryHost::let_go(const std::shared_ptr<Directory>& directory, uint64_t timeout_ns) noexcept {
  if (detach(directory)) directory->close(timeout_ns);
}

bool DirectoryHost::detach(const std::shared_ptr<Directory>& directory) noexcept {
  const std::lock_guard lock(mutex_);
  if (closed_ || --directory->openers_ != 0) return false;
  std::erase_if(open_, [&](const auto& entry) { return entry.second == directory; });
  return true;
}

Peer& DirectoryHost::connect(std::string_view text, uint64_t timeout_ns) {
  const DirectoryAddress address = DirectoryAddress::of_agent(text);
  const std::shared_ptr<Directory> directory = open(address);
  {
    const std::lock_guard lock(mutex_);
    if (!kept_.insert(address.identity()).second) --directory->openers_;  // it stays open once
  }
  const auto call = directory->fetch(address.agent, "", TOWLINE_GET_WAIT, timeout_ns);
  const Status status = call->wait(kNoDeadline);
  if (status != Status::kOk) fail(status, "{}", call->error());
  return *call->peer();
}

void DirectoryHost::close() noexcept {
  std::map<std::string, std::shared_ptr<Directory>> all;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    all.swap(open_);
  }
  for (const auto& [identity, directory] : all) directory->close(TOWLINE_DEFAULT_TIMEOUT);
}

}  // namespace towline
