#include "cp/place.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "failure.h"
#include "storage_schemes.h"
#include "units.h"

namespace tool::cp {

namespace {

constexpr std::string_view kPeer = "peer:";

std::string version_of(const towline::StorageInfo& info) {
  return fmt::format("{} {}", info.bytes, info.modified_ns);
}

// Throws unless a file that says that it has 0 bytes has none. Some files below /proc and /sys have content that they do
// not count, and some of those would wait for it.
void check_empty(const Place& place) {
  if (place.path.empty()) return;
  const int file = ::open(place.path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  char byte = 0;
  const ssize_t read = file >= 0 ? ::read(file, &byte, 1) : -1;
  const int error = errno;
  if (file >= 0) ::close(file);
  if (read == 0) return;
  if (read < 0 && error != EAGAIN)
    throw Failure{fmt::format("{} can't be read: {}", place.uri, std::strerror(error))};
  throw Failure{
      fmt::format("{} says that it has 0 bytes, but has content, as files below /proc do: copy it to a "
                  "plain file first",
                  place.uri)};
}

}  // namespace

Place parse_place(std::string_view text) {
  Place place;
  if (text.starts_with(kPeer)) {
    place.kind = Place::Kind::kPeer;
    place.text = text;
    place.address = text.substr(kPeer.size());
    const bool by_host =
        !place.address.starts_with("unix:") && place.address.find("://") == std::string::npos;
    size_t mark = place.address.find('#');
    if (mark == std::string::npos && by_host) mark = place.address.find('/');
    if (mark != std::string::npos) {
      const bool slash = place.address[mark] == '/';
      const std::string region = place.address.substr(mark + 1);
      if (region.empty())
        throw Failure{
            fmt::format("{}: expected the name of a region after {}, or its number after #; the first is 0",
                        text, place.address[mark])};
      place.numbered = !slash && CLI::detail::lexical_cast(region, place.region);
      if (!place.numbered) place.name = region;
      place.address.resize(mark);
    }
    if (place.address.empty())
      throw Failure{fmt::format(
          "{}: a peer is named peer:HOST:PORT, peer:HOST:PORT/NAME or peer:HOST:PORT#REGION", text)};
    return place;
  }
  if (text.empty()) throw Failure{"a place is empty: give file:PATH, s3://BUCKET/KEY or peer:HOST:PORT"};
  const StorageScheme* const scheme = scheme_of(text);
  if (scheme_text(text).empty() || (scheme != nullptr && !scheme->objects)) {
    const std::string name{scheme != nullptr ? scheme->name : "file"};
    if (scheme != nullptr) text.remove_prefix(name.size() + 1);
    if (text.starts_with("//") && !text.starts_with("///"))
      throw Failure{
          fmt::format("{0}:{1}: files of another host can't be reached: use {0}:/path", name, text)};
    if (text.starts_with("///")) text.remove_prefix(2);
    if (text.empty()) throw Failure{name + ": must be followed by a path"};
    place.path = std::filesystem::absolute(text).lexically_normal().string();
    place.uri = name + ":" + place.path;
  } else {
    place.uri = text;
  }
  place.text = place.uri;
  return place;
}

void check_number(const Place& place, const towline::Peer& peer, size_t regions) {
  if (place.region < regions) return;
  throw Failure{fmt::format("peer '{}' has registered {} region{}: there is no #{}", peer.name(), regions,
                            regions == 1 ? "" : "s", place.region)};
}

void OpenPlace::connect(const towline::Agent& agent, const Place& place, uint32_t access,
                        towline::Deadline deadline) {
  peer_ = agent.connect(place.address, deadline);
  std::string which = fmt::format("#{}", place.region);
  if (!place.name.empty()) {
    which = fmt::format("'{}'", place.name);
    memory_ = peer_->region_info(place.name);
  } else {
    const std::vector<towline::RegionInfo> regions = peer_->regions();
    check_number(place, *peer_, regions.size());
    memory_ = regions[place.region];
  }
  if ((memory_.access & access) != access)
    throw Failure{fmt::format("peer '{}' does not let others {} its region {}", peer_->name(),
                              access == TOWLINE_ACCESS_READ ? "read" : "write", which)};
  bytes_ = memory_.bytes;
  version_ = fmt::format("{} {:#x}", peer_->incarnation(), memory_.key);
}

OpenPlace OpenPlace::source(const towline::Agent& agent, const Place& place, towline::Deadline deadline) {
  OpenPlace open;
  if (place.is_peer()) {
    open.connect(agent, place, TOWLINE_ACCESS_READ, deadline);
    return open;
  }
  const towline::StorageInfo info = agent.query_storage(place.uri);
  if (info.exists == 0) throw Failure{fmt::format("{}: no such file or object", place.uri)};
  if (info.bytes == 0) check_empty(place);
  if (info.bytes != 0) open.region_ = agent.register_storage(place.uri);
  open.bytes_ = info.bytes;
  open.version_ = version_of(info);
  return open;
}

std::string OpenPlace::version(const towline::Agent& agent, const Place& place) {
  return version_of(agent.query_storage(place.uri));
}

void OpenPlace::empty(const Place& place) {
  std::error_code error;
  if (place.path.empty() || !std::filesystem::is_regular_file(place.path, error)) return;
  std::filesystem::resize_file(place.path, 0, error);
  if (error) throw Failure{fmt::format("emptying {}: {}", place.path, error.message())};
}

OpenPlace OpenPlace::destination(const towline::Agent& agent, const Place& place, uint64_t bytes, bool direct,
                                 towline::Deadline deadline) {
  OpenPlace open;
  if (place.is_peer()) {
    open.connect(agent, place, TOWLINE_ACCESS_WRITE, deadline);
    if (open.bytes_ < bytes)
      throw Failure{fmt::format("{} has {}: {} do not fit", place.text,
                                format_size(static_cast<double>(open.bytes_)),
                                format_size(static_cast<double>(bytes)))};
    return open;
  }
  towline::StorageOptions options;
  options.access = towline::Access::kAll;
  options.create = true;
  options.direct = direct;
  options.bytes = bytes;
  // A file is written in place, so that an interrupted copy can resume; any other destination is replaced at
  // the end.
  options.replace = place.path.empty();
  open.region_ = agent.register_storage(place.uri, options);
  open.bytes_ = bytes;
  return open;
}

towline::BlockList OpenPlace::list(const towline::Agent& agent, uint64_t offset, uint64_t bytes) const {
  if (!peer_) return agent.block_list(region_->blocks(offset, bytes));
  return peer_->block_list(
      towline::Blocks::at(memory_.address + offset, bytes, towline::Kind{memory_.kind}, memory_.device));
}

void OpenPlace::commit() const {
  if (region_) region_->commit(towline::kForever);
}

}  // namespace tool::cp
